"""The lease audit: finds leases that only the store, or only the engine, knows of.

Such leases come from an exchange without a reply, a store that was restored to an older state, or
a worker that reclaimed a row. An audit is requested after every failed exchange and every renewal.
"""

from __future__ import annotations

from longwatch.core.events.engine import LeaseLost
from longwatch.engine.claim_source import ClaimSource, computations, message_ids
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.reservations import Reservations
from longwatch.engine.slot_pool import SlotPool
from longwatch.engine.source_call import SourceCall
from longwatch.store.claims import Claim


class LeaseAudit:
    """Compares the leases of one engine with the store. Any thread may request it; the thread that
    runs the cycle runs it.
    """

    def __init__(
        self,
        source: ClaimSource,
        lease_trust: LeaseTrust,
        slot_pool: SlotPool,
        reservations: Reservations,
        engine_context: EngineContext,
    ) -> None:
        self._source = source
        self._lease_trust = lease_trust
        self._slot_pool = slot_pool
        self._reservations = reservations
        self._name = engine_context.name
        self._events = engine_context.events
        self._held_call = SourceCall("held", engine_context)
        self._requested = self._completed = 0
        self._is_revoked = False
        self._missing: set[Claim] = set()
        self._unknown: dict[Claim, int] = {}
        """Claims that may belong to one of the first N reservations, each with its N."""

    @property
    def is_due(self) -> bool:
        return self._requested != self._completed

    def request(self, *, revoked: bool = False) -> None:
        """Request a comparison of the leases with the store. `revoked`: another process has
        reclaimed some.
        """
        self._is_revoked = self._is_revoked or revoked
        self._requested += 1

    def run(self, known: set[Claim], held: set[Claim]) -> list[Claim]:
        """Compare with the store, and cancel rows whose lease is lost. Returns the claims that are
        unknown here, to be released.

        A row counts as lost when it is missing in two audits, because it is missing in one between
        a settlement by user code and `RowContext.settled`. A claim counts as unknown once every
        reservation that was made before the claim was found is closed and its rows are accepted. A
        request that comes meanwhile causes another audit.
        """
        requested, accepted = self._requested, self._reservations.accepted_total()
        found = self._held_call.run(lambda: self._source.held(owner=self._lease_trust.owner))
        if found is None:
            return []
        reserved = self._reservations.total
        unknown = {claim: self._unknown.get(claim, reserved) for claim in set(found) - known}
        certain = {claim for claim, before in unknown.items() if before <= accepted}
        self._unknown = {claim: unknown[claim] for claim in unknown.keys() - certain}
        missing = held.difference(
            found, (each.claimed.claim for each in self._slot_pool.running() if each.settled)
        )
        self._mark_lost(missing & self._missing)
        self._missing = missing
        if not (missing or self._unknown):
            self._completed = requested
        return [claim for claim in found if claim in certain]

    def _mark_lost(self, gone: set[Claim]) -> None:
        running = self._slot_pool.running()
        lost = [each for each in running if each.claimed.claim in gone and not each.lease_lost]
        for context in lost:
            self._slot_pool.lose_lease(context, is_blameless=True)
        if gone.difference(each.claimed.claim for each in running):
            self._slot_pool.release_waiting()
        if lost:
            reason, self._is_revoked = "revoked" if self._is_revoked else "taken", False
            rows = [each.claimed for each in lost]
            self._events.emit(
                LeaseLost(
                    engine=self._name,
                    message_ids=message_ids(rows),
                    computations=computations(rows),
                    reason=reason,
                )
            )
