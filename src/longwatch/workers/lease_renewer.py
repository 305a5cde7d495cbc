"""Renews the leases of worker processes, for their parent: one thread a store, one statement an
engine. Engines that hold no rows share a transaction, which is sent when one of them is due.

`core.lease` decides when. A renewal that the store does not confirm makes the whole thread back
off: every other engine of the same store would fail, too. If a worker's leases are not renewed in
time, its own engine renews them (`engine.lease_renewer`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.engine import LeasesRenewed
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import RenewalSchedule
from longwatch.engine.claim_source import ClaimSource, JointRenewal
from longwatch.engine.lease_renewer import RenewalCall
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.mailbox.url import open_source, open_store
from longwatch.workers.worker_record import WORKER_LEASE, EngineLeases

FLOW_KIND = "flow"
_EARLY = 0.1
"""Fraction of the interval between renewals at which the thread looks whether one is due."""


def open_claim_source(
    locator: Mapping[str, str],
    stores: MutableMapping[str, Any],
    *,
    events: Events | None = None,
) -> ClaimSource:
    """Open the claim source that `ClaimSource.locator` of another process names. `stores` are the
    open stores by URL. Sweeps emit to `events`.
    """
    if locator.get("kind") != FLOW_KIND:
        return open_source(locator, stores)
    from longwatch.workers.flow_lease_source import FlowLeaseSource  # noqa: PLC0415 - not needed by a parent of other loops

    url = locator["url"]
    if url not in stores:
        stores[url] = open_store(url)
    return FlowLeaseSource(stores[url], events=events)


class WorkerLeaseRenewer(Service):
    """Renews the leases in one store when they are due. `add` and `remove` are thread-safe."""

    def __init__(self, *, clock: Clock, events: Events) -> None:
        super().__init__(name="worker-lease-renewer", clock=clock)
        policy = EnginePolicy(lease=WORKER_LEASE)
        engine_context = EngineContext("workers", policy, clock, events, Heartbeat(clock))
        self._events = events
        self._schedule = RenewalSchedule(WORKER_LEASE, early=_EARLY)
        self._renewal_call = RenewalCall(self._schedule, engine_context)
        self._leases: dict[int, EngineLeases] = {}
        self._lock = threading.Lock()
        cadence = Cadence(interval=self._schedule.interval() * _EARLY)
        self._periodic = Periodic(
            self._run_once, cadence, name="worker-lease-renewer", clock=clock, events=events
        )

    @property
    def in_own_thread(self) -> bool:
        return self._periodic.in_own_thread

    def add(self, leases: EngineLeases) -> None:
        with self._lock:
            self._leases[leases.owner] = leases
        self._periodic.wake()

    def remove(self, leases: EngineLeases) -> None:
        """Stop renewing these leases. Does not wait for a renewal under way."""
        with self._lock:
            self._leases.pop(leases.owner, None)

    def _start(self) -> None:
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        return self._periodic.stop(deadline=deadline)

    def _run_once(self) -> None:
        now = self._clock.boottime()
        if self._schedule.is_backing_off(now):
            return
        for group in self._groups():
            is_due = any(leases.is_due(self._schedule, now) for leases in group)
            if is_due and not self._renew(group):
                return

    def _groups(self) -> list[list[EngineLeases]]:
        """The leases that are renewed together: those of each busy engine, then those of all idle
        engines of a table. Rows stay locked until the end of a transaction, so busy engines have
        transactions of their own.
        """
        with self._lock:
            known = list(self._leases.values())
        shared = [each for each in known if each.is_idle and isinstance(each.source, JointRenewal)]
        single = [[each] for each in known if each not in shared]
        by_table = [
            [each for each in shared if each.is_mailbox is is_mailbox]
            for is_mailbox in (True, False)
        ]
        return [*single, *filter(None, by_table)]

    def _renew(self, group: Sequence[EngineLeases]) -> bool:
        """Renew the leases; whether the store has confirmed it."""
        requested_at = self._clock.boottime()
        counts = self._renewal_call.run(lambda: _renew_group(group, requested_at))
        if counts is None:
            return False
        for leases, rows in zip(group, counts, strict=True):
            if rows:
                self._events.emit(LeasesRenewed(engine=leases.engine, rows=rows))
        return True


def _renew_group(group: Sequence[EngineLeases], requested_at: float) -> list[int]:
    """Renew the leases of engines in one transaction. Returns the number of rows of each."""
    first, *others = group
    if not (others and isinstance(first.source, JointRenewal)):
        return [first.renew(requested_at)]
    counts = first.source.renew_owners(
        [each.owner for each in group], lease_seconds=WORKER_LEASE.lease_seconds
    )
    for leases, rows in zip(group, counts, strict=True):
        leases.record_renewal(requested_at, rows)
    return counts
