"""Finds leases whose owner is gone, assigns the blame, and releases their rows.

An owner is gone when its process has certainly ended, which a sweeper in the same PID namespace
sees at once. It also counts as gone when its lease has ended (a lost host, a worker that could not
renew). `blame.py` decides which counter of each row rises.

A sweep has two steps. Processes and beat pages may take long to read, and during a write
transaction every sender waits.

1. `look` reads the candidates, then inspects their processes and pages, outside any transaction.
   It leaves out owners whose leases may have lapsed only because the store's clock moved
   (`lapse_guard.py`).
2. `reclaim` finds the rows of these owners again, in the write transaction. It releases those that
   are still leased to a dead owner, or still lapsed. A row of an owner that step 1 did not inspect
   waits for the next sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from longwatch.core.clock import Clock, SystemClock
from longwatch.host.beatpage import read_page, remove_page
from longwatch.host.incarnation import Incarnation, boot_id
from longwatch.store.blame import Blame, OwnerEnd
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Database, Transaction
from longwatch.store.lapse_guard import LapsedOwner, LapseGuard

SWEEP_BATCH = 500
"""The most leases that one query of a sweep finds, so that a sweep holds the store only briefly."""


OWNER_RETENTION = 3600.0
"""Seconds after which an owner without leases is deleted though this process cannot see whether it
lives. If it lives, its next claim registers it again.
"""


class LeaseOwner(NamedTuple):
    """A registered owner of leases."""

    id: int
    incarnation: str
    page: str | None
    parent: str | None = None
    """The incarnation of the process that supervises the owner."""
    is_draining: bool = False
    """Whether the owner has reported that it drains."""
    renew_seconds: float | None = None
    """The time between renewals; None if the owner does not renew."""


class SeenOwner(NamedTuple):
    """An owner to reclaim from, and the facts that decide the blame."""

    owner: LeaseOwner
    end: OwnerEnd


class SweepPlan(NamedTuple):
    """The owners that a look found.

    `dead`: owners that certainly have ended and hold leases. `lapsed`: other owners whose ended
    leases may be reclaimed. `idle`: owners to delete if they hold no lease.
    """

    dead: Sequence[SeenOwner] = ()
    lapsed: Sequence[SeenOwner] = ()
    idle: Sequence[LeaseOwner] = ()


class ReclaimedRow(NamedTuple):
    """A row that a sweep released."""

    claim: Claim
    queue: int
    blame: Blame


class Candidates(NamedTuple):
    """The rows that a look reads: the registered owners with their age and whether they hold a
    lease, the owners of lapsed leases, and how many renewing owners hold leases.
    """

    owners: list[tuple[LeaseOwner, float, bool]]
    lapsed: list[LeaseOwner]
    renewing: int
    has_lapses: bool = True
    """Whether ended leases were searched."""


class Reclaimed(NamedTuple):
    """The changes of a sweep: the rows that it released and the owners that it deleted."""

    rows: list[ReclaimedRow]
    deleted: list[LeaseOwner]


class ClaimSweeper:
    """Sweeps one table of claims. `is_shared`: other machines may use the store."""

    def __init__(
        self, claims: Claims, *, is_shared: bool = False, clock: Clock | None = None
    ) -> None:
        self._claims = claims
        self._is_shared = is_shared
        self._clock = clock or SystemClock()
        self._lapse_guard = LapseGuard()

    def look(self, database: Database) -> SweepPlan:
        """Find the owners to reclaim from. Reads files, so call it outside any transaction."""
        return self.plan(database.read(self.find_candidates))

    def plan(self, found: Candidates) -> SweepPlan:
        """Inspect candidates. Reads files, so call it outside any transaction."""
        dead = [
            (owner, holds) for owner, _, holds in found.owners if self.has_ended(owner.incarnation)
        ]
        ended = {owner.id for owner, _ in dead}
        renewing = sum(holds and owner.renew_seconds is not None for owner, holds in dead)
        return SweepPlan(
            dead=[_see(owner) for owner, holds in dead if holds],
            lapsed=self._reclaimable(
                [_see(owner) for owner in found.lapsed if owner.id not in ended],
                renewing_holders=found.renewing - renewing,
            )
            if found.has_lapses
            else (),
            idle=[owner for owner, holds in dead if not holds]
            + [owner for owner, age, holds in found.owners if _is_forgotten(owner, age, holds)],
        )

    def reclaim(self, transaction: Transaction, plan: SweepPlan) -> Reclaimed:
        """Release the rows of the plan's owners, one batch at a time, and delete the idle owners.

        After the commit call `remove_pages` for the deleted owners.
        """
        rows = [row for seen in plan.dead for row in self._rows_of(transaction, seen)]
        rows += self._lapsed_rows(transaction, plan.lapsed)
        for blame in {row.blame for row in rows}:
            claims = [row.claim for row in rows if row.blame is blame]
            self._claims.release(transaction, claims, blame=blame)
        return Reclaimed(
            rows, [owner for owner in plan.idle if self._delete_if_idle(transaction, owner)]
        )

    def dead_owners(self, transaction: Transaction) -> list[LeaseOwner]:
        """Return the owners to reclaim from. Only reads, so it costs the writer nothing.

        They have certainly ended, or they hold no lease, were registered long ago and cannot be
        seen from this process.
        """
        return [
            owner
            for owner, age, holds in self._find_owners(transaction)
            if self.has_ended(owner.incarnation) or _is_forgotten(owner, age, holds)
        ]

    def delete_owner(self, transaction: Transaction, owner: LeaseOwner) -> bool:
        """Delete an owner. Returns whether it was there.

        Call it only once its rows are released: until then a sweeper may need its page. After the
        commit `remove_pages` removes the page.
        """
        return transaction.execute(self._claims.sql["delete_owner"], {"owner": owner.id}) > 0

    def remove_pages(self, deleted: Iterable[LeaseOwner]) -> None:
        """Remove the beat pages of deleted owners that have ended. Call it outside any
        transaction.
        """
        for owner in deleted:
            if owner.page is not None and self.has_ended(owner.incarnation):
                with suppress(OSError):
                    remove_page(owner.page)

    def has_ended(self, incarnation: str) -> bool:
        """Return whether an owner has certainly ended.

        In a store of one machine an owner of an earlier boot has. In a shared store it may run on
        another machine.
        """
        found = parse_incarnation(incarnation)
        return found is not None and (
            found.is_dead() or (not self._is_shared and found.is_from_another_boot)
        )

    def find_candidates(self, transaction: Transaction, *, lapses: bool = True) -> Candidates:
        """Read what a plan is made of. Without `lapses` it leaves out ended leases, which takes a
        search of all leases.
        """
        lapsed = self._find_lapsed(transaction) if lapses else []
        renewing = 0
        if any(owner.renew_seconds is not None for owner in lapsed):
            [(renewing,)] = transaction.rows(self._claims.sql["count_renewing"])
        return Candidates(self._find_owners(transaction), lapsed, renewing, has_lapses=lapses)

    def forget_lapses(self) -> None:
        """Forget which owners were seen lapsed, because other processes have looked since."""
        self._lapse_guard = LapseGuard()

    def _find_lapsed(self, transaction: Transaction) -> list[LeaseOwner]:
        rows = transaction.rows(self._claims.sql["lapsed_owners"], {"boot": boot_id()})
        return [lease_owner(row) for row in rows]

    def _find_owners(self, transaction: Transaction) -> list[tuple[LeaseOwner, float, bool]]:
        parameters = {"boot": boot_id(), "retention": OWNER_RETENTION}
        return [
            (lease_owner(owner), age, bool(holds))
            for *owner, age, holds in transaction.rows(self._claims.sql["owners"], parameters)
        ]

    def _reclaimable(
        self, lapsed: Sequence[SeenOwner], *, renewing_holders: int
    ) -> list[SeenOwner]:
        reclaimable = self._lapse_guard.reclaimable(
            [
                LapsedOwner(owner.id, owner.renew_seconds, is_alive=end.is_alive)
                for owner, end in lapsed
            ],
            renewing_holders=renewing_holders,
            now=self._clock.monotonic(),
        )
        return [seen for seen in lapsed if seen.owner.id in reclaimable]

    def _rows_of(self, transaction: Transaction, seen: SeenOwner) -> list[ReclaimedRow]:
        owner = seen.owner.id
        held = transaction.rows(
            self._claims.for_update("of_owner"), {"owner": owner, "limit": SWEEP_BATCH}
        )
        return [
            ReclaimedRow(Claim(seq, owner, term), queue, seen.end.blame(seq))
            for seq, term, queue in held
        ]

    def _lapsed_rows(
        self, transaction: Transaction, lapsed: Sequence[SeenOwner]
    ) -> list[ReclaimedRow]:
        if not lapsed:
            return []
        ends = {seen.owner.id: seen.end for seen in lapsed}
        parameters = {
            "owners": self._claims.array_parameter(ends),
            "boot": boot_id(),
            "limit": SWEEP_BATCH,
        }
        return [
            ReclaimedRow(Claim(seq, owner, term), queue, ends[owner].blame(seq))
            for seq, term, queue, owner in transaction.rows(
                self._claims.sql["lapsed_of"], parameters
            )
        ]

    def _delete_if_idle(self, transaction: Transaction, owner: LeaseOwner) -> bool:
        parameters = {"owner": owner.id, "limit": 1}
        return not transaction.rows(self._claims.sql["of_owner"], parameters) and self.delete_owner(
            transaction, owner
        )


def _see(owner: LeaseOwner) -> SeenOwner:
    return SeenOwner(owner, owner_end(owner))


def _is_forgotten(owner: LeaseOwner, age: float, holds: bool) -> bool:  # noqa: FBT001 - columns
    """Return whether to delete an owner whose end this process cannot see: it holds no lease and
    was registered long ago.
    """
    return not holds and age > OWNER_RETENTION and not _is_visible(owner.incarnation)


def lease_owner(row: Sequence[Any]) -> LeaseOwner:
    """Make a LeaseOwner of the columns owner, incarnation, page, parent, draining,
    renew_seconds.
    """
    owner, incarnation, page, parent, draining, renew_seconds = row
    return LeaseOwner(owner, incarnation, page, parent, bool(draining), renew_seconds)


def blame_for(owner: LeaseOwner) -> Callable[[int], Blame]:
    """Return a function that decides the blame for each row of an owner.

    Inspects the page and the processes once, in this call.
    """
    return owner_end(owner).blame


def owner_end(owner: LeaseOwner) -> OwnerEnd:
    """Collect the facts that this process can see about an owner whose claims end."""
    incarnation = parse_incarnation(owner.incarnation)
    parents = map(parse_incarnation, (owner.parent or "").split())
    is_of_another_boot = incarnation is not None and incarnation.is_from_another_boot
    return OwnerEnd(
        has_page=owner.page is not None,
        page=None if owner.page is None or is_of_another_boot else read_page(owner.page),
        is_draining=owner.is_draining,
        is_alive=incarnation is not None and incarnation.is_visible and not incarnation.is_dead(),
        is_of_another_boot=is_of_another_boot,
        is_parent_dead=any(parent is not None and parent.is_dead() for parent in parents),
    )


def _is_visible(incarnation: str) -> bool:
    found = parse_incarnation(incarnation)
    return found is not None and found.is_visible


def parse_incarnation(incarnation: str) -> Incarnation | None:
    """Parse an incarnation. Returns None for a format of another version; such an owner counts as
    alive.
    """
    try:
        return Incarnation.parse(incarnation)
    except ValueError:
        return None
