"""Finds leases whose owner is gone, decides whose fault that was, and releases their rows.

An owner is gone when its process certainly is (same machine, same PID namespace: at once), or when
its lease has ended (a lost host, a worker that could not renew). `blame.py` decides which counter
of each row rises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from longwatch.host.beatpage import read_page, remove_page
from longwatch.host.incarnation import Incarnation, boot_id
from longwatch.store.blame import Blame, OwnerEnd
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Parameters, Transaction

SWEEP_BATCH = 500
"""Leases looked at in one transaction: a sweep never holds the store for long."""


OWNER_RETENTION = 3600.0
"""Seconds after which an owner that holds nothing is deleted though this process cannot see whether
it lives; it may register again.
"""


class LeaseOwner(NamedTuple):
    """An owner that holds leases."""

    id: int
    incarnation: str
    page: str | None
    parent: str | None = None
    """The incarnation of the process that supervises it."""
    is_draining: bool = False
    """Whether it has reported that it drains."""
    renew_seconds: float | None = None
    """The time between its renewals; None: it does not renew."""


class ClaimSweeper:
    """Sweeps one table of claims. `is_shared`: other machines may use it as well."""

    def __init__(self, claims: Claims, *, is_shared: bool = False) -> None:
        self._claims = claims
        self._is_shared = is_shared

    def reclaim_lapsed(self, transaction: Transaction) -> list[int]:
        """Release the rows of leases that have ended; for each row its queue."""
        rows = transaction.rows(self._claims.for_update("lapsed"), _lapsed_parameters(SWEEP_BATCH))
        lapsed = [(seq, term, lease_owner(owner)) for seq, term, _, *owner in rows]
        blames = {owner: blame_for(owner) for owner in {owner for _, _, owner in lapsed}}
        self._release(
            transaction,
            [(Claim(seq, owner.id, term), blames[owner](seq)) for seq, term, owner in lapsed],
        )
        return [row[2] for row in rows]

    def has_lapsed(self, transaction: Transaction) -> bool:
        """Whether any lease has ended; a read."""
        return bool(transaction.rows(self._claims.sql["lapsed"], _lapsed_parameters(1)))

    def dead_owners(self, transaction: Transaction) -> list[LeaseOwner]:
        """Owners to reclaim from: a read, so that it costs the writer nothing.

        They have certainly ended, or they hold nothing, entered long ago and cannot be seen from
        here.
        """
        found = transaction.rows(
            self._claims.sql["owners"], {"boot": boot_id(), "retention": OWNER_RETENTION}
        )
        return [
            lease_owner(owner)
            for *owner, age, holds in found
            if self.has_ended(owner[1])
            or (not holds and age > OWNER_RETENTION and not _is_visible(owner[1]))
        ]

    def reclaim(self, transaction: Transaction, owner: LeaseOwner) -> list[int]:
        """Release the rows of a dead owner, one batch at a time; for each row its queue. An owner
        that holds nothing is deleted.
        """
        held = transaction.rows(
            self._claims.for_update("of_owner"), {"owner": owner.id, "limit": SWEEP_BATCH}
        )
        if not held:
            self.delete_owner(transaction, owner)
            return []
        if not self.has_ended(owner.incarnation):
            return []
        blame = blame_for(owner)
        self._release(
            transaction, [(Claim(seq, owner.id, term), blame(seq)) for seq, term, _ in held]
        )
        return [queue for _, _, queue in held]

    def _release(self, transaction: Transaction, blamed: Sequence[tuple[Claim, Blame]]) -> None:
        for blame in {blame for _, blame in blamed}:
            self._claims.release(
                transaction, [claim for claim, assigned in blamed if assigned is blame], blame=blame
            )

    def delete_owner(self, transaction: Transaction, owner: LeaseOwner) -> None:
        """Delete an owner. Only once its rows are released: until then a sweeper may need its
        page.
        """
        deleted = transaction.execute(self._claims.sql["delete_owner"], {"owner": owner.id})
        if deleted and owner.page is not None and self.has_ended(owner.incarnation):
            remove_page(owner.page)

    def has_ended(self, incarnation: str) -> bool:
        """Whether an owner certainly has. In a store of one machine that of an earlier boot has;
        in others it may be elsewhere.
        """
        found = parse_incarnation(incarnation)
        return found is not None and (
            found.is_dead() or (not self._is_shared and found.is_from_another_boot)
        )


def _lapsed_parameters(limit: int) -> Parameters:
    return {"boot": boot_id(), "limit": limit}


def lease_owner(row: Sequence[Any]) -> LeaseOwner:
    """An owner of the columns owner, incarnation, page, parent, draining, renew_seconds."""
    owner, incarnation, page, parent, draining, renew_seconds = row
    return LeaseOwner(owner, incarnation, page, parent, bool(draining), renew_seconds)


def blame_for(owner: LeaseOwner) -> Callable[[int], Blame]:
    """Says of each row whether its own work is to blame for the end of its owner. The page and the
    processes are looked at once, here.
    """
    return owner_end(owner).blame


def owner_end(owner: LeaseOwner) -> OwnerEnd:
    """What this process can see of an owner whose claims end."""
    incarnation = parse_incarnation(owner.incarnation)
    parent = None if owner.parent is None else parse_incarnation(owner.parent)
    is_of_another_boot = incarnation is not None and incarnation.is_from_another_boot
    return OwnerEnd(
        has_page=owner.page is not None,
        page=None if owner.page is None or is_of_another_boot else read_page(owner.page),
        is_draining=owner.is_draining,
        is_alive=incarnation is not None and incarnation.is_visible and not incarnation.is_dead(),
        is_of_another_boot=is_of_another_boot,
        is_parent_dead=parent is not None and parent.is_dead(),
    )


def _is_visible(incarnation: str) -> bool:
    found = parse_incarnation(incarnation)
    return found is not None and found.is_visible


def parse_incarnation(incarnation: str) -> Incarnation | None:
    """None for one that some other version wrote: it counts as alive."""
    try:
        return Incarnation.parse(incarnation)
    except ValueError:
        return None
