"""`longwatch worker module:group`: supervises worker processes and renews their leases.

In order: open the logs → inspect the group → serve health → start the parent and the processes →
supervise until a signal, or until all workers are done. SIGHUP restarts the processes one after
another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from longwatch import __version__
from longwatch.app.console import Console, fill_standard_streams, usable_state_directory
from longwatch.app.foreground import Foreground
from longwatch.app.plans import make_worker_plans
from longwatch.app.run import require_program_name
from longwatch.app.startup_checks import working_directory
from longwatch.app.up import raise_open_file_limit
from longwatch.app.worker_report import WORKERS_COMMAND, worker_report
from longwatch.config.programs import WorkerSettings
from longwatch.config.settings import DEFAULT_STATE_DIR, LogSettings
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.host.health_server import HealthServer
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.supervisor import Supervisor
from longwatch.workers.exit_code import ExitTracker
from longwatch.workers.health import WorkersHealth
from longwatch.workers.parent import WorkerParent
from longwatch.workers.preflight import GroupInfo, inspect_group
from longwatch.workers.rolling_restart import RollingRestart


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of `longwatch worker`. A health port of None: that of the group. `env` is added
    to the environment of its processes.
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
    """Run the group in its processes until a signal. Returns the exit code."""
    fill_standard_streams()
    require_program_name(options.name)
    clock = SystemClock()
    state, problem = usable_state_directory(
        options.state, is_default=options.state == Path(DEFAULT_STATE_DIR)
    )
    options = replace(options, state=state)
    with (
        closing(Console(options.log, state=options.state, clock=clock, environ=environ)) as console,
        ExitStack() as undo,
    ):
        notices = [problem] if problem else []
        return _WorkerCommand(options, console, clock).run(environ, undo, notices)


class _WorkerCommand:
    """The wiring: supervisor, parent, health, exit code and rolling restart."""

    def __init__(self, options: WorkerOptions, console: Console, clock: Clock) -> None:
        self._options = options
        self._console = console
        self._clock = clock
        self._events = Events(console.log)
        self._worker_parent = WorkerParent(
            state=options.state,
            log=options.log,
            clock=clock,
            events=self._events,
            on_records=console.log_relayed,
        )

    def run(self, environ: Mapping[str, str], undo: ExitStack, notices: Sequence[Event]) -> int:
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
        supervisor = self._make_supervisor(plans)
        self._worker_parent.attach(supervisor)
        exit_tracker = ExitTracker(names, on_all_done=supervisor.shut_down)
        supervisor.add_listener(exit_tracker)
        self._worker_parent.start()
        rolling = RollingRestart(
            supervisor,
            names,
            group=options.name,
            check=lambda: inspect_group(options.import_path, cwd=cwd, env=plans[0].process.env),
        )
        foreground = Foreground(
            supervisor,
            self._console,
            on_hangup=rolling.start,
            exit_code=lambda: exit_tracker.exit_code,
            notices=notices,
        )
        return foreground.run(names, {"target": options.import_path})

    def _make_supervisor(self, plans: Sequence[ProgramPlan]) -> Supervisor:
        tagged = len(plans) > 1
        for plan in plans:
            self._console.open_program_log(plan.name, plan.output)
        return Supervisor(
            plans,
            state_dir=self._options.state,
            command="worker",
            shares_state_dir=True,
            extra_status={"version": __version__},
            extra_requests={WORKERS_COMMAND: lambda: worker_report(self._worker_parent.monitor)},
            streams=lambda plan: self._console.tagged_streams(
                plan.name, plan.output, tag=f"{plan.name} | " if tagged else "", is_worker=True
            ),
            events=self._events,
            clock=self._clock,
            on_guardian_started=raise_open_file_limit,
            subreaper=True,
        )


@contextmanager
def _serving_health(
    options: WorkerOptions, info: GroupInfo, health: WorkersHealth, clock: Clock
) -> Iterator[None]:
    """Serve health and metrics of all workers on the port of the options, else on that of the
    group. Reports to systemd.
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
