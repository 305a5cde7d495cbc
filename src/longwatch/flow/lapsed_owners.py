"""Looks at the owners of attempts whose lease has lapsed, before anything is reclaimed from them.

A lapsed attempt has one of two causes. The engine of its worker did not renew it
(`heartbeat_deadline`), or its code did not end in time or did not beat on its slot. A step of the
store's clock, or a suspended machine, makes the first happen to healthy workers: every attempt
lapses, though its code beats. So `store.lapse_guard` holds an owner for one renewal
interval if it is certainly alive, or if most owners have lapsed at the same look.

The guard is about renewals alone. What the code itself has broken does not wait for it: an attempt
of a live owner that is past its deadline, or whose slot gives no beat, is abandoned at once
(`attempt_blame`). An owner that cannot be seen shows nothing of its slots, so all its attempts
wait.

    state of an owner       its lapsed attempts
    ended, seen from here   come back at once; they are no sign of a moved clock and not counted
    held, alive             come back at once if their code was too slow or silent; others wait
    held, not seen          wait
    renews                  come back at once: they are past their deadline
    else                    come back at once

Sweeps are made in turns, so the next look is often made by another worker, which counts its own
interval. The worker that has held an owner therefore looks again by itself (`look_again_at`):
attempts come back one renewal interval after the first look, however many workers there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf

from longwatch.core.clock import Clock
from longwatch.flow.attempt_blame import OwnerLook
from longwatch.flow.records import Records
from longwatch.host.incarnation import boot_id
from longwatch.store.database import Database, Transaction
from longwatch.store.lapse_guard import LapsedOwner, LapseGuard
from longwatch.store.sweep import ClaimSweeper, LeaseOwner, lease_owner, owner_end


class LapsedOwners:
    """The owners of lapsed attempts, as one worker sees them."""

    def __init__(
        self, database: Database, records: Records, sweep: ClaimSweeper, clock: Clock
    ) -> None:
        self._database = database
        self._records = records
        self._sweep = sweep
        self._clock = clock
        self._guard = LapseGuard()
        self._held_until: dict[int, float] = {}

    @property
    def look_again_at(self) -> float:
        """When the hold of the first owner ends, on the clock of this process."""
        return min(self._held_until.values(), default=inf)

    def look(self, *, holds: bool) -> dict[int, OwnerLook]:
        """Look at the owners that have a lapsed attempt; returns them by number. Reads beat pages
        and processes, so call it outside of a transaction. Without `holds` no owner is held.
        """
        owners, renewing = self._database.read(self._find)
        looks = {owner.id: self.look_at(owner) for owner, _ in owners}
        unrenewed = [
            owner for owner, is_missed in owners if is_missed and not looks[owner.id].has_ended
        ]
        holders = sum(not self._sweep.has_ended(each) for each in renewing)
        held = self._held(unrenewed, looks, renewing_holders=holders) if holds else []
        return looks | {each: looks[each]._replace(is_held=True) for each in held}

    def _held(
        self,
        unrenewed: Sequence[LeaseOwner],
        looks: Mapping[int, OwnerLook],
        *,
        renewing_holders: int,
    ) -> Iterable[int]:
        now = self._clock.monotonic()
        reclaimable = self._guard.reclaimable(
            [
                LapsedOwner(each.id, each.renew_seconds, is_alive=looks[each.id].end.is_alive)
                for each in unrenewed
            ],
            renewing_holders=renewing_holders,
            now=now,
        )
        self._held_until = {
            each.id: self._held_until.get(each.id, now + (each.renew_seconds or 0.0))
            for each in unrenewed
            if each.id not in reclaimable
        }
        return self._held_until

    def look_at(self, owner: LeaseOwner) -> OwnerLook:
        """Look at one owner. An unknown owner in a store of one machine belongs to an earlier
        boot.
        """
        has_ended = self._sweep.has_ended(owner.incarnation) or not (
            owner.incarnation or self._database.is_shared
        )
        return OwnerLook(owner_end(owner), has_ended, self._clock.monotonic())

    def _find(self, tx: Transaction) -> tuple[list[tuple[LeaseOwner, bool]], Iterable[str]]:
        """Owners with a lapsed attempt, each with whether a heartbeat is missed, and the
        incarnations of all owners that renew and hold attempts.
        """
        owners = [
            (lease_owner(owner), bool(is_missed))
            for *owner, is_missed in tx.rows(
                self._records.sql["lapsed_owners"], {"boot": boot_id()}
            )
        ]
        if all(owner.renew_seconds is None for owner, _ in owners):
            return owners, ()
        return owners, [row[0] for row in tx.rows(self._records.sql["renewing_owners"])]
