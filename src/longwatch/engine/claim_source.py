"""Where work comes from and goes back to: the seam between the engine and whatever holds claimable
rows.

A mailbox implements it over SQL, memory or Redis, a flow over its computations. The engine knows
nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import StrEnum, auto
from typing import Any, NamedTuple, Protocol

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claim


class ClaimedRow(NamedTuple):
    """A row that was claimed: the right to it, and what the source knows about it.

    `is_exclusive`: it has crashed a process before, so it runs with no other beside it, and the
    second crash names the culprit. `lease_seconds`: how long its lease lasts, if longer than the
    engine's; `retry`: how its tries are spaced, if not as the engine's. If the item has
    `deliveries` and `failures`, the engine counts attempts and spaces the retries by them.
    """

    claim: Claim
    item: Any
    is_exclusive: bool = False
    lease_seconds: float | None = None
    retry: BackoffPolicy | None = None

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return int(getattr(self.item, "deliveries", 1))

    @property
    def failures(self) -> int:
        """How often its work has raised before."""
        return int(getattr(self.item, "failures", 0))


class RowOutcome(StrEnum):
    """How the work on a row ended, for its source."""

    DONE = auto()  # finished: the row goes
    FAILED = auto()  # it raised: back after the delay, one failure more
    RELEASED = auto()  # not its fault: back, nothing spent
    DEAD = auto()  # it will never work: to the dead letters, with the reason


class Settlement(NamedTuple):
    """What to do with one claimed row.

    `reason`: why it is dead, from a closed list (poison, failed, expired, undecodable, permanent).
    `error`: what was raised, type and text. `result`: what the work has made, for a source that
    keeps it.
    """

    claim: Claim
    outcome: RowOutcome
    delay: float = 0.0
    reason: str = ""
    error: str | None = None
    result: bytes | None = None


class ExchangeResult(NamedTuple):
    """The answer to one exchange: for each settlement whether the row was still the claimant's, and
    the rows newly leased.

    `is_queue_empty`: nothing is left to be claimed, as far as is known; who makes something ready
    tells.
    """

    settled: list[bool]
    claimed: list[ClaimedRow]
    is_queue_empty: bool = False


class ClaimSource(Protocol):
    """Holds claimable rows. Every method blocks on the store at the most for its own timeout, and
    may be called from any thread.

    Errors of the store come out as they are (`StoreError`). After one it is unknown whether a
    settlement was made, and making it again is safe: it is fenced. It is also unknown whether rows
    were claimed: `held` tells.
    """

    def register_owner(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        """Become an owner of leases; `page` is where its beat page is."""

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, limit: int, lease_seconds: float
    ) -> ExchangeResult:
        """Settle the last and claim up to `limit` next, in one transaction. Settlements come
        first.
        """

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        """Prolong every lease of the owner but those to `skip` to `lease_seconds` from now, in one
        statement; how many there are.
        """

    def held(self, *, owner: int) -> list[Claim]:
        """Every lease of the owner, as the store knows them; a read."""

    def sweep(self) -> int:
        """Give back what dead owners and ended leases hold, free what is due; how many rows."""

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
