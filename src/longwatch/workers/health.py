"""The health and metrics of all worker processes of one parent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.health import Aspect, Health, HealthCheck, HealthReason
from longwatch.errors import LongwatchError
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.service import Service
from longwatch.observe.counters import MetricSample
from longwatch.observe.metrics import exposition
from longwatch.runtime.health_checks import mailbox_gauges
from longwatch.workers.monitor import CHECK_INTERVAL, WorkerMonitor

_NOT_LIVE_AFTER = 30.0
"""Seconds without a round of the worker monitor after which this process is not live."""


class WorkersHealth(Service):
    """Health of all workers: ready when every process is ready, live while the worker monitor runs.
    Notifies systemd.
    """

    def __init__(self, monitor: WorkerMonitor, names: Sequence[str], *, clock: Clock) -> None:
        super().__init__(name="workers-health", clock=clock)
        self._monitor = monitor
        self._names = names
        self._notifier = notifier = SdNotifier.from_environment()
        self._health = Health(self.checks(), clock)
        self._has_been_ready = False
        beat_within = notifier.watchdog_seconds
        interval = CHECK_INTERVAL if beat_within is None else min(CHECK_INTERVAL, beat_within / 3)
        self._reporter = Periodic(
            self._report, Cadence(interval=interval), name="workers-health", clock=clock
        )

    def checks(self) -> Iterator[HealthCheck]:
        for name in self._names:
            yield HealthCheck(
                f"worker {name}",
                partial(self._worker_reason, name),
                frozenset({Aspect.READY}),
                quick=True,
            )
            yield HealthCheck(
                f"start of {name}",
                partial(self._start_reason, name),
                frozenset({Aspect.STARTED}),
                quick=True,
            )
        yield HealthCheck(
            "worker-monitor", self._monitor_reason, frozenset({Aspect.LIVE}), quick=True
        )

    def exposition(self) -> bytes:
        """The metrics page: the counts of all workers and the gauges of their mailboxes."""
        return exposition([*self._monitor.samples(), *self._gauges()])

    # --- the service contract ---

    @property
    def in_own_thread(self) -> bool:
        return self._reporter.in_own_thread

    def _start(self) -> None:
        if self._notifier.is_enabled:
            self._reporter.start()

    def _stop(self, deadline: Deadline) -> bool:
        self._notifier.stopping()
        return self._reporter.stop(deadline=deadline)

    def _report(self) -> None:
        if not self._has_been_ready and self._health.report(Aspect.READY).ok:
            self._has_been_ready = True
            self._notifier.ready(f"{len(self._names)} worker processes")
        if (
            self._notifier.watchdog_seconds is not None
            and self._monitor_reason() is HealthReason.OK
        ):
            self._notifier.beat()

    # --- health checks ---

    def _worker_reason(self, name: str) -> HealthReason:
        workers = [worker for worker in self._monitor.workers() if worker.program == name]
        return (
            workers[-1].reason_at(self._clock.boottime()) if workers else HealthReason.NOT_RUNNING
        )

    def _start_reason(self, name: str) -> HealthReason:
        return (
            HealthReason.NOT_STARTED
            if self._worker_reason(name) in {HealthReason.NOT_STARTED, HealthReason.NOT_RUNNING}
            else HealthReason.OK
        )

    def _monitor_reason(self) -> HealthReason:
        return (
            HealthReason.OK
            if self._monitor.heartbeat.elapsed() < _NOT_LIVE_AFTER
            else HealthReason.STALE
        )

    def _gauges(self) -> Iterator[MetricSample]:
        ready = self._health.report(Aspect.READY).ok
        yield MetricSample("longwatch_health_ready", (), float(ready))
        running = {worker.program for worker in self._monitor.workers()}
        for name in self._names:
            yield MetricSample("longwatch_worker_up", (name,), float(name in running))
        yield from mailbox_samples(self._monitor)


def mailbox_samples(monitor: WorkerMonitor) -> Iterator[MetricSample]:
    """The gauges of the mailboxes that workers claim from. Blocks on their stores. Mailboxes whose
    store does not answer are left out.
    """
    for name, source in monitor.mailbox_sources():
        try:
            stats = source.stats()
        except LongwatchError:
            continue
        yield from (MetricSample(*gauge) for gauge in mailbox_gauges(name, stats))
