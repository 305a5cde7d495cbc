"""How the worker processes of one parent are, all together: for its health port, its metrics,
and whoever supervises it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from longwatch.app.overseer import LOOK_EVERY, Overseer
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.health import Aspect, Check, Health, Reason
from longwatch.errors import LongwatchError
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.sdnotify import Notifier
from longwatch.host.service import Service
from longwatch.observe.metrics import exposition
from longwatch.observe.tally import Sample
from longwatch.runtime.vitals import mailbox_gauges

_DEAD_AFTER = 30.0
"""Seconds without a round of the overseer after which this process is not live."""


class WorkersHealth(Service):
    """Ready is when every process is; live when somebody looks after them. Tells systemd, if
    that listens.
    """

    def __init__(self, overseer: Overseer, names: Sequence[str], *, clock: Clock) -> None:
        super().__init__(name="workers-health", clock=clock)
        self._overseer = overseer
        self._names = names
        self._notifier = notifier = Notifier.from_environment()
        self._health = Health(self.checks(), clock)
        self._has_been_ready = False
        within = notifier.beat_within
        interval = LOOK_EVERY if within is None else min(LOOK_EVERY, within / 3)
        self._telling = Periodic(
            self._report, Cadence(interval=interval), name="workers-health", clock=clock
        )

    def checks(self) -> Iterator[Check]:
        for name in self._names:
            yield Check(
                f"worker {name}", partial(self._worker, name), frozenset({Aspect.READY}), quick=True
            )
            yield Check(
                f"start of {name}",
                partial(self._started, name),
                frozenset({Aspect.STARTED}),
                quick=True,
            )
        yield Check("overseer", self._overseen, frozenset({Aspect.LIVE}), quick=True)

    def exposition(self) -> bytes:
        """What all of them count, and how their mailboxes stand."""
        return exposition([*self._overseer.samples(), *self._gauges()])

    # --- the service contract ---

    @property
    def inside(self) -> bool:
        return self._telling.inside

    def _start(self) -> None:
        if self._notifier.is_heard:
            self._telling.start()

    def _stop(self, deadline: Deadline) -> bool:
        self._notifier.stopping()
        return self._telling.stop(deadline=deadline)

    def _report(self) -> None:
        if not self._has_been_ready and self._health.report(Aspect.READY).ok:
            self._has_been_ready = True
            self._notifier.ready(f"{len(self._names)} worker processes")
        if self._notifier.beat_within is not None and self._overseen() is Reason.OK:
            self._notifier.beat()

    # --- what is asked ---

    def _worker(self, name: str) -> Reason:
        wards = [ward for ward in self._overseer.wards() if ward.program == name]
        if not wards:
            return Reason.NOT_RUNNING
        reason = wards[-1].reason
        return (
            Reason.UNREACHABLE
            if reason is Reason.OK and wards[-1].is_out_of_reach(self._clock.monotonic())
            else reason
        )

    def _started(self, name: str) -> Reason:
        return (
            Reason.NOT_STARTED
            if self._worker(name) in {Reason.NOT_STARTED, Reason.NOT_RUNNING}
            else Reason.OK
        )

    def _overseen(self) -> Reason:
        return Reason.OK if self._overseer.heartbeat.elapsed() < _DEAD_AFTER else Reason.STALE

    def _gauges(self) -> Iterator[Sample]:
        ready = self._health.report(Aspect.READY).ok
        yield Sample("longwatch_health_ready", (), float(ready))
        running = {ward.program for ward in self._overseer.wards()}
        for name in self._names:
            yield Sample("longwatch_worker_up", (name,), float(name in running))
        for name, source in self._overseer.sources():
            try:
                stats = source.stats()
            except LongwatchError:
                continue
            yield from (Sample(*gauge) for gauge in mailbox_gauges(name, stats))
