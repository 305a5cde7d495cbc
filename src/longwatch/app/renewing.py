"""Renews the leases of worker processes in one store."""

from __future__ import annotations

import threading

from longwatch.app.ward import LEASE, RENEW_EVERY, Kept
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events, LeasesRenewed
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.work.calls import SourceCall
from longwatch.work.policy import EnginePolicy, Surroundings


class Renewer(Service):
    """One thread that renews what is due, one owner after another. A store that does not answer
    holds up nobody else's.
    """

    def __init__(self, *, clock: Clock, events: Events) -> None:
        super().__init__(name="renewer", clock=clock)
        policy = EnginePolicy(lease=LeasePolicy(LEASE))
        around = Surroundings("workers", policy, clock, events, Heartbeat(clock))
        self._events = events
        self._renewing = SourceCall("renew", around)
        self._kept: dict[int, Kept] = {}
        self._lock = threading.Lock()
        self._not_before = 0.0
        cadence = Cadence(interval=RENEW_EVERY / 10)
        self._periodic = Periodic(self._once, cadence, name="renewer", clock=clock, events=events)

    @property
    def inside(self) -> bool:
        return self._periodic.inside

    def take(self, kept: Kept) -> None:
        with self._lock:
            self._kept[kept.owner] = kept
        self._periodic.wake()

    def drop(self, kept: Kept) -> None:
        """Renew it no more, but for what is under way."""
        with self._lock:
            self._kept.pop(kept.owner, None)

    def _start(self) -> None:
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        return self._periodic.stop(deadline=deadline)

    def _once(self) -> None:
        now = self._clock.monotonic()
        if now < self._not_before:
            return
        with self._lock:
            due = [kept for kept in self._kept.values() if kept.is_due(now)]
        for kept in due:
            if not self._renewed(kept):
                return

    def _renewed(self, kept: Kept) -> bool:
        asked = self._clock.monotonic()
        rows = self._renewing.make(lambda: kept.renew(asked))
        self._not_before = (
            0.0 if rows is not None else self._clock.monotonic() + self._renewing.retry_in
        )
        if rows:
            self._events.emit(LeasesRenewed(engine=kept.engine, rows=rows))
        return rows is not None
