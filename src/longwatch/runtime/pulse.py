"""The pulse of a group: now and then whoever supervises it is told how it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Event
from longwatch.host.parent import ParentLine
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.sdnotify import Notifier
from longwatch.host.service import Service
from longwatch.runtime.vitals import Gauge, Vitals

EVERY = 1.0


@runtime_checkable
class Measured(Protocol):
    """What counts events and can tell: `longwatch.observe.Metrics`."""

    def __call__(self) -> str | bytes: ...

    def observe(self, event: Event) -> None: ...

    def read(self, reading: Callable[[], Iterable[Gauge]]) -> Callable[[], None]: ...

    def samples(self) -> Sequence[tuple[str, tuple[str, ...], Any]]: ...


class Pulse(Service):
    """Beats for systemd or a supervisor, but only while every loop does; tells a parent how the
    loops are; notices stale ones.
    """

    def __init__(
        self,
        vitals: Vitals,
        notifier: Notifier,
        parent: ParentLine | None,
        *,
        measured: object = None,
        clock: Clock,
    ) -> None:
        super().__init__(name="pulse", clock=clock)
        self._vitals = vitals
        self._measured = measured if isinstance(measured, Measured) else None
        self._notifier = notifier
        self._parent = parent
        within = notifier.beat_within
        interval = EVERY if within is None else min(EVERY, within / 3)
        self._periodic = Periodic(self._once, Cadence(interval=interval), name="pulse", clock=clock)

    @property
    def inside(self) -> bool:
        return self._periodic.inside

    def _start(self) -> None:
        self._periodic.start()

    def _stop(self, deadline: Deadline) -> bool:
        """The last word is that of the end: what was counted by then is not lost."""
        stopped = self._periodic.stop(deadline=deadline)
        if stopped:
            self._once()
        return stopped

    def _once(self) -> None:
        self._vitals.notice()
        if self._notifier.beat_within is not None and self._vitals.is_fresh():
            self._notifier.beat()
        if self._parent is not None:
            self._parent.mention(
                "state", **self._state(), samples=self._measured.samples() if self._measured else []
            )

    def _state(self) -> dict[str, object]:
        report = self._vitals.readiness()
        return {
            "ready": report.ok,
            "failing": [f"{result.name}: {result.reason.value}" for result in report.failing],
            "loops": [
                {"name": member.name, "age": member.elapsed(), "holding": member.holding}
                for member in self._vitals.members
            ],
        }
