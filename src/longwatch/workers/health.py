"""The health and metrics of all worker processes of one parent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.health import Aspect, Health, HealthCheck, HealthReason
from longwatch.engine.engine_loop import Gauge
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.service import Service
from longwatch.host.timed_reads import SCRAPE_READ_SECONDS, TimedReads
from longwatch.observe.counters import MetricSample
from longwatch.observe.metrics import exposition
from longwatch.runtime.health_checks import mailbox_gauges
from longwatch.runtime.store_gauges import read_gauges
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
        self._mailbox_reader = MailboxReader(clock)
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
        yield from self._mailbox_reader.samples(self._monitor)


class MailboxReader:
    """Reads the gauges of the mailboxes that workers claim from. For one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._reads: TimedReads[list[Gauge]] = TimedReads(
            name="worker-mailboxes", timeout=SCRAPE_READ_SECONDS, clock=clock
        )

    def samples(self, monitor: WorkerMonitor) -> list[MetricSample]:
        """Blocks on the stores for a few seconds at most. A store that does not answer has none."""
        by_store = monitor.mailbox_sources()
        found = self._reads.results(
            {url: partial(_read_mailboxes, sources) for url, sources in by_store.items()}
        )
        return [MetricSample(*gauge) for gauge in chain.from_iterable(found)]


def _read_mailboxes(sources: Mapping[str, Any]) -> list[Gauge]:
    return read_gauges(partial(_read_mailbox, name, source) for name, source in sources.items())


def _read_mailbox(name: str, source: Any) -> list[Gauge]:
    return mailbox_gauges(name, source.stats())
