"""Reports the state of a group, at intervals, to its parent and to systemd."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Event
from longwatch.engine.engine_loop import Gauge
from longwatch.host.parent_channel import REPORT_SECONDS, ParentChannel
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.sdnotify import SdNotifier
from longwatch.host.service import Service
from longwatch.runtime.health_checks import GroupHealth


@runtime_checkable
class EventMetrics(Protocol):
    """Counts events and returns the counts: `longwatch.observe.Metrics`."""

    def __call__(self) -> str | bytes: ...

    def observe(self, event: Event) -> None: ...

    def add_gauges(self, reader: Callable[[], Iterable[Gauge]]) -> Callable[[], None]: ...

    def samples(self) -> Sequence[tuple[str, tuple[str, ...], Any]]: ...


class StatusReporter(Service):
    """Notifies systemd or a supervisor while every loop beats, reports the state of the loops to a
    parent, and emits stale loops.
    """

    def __init__(
        self,
        health: GroupHealth,
        notifier: SdNotifier,
        parent: ParentChannel | None,
        *,
        metrics: object = None,
        clock: Clock,
    ) -> None:
        super().__init__(name="status-reporter", clock=clock)
        self._health = health
        self._metrics = metrics if isinstance(metrics, EventMetrics) else None
        self._notifier = notifier
        self._parent = parent
        within = notifier.watchdog_seconds
        interval = REPORT_SECONDS if within is None else min(REPORT_SECONDS, within / 3)
        self._periodic = Periodic(
            self._report, Cadence(interval=interval), name="status-reporter", clock=clock
        )

    @property
    def in_own_thread(self) -> bool:
        return self._periodic.in_own_thread

    def _start(self) -> None:
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        """Send a last report, so that no count is lost."""
        stopped = self._periodic.stop(deadline=deadline)
        if stopped:
            self._report()
        return stopped

    def _report(self) -> None:
        self._health.emit_changes()
        if self._notifier.watchdog_seconds is not None and self._health.all_beating():
            self._notifier.beat()
        if self._parent is not None:
            self._parent.try_send(
                "state", **self._status(), samples=self._metrics.samples() if self._metrics else []
            )

    def _status(self) -> dict[str, object]:
        report = self._health.readiness()
        return {
            "ready": report.ok,
            "failing": [f"{result.name}: {result.reason.value}" for result in report.failing],
            "loops": [
                {"name": runner.name, "age": runner.elapsed(), "holding": runner.held_count}
                for runner in self._health.runners
            ],
        }
