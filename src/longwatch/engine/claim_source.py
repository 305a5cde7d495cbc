"""The interface between the engine and any store of claimable rows.

A mailbox implements it over SQL, memory or Redis, a flow over its computations. The engine knows
nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum, auto
from typing import Any, NamedTuple, Protocol, runtime_checkable

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.engine import MessageDeadLettered
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, RowSelection


class ClaimedRow(NamedTuple):
    """A claimed row: the claim, and what the source knows about the row.

    `is_exclusive`: it is a suspect (`store.blame`), so it runs with no other row beside it, and the
    next crash has one possible cause. `failures_left`: how many failures it may still have, this
    run's included; None if the source decides. `lease_seconds`: the length of its lease, if longer
    than the engine's. `retry`: its backoff, if not the engine's. If the item has `deliveries` and
    `failures`, the engine counts attempts and spaces the retries by them. Events name the row by
    the item's `id`, and by its `node` if it has one.
    """

    claim: Claim
    item: Any
    is_exclusive: bool = False
    lease_seconds: float | None = None
    retry: BackoffPolicy | None = None
    failures_left: int | None = None

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1."""
        return int(getattr(self.item, "deliveries", 1))

    @property
    def failures(self) -> int:
        """How often its code has raised before."""
        return int(getattr(self.item, "failures", 0))

    @property
    def releases(self) -> int:
        """How often it was released without blame before."""
        return int(getattr(self.item, "releases", 0))

    @property
    def message_id(self) -> str:
        """The id of the message; empty if the row is not a message."""
        return "" if hasattr(self.item, "node") else str(getattr(self.item, "id", ""))

    @property
    def computation(self) -> str:
        """EXECUTION/NODE; empty if the row is not a computation."""
        return f"{self.item.id}/{self.item.node}" if hasattr(self.item, "node") else ""


def message_ids(rows: Iterable[ClaimedRow]) -> tuple[str, ...]:
    """Return the ids of the rows that are messages."""
    return tuple(filter(None, (row.message_id for row in rows)))


def computations(rows: Iterable[ClaimedRow]) -> tuple[str, ...]:
    """Return the names of the rows that are computations."""
    return tuple(filter(None, (row.computation for row in rows)))


class RowOutcome(StrEnum):
    """How the work on a row ended, for its source."""

    DONE = auto()  # finished: the row leaves the queue
    FAILED = auto()  # its code raised: released after the delay, one failure more
    CRASHED = auto()  # it may have ended its process: released, one crash more
    RELEASED = auto()  # not its fault: released, no budget is spent
    DEAD = auto()  # it cannot succeed: dead-lettered with the reason


BLAME_BY_OUTCOME = {
    RowOutcome.FAILED: Blame.FAILURE,
    RowOutcome.CRASHED: Blame.CRASH,
    RowOutcome.RELEASED: Blame.RELEASE,
}
"""Which counter of a released row rises."""


class Settlement(NamedTuple):
    """How to settle one claimed row.

    `reason`: why it is dead-lettered, from a closed list (poison, lost, failed, unanswered,
    expired, undecodable, permanent); `failed` and `unanswered` count as one failure more. `error`:
    type and text of the exception. `traceback`: masked and bounded. `result`: the result of the
    work, for a source that keeps it. `seconds`: how long its code ran; None if it never began.
    """

    claim: Claim
    outcome: RowOutcome
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    result: bytes | None = None
    traceback: str | None = None
    seconds: float | None = None


class GivenUp(NamedTuple):
    """A message that a source dead-lettered itself, during a claim or a sweep."""

    message_id: str
    mailbox: str
    reason: str


def ignore_given_up(_: GivenUp) -> None:
    """Ignore a dead letter, for sweeps whose caller does not report them."""


def emit_given_up(events: Events) -> Callable[[GivenUp], None]:
    """Return a function that emits one event for each dead letter of a sweep."""

    def emit(given_up: GivenUp) -> None:
        message_id, mailbox, reason = given_up
        events.emit(MessageDeadLettered(mailbox=mailbox, message_id=message_id, reason=reason))

    return emit


class ExchangeResult(NamedTuple):
    """The result of one exchange: for each settlement whether its claim still matched, and the
    claimed rows.

    `is_queue_empty`: as far as is known, no row is left to claim; the process that makes a row
    ready notifies. `given_up`: the messages that were dead-lettered instead of claimed.
    """

    settled: list[bool]
    claimed: list[ClaimedRow]
    is_queue_empty: bool = False
    given_up: Sequence[GivenUp] = ()


class SweepRound(NamedTuple):
    """The result of one round of an engine's sweeper: how many rows changed, whether the engine
    sweeps its queue for the whole fleet, and in how many seconds the next round is due, None for
    the engine's own interval.
    """

    changed: int = 0
    leads: bool = True
    next_in: float | None = None


class EngineSweeper(Protocol):
    """Sweeps for one engine. Not thread-safe: only the sweeper's thread of the engine uses it."""

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> SweepRound:
        """Do what is due for this engine. Often that is nothing, without a call to the store."""

    def pause(self) -> None:
        """Leave the sweeps to other engines until the next `sweep`. Makes no call to the store."""

    def close(self) -> None:
        """Leave the sweeps to other engines. Waits for the store only briefly, raises nothing."""


class EverySweep:
    """The sweeper of an engine whose store one machine uses: it sweeps in every round."""

    def __init__(self, sweep: Callable[[Callable[[GivenUp], None]], int]) -> None:
        self._sweep = sweep

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> SweepRound:
        return SweepRound(self._sweep(on_given_up))

    def pause(self) -> None:
        """Do nothing: no other engine relies on this one."""

    def close(self) -> None:
        """Do nothing: no other engine relies on this one."""


@runtime_checkable
class JointRenewal(Protocol):
    """A claim source that renews the leases of several owners in one transaction."""

    def renew_owners(self, owners: Sequence[int], *, lease_seconds: float) -> list[int]:
        """Extend every lease of these owners, as `ClaimSource.renew` does. Returns how many leases
        it renewed for each.
        """


class ClaimSource(Protocol):
    """A store of claimable rows. Every method is thread-safe, and blocks on the store no longer
    than its own timeout.

    Methods raise the errors of the store (`StoreError`). After one it is unknown whether a
    settlement was made; making it again is safe, because it is fenced. It is also unknown whether
    rows were claimed; `held` lists them.

    `is_shared`: many machines may use the store, so that every idle poll and sweep counts. An idle
    engine then answers only some of the hints (`hint_gate`) and polls rarely.
    """

    @property
    def is_shared(self) -> bool: ...

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        """Register an owner of leases and return its number.

        `page`: the path of its beat page. `parent`: the incarnation of the process that supervises
        it. `renew_seconds`: the time between its renewals, None if it does not renew.
        """

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        """Record that the owner drains, or that it claims again. The end of a draining owner blames
        no row. Idempotent.
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
        """Settle rows, then claim up to `limit` others, in one transaction. By `selection` a
        suspect is claimed alone or not at all.
        """

    def count_suspects(self, *, limit: int) -> int:
        """Count the free suspects, up to `limit`. A cheap read."""

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        """Return the public names of these rows, as far as they exist: a message's id, or
        EXECUTION/NODE. Only reads.
        """

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        """Extend every lease of the owner, except those in `skip`, to `lease_seconds` from now, in
        one statement. Returns how many leases it renewed.
        """

    def held(self, *, owner: int) -> list[Claim]:
        """Return every lease of the owner that the store knows. Only reads."""

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:
        """Release the rows of dead owners and of ended leases, free the rows that are due, and
        dead-letter rows that have spent a budget. Returns how many rows changed.

        `on_given_up` is called for each dead letter after the commit.
        """

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        """Return the sweeper of an engine. In a shared store the engines take turns."""

    def next_due(self) -> float | None:
        """Return the seconds until a delayed row is due, or None if none is delayed."""

    def locator(self) -> dict[str, str] | None:
        """Return how another process of this machine can open the same rows, to renew leases. None
        if it cannot. Opens nothing.

        `kind` selects the function that makes a source of it.
        """

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup when a row may be ready, or the source was closed or paused. Returns a
        function that ends this.
        """
