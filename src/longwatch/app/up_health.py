"""The health and metrics port of `longwatch up`, one for all programs.

    /health/live    the supervisor's loop turns: it beats every few seconds
    /health/ready   every program that is wanted up is ready; `/readyz` names those that are not
    /metrics        counted events, the state and usage of every program, and the metrics of worker
                    processes and of the runner

A program is ready if the supervisor counts it as ready, and does not itself report a reason against
that, as a runner does whose event sources are unreachable. The status page never counts.

States come from one snapshot, taken on the supervisor's loop. A supervisor that does not answer in
a second is not ready, and its scrape has counters and no gauges of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from longwatch.app.usage_samples import UsageSamples
from longwatch.config.settings import Settings
from longwatch.core.breaker import BreakerState
from longwatch.core.clock import Clock
from longwatch.core.health import Aspect, HealthAnswer, HealthCheck, HealthReason
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.policy import suspect_names
from longwatch.errors import TryAgainError
from longwatch.host.health_server import HealthServer
from longwatch.host.periodic import Cadence, run_every
from longwatch.observe.counters import EventCounters, MergedSamples, MetricSample
from longwatch.observe.metrics import exposition
from longwatch.supervisor.lifecycle import ProgramState
from longwatch.supervisor.managed_program import ProgramStatus
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.probes import ProbeState
from longwatch.supervisor.restart_policy import EndVerdict
from longwatch.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from longwatch.workers.health import MailboxReader
    from longwatch.workers.monitor import WorkerMonitor

T = TypeVar("T")

ANSWER_TIMEOUT = 1.0
"""Seconds in which the supervisor must return a snapshot."""
_BEAT_INTERVAL = 5.0
_NOT_LIVE_AFTER = 30.0
"""Seconds without a beat of the supervisor's loop, or a check of the worker monitor."""
_MAX_NAMED = 20
"""Maximum number of programs in one answer."""
_PROBE_VALUES = {ProbeState.SUCCESS.value: 1.0, ProbeState.FAILED.value: 0.0}
_PROGRAMS, _THIS_PROCESS = range(2)
"""Whose samples are merged. The last value of a gauge counts."""


class _Snapshot(NamedTuple):
    """The state at one moment. `runtime_up` is None where no container needs a runtime."""

    programs: list[ProgramStatus]
    runtime_up: bool | None


class UpHealth:
    """Serves the health and metrics of one supervisor. Thread-safe.

    `settings` returns the settings in effect. `worker_monitor` returns the monitor of the Longwatch
    programs, None without any. `runtime_up` returns, on the supervisor's loop, whether the
    container runtime answers; None where none is needed.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        clock: Clock,
        settings: Callable[[], Settings],
        worker_monitor: Callable[[], WorkerMonitor | None],
        runtime_up: Callable[[], bool | None],
    ) -> None:
        self._supervisor = supervisor
        self._clock = clock
        self._settings = settings
        self._worker_monitor = worker_monitor
        self._runtime_up = runtime_up
        self._heartbeat = Heartbeat(clock)
        self._counters = EventCounters()
        self._usage = UsageSamples()
        self._mailbox_reader: MailboxReader | None = None

    @contextmanager
    def serving(self, *, host: str, port: int) -> Iterator[None]:
        """Serve health and metrics within the block. Enter it before the supervisor starts, and
        leave it after the supervisor has stopped. UsageError if the port cannot be opened.
        """
        server = HealthServer(
            host=host,
            port=port,
            checks=self.checks(),
            metrics=self.exposition,
            clock=self._clock,
            port_name="[supervisor] metrics_port",
        )
        with ExitStack() as undo:
            undo.callback(self._supervisor.events.subscribe(self._counters))
            server.start()
            undo.callback(server.stop)
            beating = self._supervisor.loop.spawn(self._beat())
            undo.callback(beating.cancel)
            yield

    async def _beat(self) -> None:
        """Beat on the supervisor's loop while it runs."""

        async def one() -> None:
            self._heartbeat.beat()

        cadence = Cadence(interval=_BEAT_INTERVAL)
        await run_every(cadence, one, name="supervisor heartbeat", clock=self._clock)

    def checks(self) -> Iterator[HealthCheck]:
        live, started = frozenset({Aspect.LIVE}), frozenset({Aspect.STARTED})
        yield HealthCheck("supervisor", self._loop_reason, live, quick=True)
        yield HealthCheck("worker-monitor", self._monitor_reason, live, quick=True)
        yield HealthCheck("supervisor-start", self._start_reason, started, quick=True)
        yield HealthCheck(
            "programs",
            self._readiness,
            frozenset({Aspect.READY}),
            timeout=2 * ANSWER_TIMEOUT,
        )

    def exposition(self) -> bytes:
        """The metrics page. Blocks on the supervisor for at most a second, and on the stores of
        workers for a few.
        """
        merged = MergedSamples()
        if (monitor := self._worker_monitor()) is not None:
            from longwatch.workers.health import MailboxReader  # noqa: PLC0415 - only with workers

            if self._mailbox_reader is None:
                self._mailbox_reader = MailboxReader(self._clock)
            samples, families = monitor.exported()
            merged.add_families(families)
            merged.update(_PROGRAMS, [*samples, *self._mailbox_reader.samples(monitor)])
        merged.update(_THIS_PROCESS, [*self._counters.samples(), *self._program_samples()])
        return exposition(merged.samples(), merged.families)

    # --- health ---

    def _loop_reason(self) -> HealthReason:
        return _heartbeat_reason(self._heartbeat)

    def _monitor_reason(self) -> HealthReason:
        monitor = self._worker_monitor()
        return HealthReason.OK if monitor is None else _heartbeat_reason(monitor.heartbeat)

    def _start_reason(self) -> HealthReason:
        has_started = self._supervisor.started or self._supervisor.is_shutting_down
        return HealthReason.OK if has_started else HealthReason.NOT_STARTED

    def _readiness(self) -> HealthReason | HealthAnswer:
        if self._supervisor.is_shutting_down:
            return HealthReason.DRAINING
        if not self._supervisor.started:
            return HealthReason.NOT_STARTED
        snapshot = self._take_snapshot()
        if snapshot is None:
            return HealthReason.UNREACHABLE
        if waiting := self._not_ready(snapshot):
            return HealthAnswer(HealthReason.FAILED, f"not ready: {_listed(waiting)}")
        return HealthReason.OK

    def _desired(self, programs: Iterable[ProgramStatus]) -> set[str]:
        """The names of the programs that should be up. Completed programs, processes for suspects
        and the status page do not count.
        """
        suspects = {name for group in self._settings().worker for name in suspect_names(group)}
        return {
            program["name"]
            for program in programs
            if program["desired"] == "up"
            and program["kind"] != ProgramKind.PAGE
            and not _is_completed(program)
        } - suspects

    def _not_ready(self, snapshot: _Snapshot) -> list[str]:
        """The programs that should be up and are not ready, each with its state or its own
        reason.
        """
        desired = self._desired(snapshot.programs)
        return [
            f"{program['name']} ({_obstacle(program)})"
            for program in snapshot.programs
            if program["name"] in desired and not program["ready"]
        ]

    # --- gauges ---

    def _program_samples(self) -> list[MetricSample]:
        """The state and usage of all programs; empty if the supervisor does not answer."""
        snapshot = self._take_snapshot()
        return [] if snapshot is None else [*self._gauges(snapshot), *self._usages()]

    def _gauges(self, snapshot: _Snapshot) -> list[MetricSample]:
        """The state of everything at one moment."""
        is_ready = not (self._supervisor.is_shutting_down or self._not_ready(snapshot))
        gauges = [MetricSample("longwatch_health_ready", (), float(is_ready))]
        if snapshot.runtime_up is not None:
            up = float(snapshot.runtime_up)
            gauges.append(MetricSample("longwatch_container_runtime_up", (), up))
        desired = self._desired(snapshot.programs)
        for program in snapshot.programs:
            name = program["name"]
            is_desired = float(name in desired)
            gauges.append(MetricSample("longwatch_program_desired", (name,), is_desired))
            gauges += program_gauges(program)
        return gauges

    def _usages(self) -> list[MetricSample]:
        """What the programs use; empty if that cannot be read in time."""
        measured = self._call(self._supervisor.commands.usage())
        return [] if measured is None else self._usage.update(measured)

    def _take_snapshot(self) -> _Snapshot | None:
        """The state of the supervisor; None if it does not run, or does not answer in time."""
        return self._call(self._read_snapshot())

    def _call(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of a call on the supervisor's loop; None if it does not run, or does not
        answer in time.
        """
        loop = self._supervisor.loop
        if not (self._supervisor.started and loop.started):  # a call would start the loop again
            work.close()
            return None
        try:
            return loop.call(work, timeout=ANSWER_TIMEOUT)
        except (TryAgainError, TimeoutError, CancelledError):
            return None

    async def _read_snapshot(self) -> _Snapshot:
        return _Snapshot(await self._supervisor.commands.status(), self._runtime_up())


def program_gauges(program: ProgramStatus) -> Iterator[MetricSample]:
    """The gauges of one program. A probe has a gauge once it has passed or failed."""
    name = program["name"]
    yield MetricSample("longwatch_program_up", (name,), float(program["up"]))
    yield MetricSample("longwatch_program_ready", (name,), float(program["ready"]))
    is_open = program["breaker"]["phase"] == BreakerState.OPEN
    yield MetricSample("longwatch_program_breaker_open", (name,), float(is_open))
    for probe, status in program["probes"].items():
        if (value := _PROBE_VALUES.get(status["state"])) is not None:
            yield MetricSample("longwatch_probe_success", (name, probe), value)


def _obstacle(program: ProgramStatus) -> str:
    """Why a program is not ready: its own reason, or its state."""
    return str(program["unready_reason"] or program["state"])


def _heartbeat_reason(heartbeat: Heartbeat) -> HealthReason:
    return HealthReason.OK if heartbeat.elapsed() < _NOT_LIVE_AFTER else HealthReason.STALE


def _is_completed(program: ProgramStatus) -> bool:
    """Whether the program has ended well by itself, and is not started again."""
    last_end = program["last_end"]
    return bool(
        program["state"] == ProgramState.ENDED
        and last_end
        and last_end["verdict"] == EndVerdict.CLEAN_EXIT
    )


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
