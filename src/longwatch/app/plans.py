"""Settings turned into the plans of the supervisor, and whether this machine has what they need.

The users, directories, commands and limits of all programs are checked before any is started, and
all faults are reported at once. The plans of a worker are those of its processes.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from longwatch.app.startup_checks import check_command, directory_problem
from longwatch.config.discovery import FILE_NAME
from longwatch.config.programs import ProcessSettings, ProgramSettings, WorkerSettings
from longwatch.config.runner import RunnerSettings
from longwatch.config.settings import RUNNER_PROGRAM, Settings
from longwatch.config.settings_reader import toml_key
from longwatch.config.tables import HealthSettings, LimitsSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.errors import ConfigError, Fault, UsageError
from longwatch.host.identity import login_environment, resolve_identity
from longwatch.host.process import ProcessSpec, ResourceLimits, StopPolicy
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.plan import OutputPolicy, ProgramKind, ProgramPlan, child_environment
from longwatch.supervisor.probes import (
    ExecProbe,
    HealthPolicy,
    HeartbeatProbe,
    HttpProbe,
    Probe,
    TcpProbe,
)

if TYPE_CHECKING:
    from longwatch.workers.preflight import GroupInfo

SHELL_EXAMPLE = '["sh", "-c", "…"]'

WorkerEnvironment = Callable[[int | None], Mapping[str, str]]
"""What worker processes of that user find in their environment."""

EXTRA_GRACE = 5.0
"""Seconds that a worker process has after its group's own shutdown_timeout before it is killed."""


def _no_variables(_: int | None) -> Mapping[str, str]:
    return {}


def make_plans(  # noqa: PLR0913 - the settings and their surroundings, each by name
    settings: Settings,
    *,
    base: Path,
    environ: Mapping[str, str],
    source: str = FILE_NAME,
    config: Path | None = None,
    worker_environment: WorkerEnvironment = _no_variables,
) -> dict[str, ProgramPlan]:
    """The programs of the file, by name; ConfigError with everything this machine does not have,
    and if there are none.

    Relative directories begin at `base`; `source` is what messages call the file and `config` its
    absolute path, which the runner reads. `worker_environment` returns the variables of the worker
    processes of a user.
    """
    if not (settings.program or settings.worker or settings.runner):
        raise ConfigError(
            Fault(
                source,
                "declares no program",
                'add one: [program.NAME], and below it command = ["…"]',
            )
        )
    builder = _PlanBuilder(settings, base, environ, source)
    planned = {name: builder.program(name, program) for name, program in settings.program.items()}
    for name, worker in settings.worker.items():
        planned |= {plan.name: plan for plan in builder.worker(name, worker, worker_environment)}
    if settings.runner is not None:
        planned[RUNNER_PROGRAM] = builder.runner(settings.runner, config or base / FILE_NAME)
    if builder.faults:
        raise builder.config_error()
    return planned


def make_plan(
    name: str, settings: ProcessSettings, process: ProcessSpec, health: HealthPolicy | None
) -> ProgramPlan:
    """What `[run]` and programs have in common."""
    backoff, breaker = settings.backoff, settings.breaker
    return ProgramPlan(
        name=name,
        process=process,
        restart=settings.restart_policy,
        backoff=BackoffPolicy(
            initial=backoff.initial,
            factor=backoff.factor,
            cap=backoff.cap,
            jitter=backoff.jitter,
            stable_after=settings.stable_after,
        ),
        breaker=BreakerPolicy(
            tolerated=breaker.restarts,
            window=breaker.window,
            cooldown=_none_if_off(breaker.cooldown),
        ),
        stop=StopPolicy(signal=settings.stop_signal_number, grace=settings.stop_grace),
        health=health,
    )


def process_spec(
    settings: ProcessSettings, argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> ProcessSpec:
    """What is started, without its streams; UsageError for a user that it cannot run as."""
    identity = None if settings.user is None else resolve_identity(settings.user)
    theirs = {} if identity is None else login_environment(identity)
    return ProcessSpec(
        argv=tuple(argv),
        env=child_environment(environ, {**theirs, **settings.env}),
        cwd=str(cwd),
        limits=ResourceLimits(
            memory=settings.limits.memory_bytes,
            open_files=settings.limits.open_files,
            nice=settings.limits.nice,
        ),
        identity=identity,
        umask=settings.umask_number,
    )


def health_policy(health: HealthSettings, *, port: int) -> HealthPolicy:
    """How a program is asked for its health; `port` is where, for those that are asked on one."""
    return HealthPolicy(
        probe=_probe(health, port),
        interval=health.interval,
        timeout=health.timeout,
        failures=health.failures,
        start_grace=health.start_grace,
        startup=_none_if_off(health.startup),
        startup_interval=health.startup_interval,
    )


def check_limits(limits: LimitsSettings) -> Iterator[Fault]:
    """What only root may grant."""
    if os.geteuid() == 0:
        return
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if (
        limits.open_files is not None
        and most != resource.RLIM_INFINITY
        and limits.open_files > most
    ):
        yield Fault(
            "limits.open_files",
            f"must not be more than {most}, our own hard limit",
            "lower it, or start as root",
        )
    best = min(os.getpriority(os.PRIO_PROCESS, 0), 20 - resource.getrlimit(resource.RLIMIT_NICE)[0])
    if limits.nice is not None and limits.nice < best:
        yield Fault(
            "limits.nice",
            f"must not be less than {best}, which is all that we may",
            "raise it, or start as root",
        )


def _probe(health: HealthSettings, port: int) -> Probe:
    match health.effective_kind:
        case "http":
            return HttpProbe(port=port, path=health.path)
        case "tcp":
            return TcpProbe(port=port)
        case "exec":
            return ExecProbe(command=tuple(health.argv))
        case "heartbeat":
            return HeartbeatProbe()


def _none_if_off(seconds: float | str) -> float | None:
    return None if isinstance(seconds, str) else seconds


class _PlanBuilder:
    """One pass over all programs, which collects what is wrong with them."""

    def __init__(
        self, settings: Settings, base: Path, environ: Mapping[str, str], source: str
    ) -> None:
        self.settings = settings
        self.base = base
        self.environ = environ
        self.source = source
        self.faults: list[Fault] = []
        self._notes: list[str] = []
        """What `--debug` shows beside the faults: tracebacks of users' code."""

    def program(self, name: str, program: ProgramSettings) -> ProgramPlan:
        cwd = self.base / (program.cwd or "")
        health = self._health(name)
        made = make_plan(name, program, self._process(name, program, cwd), health)
        self._check_machine(name, program, made.process.env, cwd)
        return replace(
            made,
            readiness=None
            if health is None and program.ready is Readiness.HEALTHY
            else program.ready,
            ready_timeout=_none_if_off(program.ready_timeout),
            depends_on=program.dependencies,
            critical=program.critical,
            output=OutputPolicy(
                console=program.log.console, max_bytes=program.log.max_bytes, keep=program.log.keep
            ),
            autostart=program.autostart,
        )

    def worker(
        self, name: str, worker: WorkerSettings, worker_environment: WorkerEnvironment
    ) -> list[ProgramPlan]:
        """The plans of its processes; none if there is a fault."""
        cwd = self.base / (worker.cwd or "")
        if problem := directory_problem(cwd):
            self._add_fault(
                name,
                "cwd",
                f"the working directory {str(cwd)!r} {problem}",
                "make it, or correct cwd",
                kind="worker",
            )
            return []
        for fault in check_limits(worker.limits):
            self._add_fault(name, fault.where, fault.problem, fault.cure, kind="worker")
        if worker.user is not None:
            with self._collecting_fault(name, "user", kind="worker") as refused:
                resolve_identity(worker.user)
            if refused:
                return []
        planned: list[ProgramPlan] = []
        with self._collecting_fault(name, "target", kind="worker"):
            _, planned = make_worker_plans(
                name,
                worker,
                base=self.base,
                environ=self.environ,
                worker_environment=worker_environment,
            )
        return planned

    def runner(self, runner: RunnerSettings, config: Path) -> ProgramPlan:
        from longwatch.app.runner_plan import runner_faults, runner_plan  # noqa: PLC0415 - only a file with a runner needs it

        found = [
            *runner_faults(runner, base=self.base, environ=self.environ),
            *(
                Fault(f"agent.{fault.where}", fault.problem, fault.cure)
                for fault in check_limits(runner.agent.limits)
            ),
        ]
        self.faults += [
            Fault(f"{self.source}: runner.{fault.where}", fault.problem, fault.cure)
            for fault in found
        ]
        return runner_plan(self.settings, config=config, environ=self.environ)

    def _process(self, name: str, program: ProgramSettings, cwd: Path) -> ProcessSpec:
        """As its user, or, so that the rest can be looked at, as ours if there is no such user."""
        with self._collecting_fault(name, "user") as refused:
            made = process_spec(program, program.argv, cwd=cwd, environ=self.environ)
        if refused:
            made = ProcessSpec(argv=program.argv, env=child_environment(self.environ, program.env))
        return made

    def _health(self, name: str) -> HealthPolicy | None:
        health = self.settings.effective_health(name)
        return (
            None
            if health is None
            else health_policy(health, port=self.settings.health_port(name) or 0)
        )

    def _check_machine(
        self, name: str, program: ProgramSettings, env: Mapping[str, str], cwd: Path
    ) -> None:
        """At the machine: can it be started there, by these names, within these limits?"""
        problem = directory_problem(cwd)
        if problem:
            self._add_fault(
                name,
                "cwd",
                f"the working directory {str(cwd)!r} {problem}",
                "make it, or correct cwd",
            )
        commands = {
            "command": program.argv,
            "health.command": program.health.argv if program.health else [],
        }
        for key, argv in commands.items():
            if argv and not (problem and _is_relative(argv[0])):
                with self._collecting_fault(name, key):
                    check_command(argv, cwd=cwd, env=env, shell_example=SHELL_EXAMPLE)
        for fault in check_limits(program.limits):
            self._add_fault(name, fault.where, fault.problem, fault.cure)

    def config_error(self) -> ConfigError:
        """All faults as one error."""
        error = ConfigError(*self.faults)
        for note in self._notes:
            error.add_note(note)
        return error

    @contextmanager
    def _collecting_fault(
        self, name: str, key: str, *, kind: str = "program"
    ) -> Iterator[list[UsageError]]:
        """What is refused inside is a fault of this key, and no reason to stop; the list has it
        afterwards.
        """
        refused: list[UsageError] = []
        try:
            yield refused
        except UsageError as error:
            refused.append(error)
            self._notes += getattr(error, "__notes__", ())
            self._add_fault(name, key, str(error), kind=kind)

    def _add_fault(
        self, name: str, key: str, problem: str, cure: str = "", *, kind: str = "program"
    ) -> None:
        self.faults.append(Fault(f"{self.source}: {kind}.{toml_key(name)}.{key}", problem, cure))


def _is_relative(program: str) -> bool:
    """Whether where it is depends on the directory it is started in."""
    return "/" in program and not program.startswith("/")


def make_worker_plans(
    name: str,
    worker: WorkerSettings,
    *,
    base: Path,
    environ: Mapping[str, str],
    worker_environment: WorkerEnvironment,
) -> tuple[GroupInfo, list[ProgramPlan]]:
    """Inspect the group of a worker and plan its processes; UsageError if it cannot run."""
    from longwatch.workers.preflight import WORKER_MODULE, inspect_group  # noqa: PLC0415 - only who has workers pays

    cwd = base / (worker.cwd or "")
    spec = process_spec(
        worker,
        (sys.executable, "-m", WORKER_MODULE, "run", worker.target),
        cwd=cwd,
        environ=environ,
    )
    info = inspect_group(worker.target, cwd=cwd, env=spec.env, identity=spec.identity)
    env = {**spec.env, **worker_environment(spec.identity.uid if spec.identity else None)}
    common = make_plan(name, worker, replace(spec, env=env), None)
    shared = replace(
        common,
        kind=ProgramKind.WORKER,
        stop=replace(common.stop, grace=worker.stop_grace or info.shutdown_timeout + EXTRA_GRACE),
        readiness=Readiness.NOTIFY,
        depends_on=worker.dependencies,
        critical=worker.critical,
        autostart=worker.autostart,
        output=OutputPolicy(
            console=worker.log.console, max_bytes=worker.log.max_bytes, keep=worker.log.keep
        ),
        group=name,
    )
    return info, [replace(shared, name=each) for each in worker.names(name)]
