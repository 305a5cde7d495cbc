"""`longwatch up`: keeps the programs of a file up, with this process in the foreground or as PID 1.

In order: read the file → check the machine → open the logs → supervise until a signal → write out
the logs.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longwatch import __version__
from longwatch.app.console import Console, fill_standard_streams, make_state_directory
from longwatch.app.containers import AppContainers
from longwatch.app.foreground import Foreground, block_signals
from longwatch.app.page_plan import PageLinkPrinter, plan_page
from longwatch.app.plans import make_plans
from longwatch.app.startup_checks import busy_port_faults
from longwatch.app.worker_report import RUNNER_STORE, WORKERS_COMMAND, worker_report
from longwatch.config.discovery import LoadedConfig, load_config
from longwatch.config.settings import PAGE_PROGRAM, RUNNER_PROGRAM, masked_settings
from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.page import PageNotPlanned
from longwatch.errors import ConfigError, Fault, UsageError
from longwatch.observe.event_log import Record
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.plan import ProgramKind, ProgramPlan
from longwatch.supervisor.supervisor import Supervisor
from longwatch.supervisor.supervisor_lock import SupervisorLock
from longwatch.supervisor.target_factory import Streams

if TYPE_CHECKING:
    from longwatch.supervisor.containers.container_host import ContainerHost
    from longwatch.workers.monitor import WorkerMonitor
    from longwatch.workers.parent import WorkerParent

DAY = 86_400.0
FOREVER = 36_500 * DAY
_MAX_TAG_WIDTH = 16


def up(path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]) -> int:
    """Keep the programs of the file up until a stop signal. Returns the exit code."""
    fill_standard_streams()
    config_file = _ConfigFile(lambda: load_config(path, environ, flags), environ)
    loaded = config_file.loaded
    with closing(config_file):
        planned = config_file.plans(loaded)
        if loaded.state_dir is not None:
            make_state_directory(loaded.state_dir)
            SupervisorLock.acquire(
                loaded.state_dir
            ).release()  # a running supervisor also has our ports: report it first
        if faults := busy_port_faults(loaded.settings, source=loaded.display_path):
            raise ConfigError(*faults)
        clock = SystemClock()
        with closing(
            Console(
                loaded.settings.supervisor.log, state=loaded.state_dir, clock=clock, environ=environ
            )
        ) as console:
            config_file.log_to(console)
            return _supervise(planned, config_file, console, clock, environ)


def _supervise(
    planned: Mapping[str, ProgramPlan],
    config_file: _ConfigFile,
    console: Console,
    clock: SystemClock,
    environ: Mapping[str, str],
) -> int:
    supervisor = _make_supervisor(planned.values(), config_file, clock)
    config_file.attach(supervisor)
    config_file.open_logs(planned.values())
    config_file.on_reload = lambda: supervisor.set_shutdown_timeout(
        _shutdown_timeout(config_file.loaded)
    )
    _delete_old_logs(config_file.loaded, planned)
    settings = masked_settings(config_file.loaded.settings)
    foreground = Foreground(supervisor, console, on_hangup=supervisor.request_reload)
    with (
        _serving_health(config_file, supervisor, clock),
        _notifying_service_manager(supervisor, clock, environ),
    ):
        return foreground.run(planned, settings)


def _serving_health(
    config_file: _ConfigFile, supervisor: Supervisor, clock: SystemClock
) -> AbstractContextManager[None]:
    """Serve health and metrics within the block, if the file names a port."""
    asked = config_file.loaded.settings.supervisor
    if asked.metrics_port == "off":
        return nullcontext()
    from longwatch.app.up_health import UpHealth  # noqa: PLC0415 - only for a file with a metrics port

    health = UpHealth(
        supervisor,
        clock=clock,
        settings=lambda: config_file.loaded.settings,
        worker_monitor=config_file.worker_monitor,
        runtime_up=config_file.runtime_up,
    )
    block_signals()  # they are the main thread's business, not that of the threads of the server
    return health.serving(host=asked.metrics_host, port=asked.metrics_port)


def _notifying_service_manager(
    supervisor: Supervisor, clock: SystemClock, environ: Mapping[str, str]
) -> AbstractContextManager[None]:
    """Report to systemd within the block, if it has started this process."""
    if not environ.get("NOTIFY_SOCKET"):
        return nullcontext()
    from longwatch.app.up_notify import notifying_service_manager  # noqa: PLC0415 - only below a service manager

    block_signals()  # they are the main thread's business, not that of the supervisor's loop
    return notifying_service_manager(supervisor, environ=environ, clock=clock)


def _make_supervisor(
    planned: Iterable[ProgramPlan], config_file: _ConfigFile, clock: SystemClock
) -> Supervisor:
    asked = config_file.loaded.settings.supervisor
    return Supervisor(
        planned,
        state_dir=config_file.loaded.state_dir,
        command="up",
        streams=config_file.streams,
        events=config_file.events,
        clock=clock,
        plan_source=config_file.reload,
        shutdown_timeout=_shutdown_timeout(config_file.loaded),
        forget_after=FOREVER if asked.keep_days == "off" else asked.keep_days * DAY,
        extra_status={"version": __version__},
        extra_requests={WORKERS_COMMAND: config_file.worker_report},
        on_guardian_started=raise_open_file_limit,
        subreaper=True,
        container_host=config_file.container_host,
        refresh_plans=config_file.refresh,
    )


def _shutdown_timeout(loaded: LoadedConfig) -> float | None:
    asked = loaded.settings.supervisor.shutdown_timeout
    return None if asked == "off" else asked


class _ConfigFile:
    """The settings file as it was last read."""

    def __init__(self, load: Callable[[], LoadedConfig], environ: Mapping[str, str]) -> None:
        self.loaded = load()
        self.on_reload: Callable[[], None] = lambda: None
        """Called after each successful reload."""
        self.events = Events()
        self.supervisor: Supervisor | None = None
        self._worker_parent: WorkerParent | None = None
        self._container_host: ContainerHost | None = None
        self._console: Console | None = None
        self._load = load
        self._environ = environ
        self._containers = AppContainers(environ=environ, events=self.events)
        self._file_plans: dict[str, ProgramPlan] = {}
        """The plans of the file, without the agents of its registry."""
        self._page_problem: PageNotPlanned | None = None

    def log_to(self, console: Console) -> None:
        """Emit all events to this console from now on."""
        self._console = console
        self.events.subscribe(console.log)
        self._report_page()
        self._containers.report()

    def _report_page(self) -> None:
        if self._page_problem is not None:
            self.events.emit(self._page_problem)

    def reload(self) -> Iterable[ProgramPlan]:
        """Read the file again and return its plans. Raises ConfigError, and then
        changes nothing.
        """
        loaded = self._load()
        if faults := [*_fixed_setting_faults(self.loaded, loaded)]:
            raise ConfigError(*faults)
        planned = self.plans(loaded)
        self.open_logs(planned.values())
        self.loaded = loaded
        self._report_page()
        self.on_reload()
        return planned.values()

    def open_logs(self, planned: Iterable[ProgramPlan]) -> None:
        """Open the log files of programs here, so that the loop does not wait for the disk."""
        assert self._console is not None
        for plan in planned:
            self._console.open_program_log(plan.name, plan.output)

    def plans(self, loaded: LoadedConfig) -> dict[str, ProgramPlan]:
        """The plans of the file and of the agents in its registry."""
        planned = make_plans(
            loaded.settings,
            base=loaded.base_dir,
            environ=self._environ,
            source=loaded.display_path,
            config=loaded.absolute_path,
            worker_environment=self._worker_environment,
            connect=self._connected,
        )
        self._containers.configure(loaded)
        page, not_planned = plan_page(loaded, self._environ, taken=_taken_names(loaded, planned))
        if page is not None:
            planned[page.name] = self._connected(page, page.kind)
        self._page_problem = not_planned
        self._file_plans = planned
        return {**planned, **self._containers.agents(taken={*planned})}

    def refresh(self) -> list[ProgramPlan]:
        """The plans of the file as last read, with the agents of the registry at this moment."""
        agents = self._containers.agents(taken={*self._file_plans})
        planned = [*self._file_plans.values(), *agents.values()]
        with suppress(UsageError):  # `streams` does without a file then, and reports it
            self.open_logs(planned)
        return planned

    def container_host(self) -> ContainerHost:
        """The connection to the container runtime."""
        self._container_host = self._containers.make_host(self.loaded, SystemClock())
        return self._container_host

    def runtime_up(self) -> bool | None:
        """Whether the container runtime answers; None if no container has needed it."""
        if self._container_host is None or not self.loaded.settings.has_containers:
            return None
        return self._container_host.is_known

    def worker_monitor(self) -> WorkerMonitor | None:
        """The monitor of Longwatch programs; None while the file has neither worker nor runner."""
        return None if self._worker_parent is None else self._worker_parent.monitor

    def worker_report(self) -> dict[str, Any]:
        """The answer to the control command `workers`."""
        runner = self.loaded.settings.runner
        if runner is None:
            return worker_report(self.worker_monitor())
        from longwatch.app.runner_plan import store_url  # noqa: PLC0415 - only for a file with a runner

        url = store_url(runner.store_url, self.loaded.base_dir)
        return worker_report(self.worker_monitor(), [(url, RUNNER_STORE)])

    def _connected(self, plan: ProgramPlan, kind: ProgramKind) -> ProgramPlan:
        """The plan of a Longwatch program, such that it relays its events and reports its state."""
        return self._open_worker_parent().connect(plan, kind)

    def _worker_environment(self, uid: int | None) -> Mapping[str, str]:
        """The environment of worker processes."""
        return self._open_worker_parent().environment_for(uid)

    def _open_worker_parent(self) -> WorkerParent:
        """The parent of workers, the runner and the page. The first of them creates it."""
        if self._worker_parent is None:
            from longwatch.workers.parent import WorkerParent  # noqa: PLC0415 - needed only with them

            log = self.loaded.settings.supervisor.log
            state = self.loaded.state_dir
            self._worker_parent = WorkerParent(
                state=state,
                log=log,
                clock=SystemClock(),
                events=self.events,
                on_records=self._log_relayed,
                counts_events=False,
            )
            if self.supervisor is not None:
                self._worker_parent.attach(self.supervisor)
            self._worker_parent.start()
        return self._worker_parent

    def _log_relayed(self, records: Sequence[Record]) -> None:
        if self._console is not None:
            self._console.log_relayed(records)

    def attach(self, supervisor: Supervisor) -> None:
        """Connect the parent of workers and the registry with the supervisor, now or when they
        exist.
        """
        self.supervisor = supervisor
        if self._console is not None and self.loaded.state_dir is not None and os.isatty(2):
            write = self._console.err.write
            supervisor.add_listener(
                PageLinkPrinter(self.loaded.state_dir, write, clock=SystemClock())
            )
        self._containers.follow(supervisor, self.refresh)
        if self._worker_parent is not None:
            self._worker_parent.attach(supervisor)

    def close(self) -> None:
        if self._worker_parent is not None:
            self._worker_parent.stop()
        self._containers.close()

    def streams(self, plan: ProgramPlan) -> Streams:
        """The streams of a program."""
        settings = self.loaded.settings
        names = [
            plan.name,
            *settings.program,
            *settings.container,
            *(each for name, worker in settings.worker.items() for each in worker.names(name)),
            *([RUNNER_PROGRAM] if settings.runner is not None else ()),
            *([PAGE_PROGRAM] if PAGE_PROGRAM in self._file_plans else ()),
        ]
        widest = min(max(map(len, names)), _MAX_TAG_WIDTH)
        assert self._console is not None
        streams = self._console.tagged_streams(
            plan.name,
            plan.output,
            tag=f"{plan.name:<{widest}} | ",
            is_worker=plan.kind is ProgramKind.WORKER,
        )
        return streams._replace(since=partial(self._last_logged, plan.name))

    def _last_logged(self, name: str) -> float:
        """The time at which its log file was last written, else now. The output of an adopted
        container is copied from there on.
        """
        try:
            assert self.loaded.state_dir is not None
            return (self.loaded.state_dir / "logs" / f"{name}.log").stat().st_mtime
        except (AssertionError, OSError):
            return time.time()


def _taken_names(loaded: LoadedConfig, planned: Collection[str]) -> set[str]:
    """The names of programs, and of workers, which stand for their processes."""
    return {*planned, *loaded.settings.taken_names}


def _fixed_setting_faults(present: LoadedConfig, found: LoadedConfig) -> Iterator[Fault]:
    """Yield a fault for each changed setting that a reload cannot change."""
    was, now = present.settings.supervisor, found.settings.supervisor
    for key, is_same in (
        ("state_dir", found.state_dir == present.state_dir),
        ("supervisor.metrics_port", now.metrics_port == was.metrics_port),
        ("supervisor.metrics_host", now.metrics_host == was.metrics_host),
    ):
        if not is_same:
            yield Fault(
                f"{found.display_path}: {key}",
                "cannot change while we run",
                "put it back, or stop `longwatch up` and start it again",
            )


def raise_open_file_limit() -> None:
    """Raise the limit of open files to the hard limit. Called after the guardian has started:
    children keep the former limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _delete_old_logs(loaded: LoadedConfig, known: Collection[str]) -> None:
    """Delete log files of removed programs that were not written for as long as their records are
    kept.
    """
    days = loaded.settings.supervisor.keep_days
    if loaded.state_dir is None or days == "off":
        return
    for path in (loaded.state_dir / "logs").glob("*.log*"):
        if path.name.partition(".log")[0] in {*known, SUPERVISOR_LOG}:
            continue
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > days * DAY:
                path.unlink()
