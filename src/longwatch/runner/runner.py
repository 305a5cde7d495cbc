"""The runner: its parts, its start and its stop.

A start, in order: event loop and guardian → dispatch, which first kills survivors of an earlier
runner → connections → leases of the sources, whose holder connects them → sweeps.

A stop, under one deadline
    1. RunnerStopping is emitted. The runner is no longer ready and claims no more events.
    2. The streams are closed and the leases of the sources released. Another runner may take over.
    3. Runs have until shortly before the deadline to end.
    4. The rest gets SIGTERM, then SIGKILL. Their events go back to the queue.
    5. RunnerStopped is emitted with the last values of the metrics.
`kill` shortens step 3 to nothing.

One source that is down, or whose lease another runner holds, changes nothing for the others: each
connection is a separate task. A store that is down stops no connection and no run. Each part
retries by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.runner import RunnerStarted, RunnerStopped, RunnerStopping
from longwatch.host.guardian_client import GuardianClient
from longwatch.host.loop import EventLoopThread
from longwatch.host.periodic import Cadence, Periodic
from longwatch.host.service import Service
from longwatch.runner.connections import SourceConnections
from longwatch.runner.dispatch import Dispatcher
from longwatch.runner.event_store import EventStore
from longwatch.runner.health import LoopBeat, ProcessLimits, QueueDepths, RunnerHealth
from longwatch.runner.intake import Intake
from longwatch.runner.policy import AgentSpec, RunnerPolicy, SourceSpec
from longwatch.runner.work_breaker import WorkBreaker
from longwatch.store.database import CALL_TIMEOUT, Database

DEPTH_INTERVAL = 5.0
"""Seconds between two reads of the queue depths for readiness."""
END_SECONDS = 5.0
"""Seconds that a stop may take beyond the drain, for streams, guardian and idle threads."""
_LAST_READ_SECONDS = 1.0
"""The store timeout in seconds while the runner stops, for the last values of the metrics."""

MetricTotals = Callable[[], Mapping[str, float]]


class Runner(Service):
    """Connects event sources and runs an agent for each stream event, until it is stopped.

    `database` is a SQL store, which the caller closes. `settings` are shown at the start, masked by
    the caller. `totals` returns the last values of the metrics. With `subreaper` this process
    becomes a subreaper: only for a process that runs nothing else.
    """

    def __init__(  # noqa: PLR0913 - the runner and its environment, each by name
        self,
        database: Database,
        sources: Sequence[SourceSpec],
        agent: AgentSpec,
        policy: RunnerPolicy | None = None,
        *,
        clock: Clock | None = None,
        events: Events | None = None,
        settings: Mapping[str, object] | None = None,
        totals: MetricTotals = dict,
        limits: ProcessLimits | None = None,
        subreaper: bool = False,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(name="runner", clock=clock)
        self.events = events or Events()
        self.policy = policy = policy or RunnerPolicy()
        self.is_draining = False
        self._settings = settings or {}
        self._totals = totals
        self._signal = ""
        self._loop = EventLoopThread(name="longwatch-runner", clock=clock)
        self.guardian = GuardianClient(
            self._loop, clock=clock, events=self.events, subreaper=subreaper
        )
        self.breaker = WorkBreaker(
            failures=policy.work_breaker_failures,
            cooldown=policy.work_breaker_cooldown,
            clock=clock,
            events=self.events,
        )
        self.store = EventStore(database)
        self.intake = Intake(
            database,
            sources,
            policy,
            clock=clock,
            events=self.events,
            is_breaker_open=lambda: self.breaker.is_open,
        )
        self.dispatcher = Dispatcher(
            database,
            sources,
            agent,
            policy,
            clock=clock,
            events=self.events,
            breaker=self.breaker,
            loop=self._loop,
            guardian=self.guardian,
        )
        self.connections = SourceConnections(
            sources,
            policy,
            self.intake,
            self.store,
            loop=self._loop,
            clock=clock,
            events=self.events,
        )
        self.intake.leases.on_change = self.connections.hold
        names = frozenset(source.name for source in sources)
        self.depths = QueueDepths(
            lambda: {
                name: depth
                for name, depth in self.store.queue_depths(timeout=self._read_timeout()).items()
                if name in names
            },
            max_depth=policy.source_queue_size,
        )
        self.beat = LoopBeat(clock)
        self.health = self._make_health(limits)
        self._sweepers = (
            self._periodic("runner-queue-sweeper", self.intake.sweep, policy.queue_sweep_interval),
            self._periodic("runner-queue-depths", self.depths.refresh, DEPTH_INTERVAL),
        )
        self._beating: Future[None] | None = None

    def _make_health(self, limits: ProcessLimits | None) -> RunnerHealth:
        return RunnerHealth(
            beat=self.beat,
            active_connections=self.connections.active,
            is_breaker_open=lambda: self.breaker.is_open,
            full_queues=self.depths.full,
            is_draining=lambda: self.is_draining,
            has_started=lambda: self.started or self.is_draining,
            breaker_affects_readiness=self.policy.breaker_affects_readiness,
            limits=limits,
        )

    def shut_down(self, *, signal: str = "", timeout: float | None = None) -> bool:
        """Drain and stop. Return True if every part has stopped. `signal`: the reason for the log.
        `timeout`: the drain budget, None for that of the policy.
        """
        self._signal = signal
        budget = self.policy.shutdown_timeout if timeout is None else timeout
        return self.stop(timeout=budget)

    def kill(self) -> None:
        """End all runs now. Their events go back to the queue. For a stop that takes too long."""
        self.dispatcher.kill()

    def left(self) -> tuple[str, ...]:
        """The parts that have not stopped, by name."""
        return tuple(
            part.name
            for part in (
                self.connections,
                self.intake.leases,
                *self._sweepers,
                self.dispatcher,
                self.guardian,
                self._loop,
            )
            if not part.stopped
        )

    # --- the service ---

    def _start(self) -> None:
        self.is_draining = False
        with ExitStack() as undo:
            self._start_part(self._loop, undo)
            self._start_part(self.guardian, undo)
            self._beating = self._loop.spawn(self.beat.run())
            self.events.emit(RunnerStarted(settings=self._settings))
            for part in (self.dispatcher, self.connections, self.intake.leases, *self._sweepers):
                self._start_part(part, undo)
            undo.pop_all()

    def _start_part(self, part: Service, undo: ExitStack) -> None:
        part.start()
        undo.callback(part.stop, timeout=END_SECONDS)

    def _stop(self, deadline: Deadline) -> bool:
        began = self._clock.monotonic()
        in_flight = len(self.dispatcher.in_flight())
        self.is_draining = True
        signal, self._signal = self._signal, ""
        budget = deadline.remaining()
        self.events.emit(
            RunnerStopping(
                signal=signal,
                in_flight=in_flight,
                budget=self.policy.shutdown_timeout if budget is None else budget,
            )
        )
        self.dispatcher.drain()
        closing = Deadline.after(END_SECONDS, self._clock)
        streams_closed = self.connections.stop(deadline=closing)
        gone = [part.stop(deadline=closing) for part in (self.intake.leases, *self._sweepers)]
        drained = self.dispatcher.stop(deadline=deadline)
        interrupted = self.dispatcher.interrupted
        gone += [streams_closed, drained, self._stop_host()]
        self.events.emit(
            RunnerStopped(
                duration=self._clock.monotonic() - began,
                completed=max(in_flight - interrupted, 0),
                interrupted=interrupted,
                metrics=dict(self._totals()),
            )
        )
        return all(gone)

    def _stop_host(self) -> bool:
        """Stop the guardian, which ends every agent that is left, then the loop."""
        self.intake.close()
        if self._beating is not None:
            self._beating.cancel()
        deadline = Deadline.after(END_SECONDS, self._clock)
        stopped = self.guardian.stop(deadline=deadline)
        return self._loop.stop(deadline=deadline) and stopped

    def _read_timeout(self) -> float:
        return _LAST_READ_SECONDS if self.is_draining else CALL_TIMEOUT

    def _periodic(self, name: str, work: Callable[[], object], interval: float) -> Periodic:
        cadence = Cadence(interval=interval, jitter=0.2)
        return Periodic(work, cadence, name=name, clock=self._clock, events=self.events)
