"""`longwatch worker module:group`: worker processes, kept up, with this process as the parent that
keeps their leases.

The way of it: look at the group → open the logs → start parent and processes → answer for health →
supervise until a signal. SIGHUP restarts the processes one after another, each once its successor
is wanted: the others go on with the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from longwatch.app.console import Console, fill_standard_streams, make_state_directory
from longwatch.app.foreground import Foreground
from longwatch.app.run import require_program_name
from longwatch.app.startup_checks import working_directory
from longwatch.app.up import raise_open_file_limit
from longwatch.app.worker_plans import make_worker_plans
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import LogSettings
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.core.events.base import Event, Events
from longwatch.core.events.programs import CircuitBreakerTripped, ProgramEnded, ProgramStarted
from longwatch.core.events.supervisor import ConfigReloadRejected
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.health_server import HealthServer
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.program import EXIT_NEEDS_PERSON
from longwatch.supervisor.restart_policy import EndVerdict
from longwatch.supervisor.supervisor import Supervisor
from longwatch.workers.health import WorkersHealth
from longwatch.workers.parent import WorkerParent
from longwatch.workers.preflight import GroupInfo, inspect_group


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """What `longwatch worker` was asked for. A health port of None: the group's own. `env`: what
    its processes find in theirs.
    """

    import_path: str
    processes: int
    name: str
    health_port: int | None
    health_host: str | None
    state: Path | None
    log: LogSettings
    env: Mapping[str, str] = field(default_factory=dict)


def worker(options: WorkerOptions, environ: Mapping[str, str]) -> int:
    """Run the group in its processes until we are told to stop; the exit code to pass on."""
    fill_standard_streams()
    require_program_name(options.name)
    clock = SystemClock()
    if options.state is not None:
        make_state_directory(options.state)
    with (
        closing(Console(options.log, state=options.state, clock=clock, environ=environ)) as console,
        ExitStack() as undo,
    ):
        return _WorkerCommand(options, console, clock).run(environ, undo)


class _WorkerCommand:
    """The supervisor of worker processes, and what looks after them beside it."""

    def __init__(self, options: WorkerOptions, console: Console, clock: Clock) -> None:
        self._options = options
        self._console = console
        self._clock = clock
        self._events = Events(console.log)
        self._worker_parent = WorkerParent(
            state=options.state, log=options.log, clock=clock, events=self._events
        )

    def run(self, environ: Mapping[str, str], undo: ExitStack) -> int:
        options, clock = self._options, self._clock
        undo.callback(self._worker_parent.stop)
        settings = WorkerSettings(
            target=options.import_path, processes=options.processes, env=dict(options.env)
        )
        cwd = working_directory(None)
        info, plans = make_worker_plans(
            options.name,
            settings,
            base=cwd,
            environ=environ,
            worker_environment=self._worker_parent.environment_for,
        )
        names = [plan.name for plan in plans]
        undo.enter_context(
            _serving_health(
                options, info, WorkersHealth(self._worker_parent.monitor, names, clock=clock), clock
            )
        )
        supervisor = self._worker_parent.supervisor = self._make_supervisor(plans)
        exit_tracker = _ExitTracker(names, supervisor.shut_down)
        self._events.subscribe(exit_tracker)
        self._worker_parent.start()
        rolling = RollingRestart(
            supervisor,
            names,
            check=lambda: inspect_group(options.import_path, cwd=cwd, env=plans[0].process.env),
        )
        foreground = Foreground(supervisor, self._console, on_hangup=rolling.start)
        return foreground.run(names, {"target": options.import_path}) or exit_tracker.exit_code

    def _make_supervisor(self, plans: Sequence[ProgramPlan]) -> Supervisor:
        tagged = len(plans) > 1
        return Supervisor(
            plans,
            streams=lambda plan: self._console.tagged_streams(
                plan.name, plan.output, tag=f"{plan.name} | " if tagged else ""
            ),
            events=self._events,
            clock=self._clock,
            on_guardian_started=raise_open_file_limit,
            adopt=True,
        )


@contextmanager
def _serving_health(
    options: WorkerOptions, info: GroupInfo, health: WorkersHealth, clock: Clock
) -> Iterator[None]:
    """Health and metrics for all of them, on one port: the one that was asked for, else the
    group's own; and for systemd.
    """
    port = options.health_port if options.health_port is not None else info.health_port
    with ExitStack() as undo:
        if port is not None:
            host = options.health_host or info.health_host
            server = HealthServer(
                host=host, port=port, checks=health.checks(), metrics=health.exposition, clock=clock
            )
            server.start()
            undo.callback(server.stop)
        health.start()
        undo.callback(health.stop)
        yield


class _ExitTracker:
    """Hears how processes end. When all have come to a good end by themselves, or are given up,
    there is nothing left to do.

    One that fails too often is not the end of the others: they go on with the work.
    """

    def __init__(self, names: Sequence[str], on_all_ended: Callable[[], None]) -> None:
        self.exit_code = 0
        """What is to be passed on, if nothing else is: 1 if work was left behind at the end, 100
        if all were given up.
        """
        self._remaining = set(names)
        self._given_up: set[str] = set()
        self._on_all_ended = on_all_ended

    def __call__(self, event: Event) -> None:
        match event:
            case ProgramStarted():
                self._remaining.add(event.program)
                self._given_up.discard(event.program)
            case CircuitBreakerTripped():
                self._given_up.add(event.program)
                self._mark_ended(event.program)
            case ProgramEnded(verdict=EndVerdict.CLEAN_EXIT, restart=False):
                self._mark_ended(event.program)
            case ProgramEnded(
                verdict=EndVerdict.CONFIGURATION_ERROR | EndVerdict.FATAL_ERROR_NO_RESTART
            ):
                self._given_up.add(event.program)
                self._mark_ended(event.program)
            case ProgramEnded(
                verdict=EndVerdict.SHUTDOWN_COMPLETE, cause=EndCause(kind=EndKind.EXIT, number=code)
            ) if code:
                self.exit_code = max(self.exit_code, 1)

    def _mark_ended(self, program: str) -> None:
        self._remaining.discard(program)
        if not self._remaining:
            self.exit_code = EXIT_NEEDS_PERSON if self._given_up else self.exit_code
            self._on_all_ended()


class RollingRestart:
    """Restarts programs one after another, each when the one before it is ready. One round at a
    time.

    `check` raises if what they would run now cannot be run: then no program is restarted.
    """

    def __init__(
        self, supervisor: Supervisor, names: Sequence[str], *, check: Callable[[], object]
    ) -> None:
        self._supervisor = supervisor
        self._names = names
        self._check = check
        self._is_requested = False
        self._thread: BackgroundThread | None = None

    def start(self) -> None:
        """Begin a round; if one is under way, there is another after it."""
        self._is_requested = True
        if self._thread is None or self._thread.done.is_set():
            self._thread = BackgroundThread(self._loop, name="rolling-restart", report_errors=True)
            self._thread.start()

    def _loop(self) -> None:
        while self._is_requested:
            self._is_requested = False
            self._restart_all()

    def _restart_all(self) -> None:
        try:
            self._check()
            for name in self._names:
                self._supervisor.restart_programs(name, ready=True)
        except (
            LongwatchError
        ) as error:  # one that does not come up again: the others are left as they are
            self._supervisor.events.emit(ConfigReloadRejected(reason=str(error)))
