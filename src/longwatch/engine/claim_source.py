"""Where work comes from and goes back to: the seam between the engine and whatever holds claimable
rows.

A mailbox implements it over SQL, memory or Redis, a flow over its computations. The engine knows
nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum, auto
from typing import Any, NamedTuple, Protocol

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.engine import MessageDeadLettered
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, RowSelection


class ClaimedRow(NamedTuple):
    """A row that was claimed: the right to it, and what the source knows about it.

    `is_exclusive`: it is a suspect (`store.blame`), so it runs with no other row beside it, and the
    next crash has one possible cause. `failures_left`: how many failures it may still have, this
    run's included; None if the source decides that by itself. `lease_seconds`: how long its lease
    lasts, if longer than the engine's. `retry`: how its tries are spaced, if not as the engine's.
    If the item has `deliveries` and `failures`, the engine counts attempts and spaces the retries
    by them. Events name the row by the item's `id`, and by its `node` if it has one.
    """

    claim: Claim
    item: Any
    is_exclusive: bool = False
    lease_seconds: float | None = None
    retry: BackoffPolicy | None = None
    failures_left: int | None = None

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return int(getattr(self.item, "deliveries", 1))

    @property
    def failures(self) -> int:
        """How often its work has raised before."""
        return int(getattr(self.item, "failures", 0))

    @property
    def releases(self) -> int:
        """How often it was given back without blame before."""
        return int(getattr(self.item, "releases", 0))

    @property
    def message_id(self) -> str:
        """The id of the message; empty if the row is no message."""
        return "" if hasattr(self.item, "node") else str(getattr(self.item, "id", ""))

    @property
    def computation(self) -> str:
        """EXECUTION/NODE; empty if the row is no computation."""
        return f"{self.item.id}/{self.item.node}" if hasattr(self.item, "node") else ""


def message_ids(rows: Iterable[ClaimedRow]) -> tuple[str, ...]:
    """The ids of those that are messages."""
    return tuple(filter(None, (row.message_id for row in rows)))


def computations(rows: Iterable[ClaimedRow]) -> tuple[str, ...]:
    """The names of those that are computations."""
    return tuple(filter(None, (row.computation for row in rows)))


class RowOutcome(StrEnum):
    """How the work on a row ended, for its source."""

    DONE = auto()  # finished: the row goes
    FAILED = auto()  # it raised: back after the delay, one failure more
    CRASHED = auto()  # it may have ended the process that ran it: back, one crash more
    RELEASED = auto()  # not its fault: back, nothing spent
    DEAD = auto()  # it will never work: to the dead letters, with the reason


BLAME_BY_OUTCOME = {
    RowOutcome.FAILED: Blame.FAILURE,
    RowOutcome.CRASHED: Blame.CRASH,
    RowOutcome.RELEASED: Blame.RELEASE,
}
"""Of the rows that come back: which of their counters rises."""


class Settlement(NamedTuple):
    """What to do with one claimed row.

    `reason`: why it is dead, from a closed list (poison, lost, failed, unanswered, expired,
    undecodable, permanent); `failed` and `unanswered` count as one failure more. `error`: what was
    raised, type and text; `traceback`: where, masked and bounded. `result`: what the work has made,
    for a source that keeps it.
    """

    claim: Claim
    outcome: RowOutcome
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    result: bytes | None = None
    traceback: str | None = None


class GivenUp(NamedTuple):
    """A message that a source has dead-lettered by itself: when it was claimed, or in a sweep."""

    message_id: str
    mailbox: str
    reason: str


def ignore_given_up(_: GivenUp) -> None:
    """For sweeps whose caller does not report dead letters."""


def emit_given_up(events: Events) -> Callable[[GivenUp], None]:
    """For sweeps whose caller reports dead letters: emits one event for each."""

    def emit(given_up: GivenUp) -> None:
        message_id, mailbox, reason = given_up
        events.emit(MessageDeadLettered(mailbox=mailbox, message_id=message_id, reason=reason))

    return emit


class ExchangeResult(NamedTuple):
    """The answer to one exchange: for each settlement whether the row was still the claimant's, and
    the rows newly leased.

    `is_queue_empty`: nothing is left to be claimed, as far as is known; the process that makes a
    row ready notifies. `given_up`: the messages that were dead-lettered instead of claimed.
    """

    settled: list[bool]
    claimed: list[ClaimedRow]
    is_queue_empty: bool = False
    given_up: Sequence[GivenUp] = ()


class ClaimSource(Protocol):
    """Holds claimable rows. Every method blocks on the store at the most for its own timeout, and
    may be called from any thread.

    Errors of the store come out as they are (`StoreError`). After one it is unknown whether a
    settlement was made, and making it again is safe: it is fenced. It is also unknown whether rows
    were claimed: `held` tells.
    """

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        """Become an owner of leases. `page`: where its beat page is; `parent`: the incarnation of
        the process that supervises it; `renew_seconds`: the time between its renewals, None if it
        does not renew.
        """

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        """Note that the owner drains, or claims again: the end of an owner that drains blames no
        row. Idempotent.
        """

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        """Settle the last and claim up to `limit` next, in one transaction. Settlements come
        first. A suspect is claimed by itself, or not at all, by `selection`.
        """

    def count_suspects(self, *, limit: int) -> int:
        """How many suspects are free, counted no further than `limit`; a cheap read."""

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        """What users call these rows, as far as they still exist: a message's id, or
        EXECUTION/NODE; a read.
        """

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        """Prolong every lease of the owner but those to `skip` to `lease_seconds` from now, in one
        statement; how many there are.
        """

    def held(self, *, owner: int) -> list[Claim]:
        """Every lease of the owner, as the store knows them; a read."""

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        """Release the rows of dead owners and of ended leases, free the rows that are due, and
        dead-letter those that have spent a budget; how many rows. `on_given_up` is called for each
        dead letter after the commit.
        """

    def next_due(self) -> float | None:
        """Seconds until something that is delayed will be ready; None if nothing is."""

    def locator(self) -> dict[str, str] | None:
        """How another process of this machine finds the same rows, to renew leases there; None if
        none can. Opens nothing.

        `kind` says who can make a source of it.
        """

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set when something may be ready, or was closed or paused; returns what
        ends that.
        """
