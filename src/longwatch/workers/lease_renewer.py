"""Renews the leases of worker processes in one store.

A worker process reports the locator of its claim source, by which its parent opens the same one.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, MutableMapping
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.engine import LeasesRenewed
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.engine.source_call import SourceCall
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.mailbox.url import open_source, open_store
from longwatch.workers.worker_record import RENEW_INTERVAL, WORKER_LEASE_SECONDS, EngineLeases

FLOW_KIND = "flow"


def open_claim_source(locator: Mapping[str, str], stores: MutableMapping[str, Any]) -> ClaimSource:
    """The source that `ClaimSource.locator` of another process describes; `stores` are those
    that are open, by URL.
    """
    if locator.get("kind") != FLOW_KIND:
        return open_source(locator, stores)
    from longwatch.workers.flow_lease_source import FlowLeaseSource  # noqa: PLC0415 - a parent of other loops does without

    url = locator["url"]
    if url not in stores:
        stores[url] = open_store(url)
    return FlowLeaseSource(stores[url])


class WorkerLeaseRenewer(Service):
    """One thread that renews what is due, one owner after another. A store that does not answer
    holds up nobody else's.
    """

    def __init__(self, *, clock: Clock, events: Events) -> None:
        super().__init__(name="worker-lease-renewer", clock=clock)
        policy = EnginePolicy(lease=LeasePolicy(WORKER_LEASE_SECONDS))
        engine_context = EngineContext("workers", policy, clock, events, Heartbeat(clock))
        self._events = events
        self._renew_call = SourceCall("renew", engine_context)
        self._leases: dict[int, EngineLeases] = {}
        self._lock = threading.Lock()
        self._not_before = 0.0
        cadence = Cadence(interval=RENEW_INTERVAL / 10)
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
        """Renew it no more, but for what is under way."""
        with self._lock:
            self._leases.pop(leases.owner, None)

    def _start(self) -> None:
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        return self._periodic.stop(deadline=deadline)

    def _run_once(self) -> None:
        now = self._clock.monotonic()
        if now < self._not_before:
            return
        with self._lock:
            due = [leases for leases in self._leases.values() if leases.is_due(now)]
        for leases in due:
            if not self._renew(leases):
                return

    def _renew(self, leases: EngineLeases) -> bool:
        requested_at = self._clock.monotonic()
        rows = self._renew_call.run(lambda: leases.renew(requested_at))
        self._not_before = (
            0.0 if rows is not None else self._clock.monotonic() + self._renew_call.retry_in
        )
        if rows:
            self._events.emit(LeasesRenewed(engine=leases.engine, rows=rows))
        return rows is not None
