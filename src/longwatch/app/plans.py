"""Turns settings into plans of the supervisor, and checks that this machine has what they need.

The users, directories, commands and limits of all programs are checked before any is started, and
all faults are reported at once. A worker has one plan for each of its processes. `container_plans`
makes those of containers.
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

from longwatch.app.probe_plans import declared_probes, make_probe
from longwatch.app.startup_checks import check_command, directory_problem, script_problem
from longwatch.config.containers import ContainerSettings
from longwatch.config.discovery import FILE_NAME
from longwatch.config.programs import (
    ManagedSettings,
    ProcessSettings,
    ProgramSettings,
    WorkerSettings,
)
from longwatch.config.runner import RunnerSettings
from longwatch.config.settings import RUNNER_PROGRAM, Settings
from longwatch.config.settings_reader import toml_key
from longwatch.config.tables import HealthSettings, LimitsSettings, OutputSettings
from longwatch.core.backoff import BackoffPolicy
from longwatch.core.breaker import BreakerPolicy
from longwatch.errors import ConfigError, Fault, UsageError
from longwatch.host.identity import login_environment, resolve_identity
from longwatch.host.process import ProcessSpec, ResourceLimits, StopPolicy
from longwatch.supervisor.containers.container_spec import ContainerSpec
from longwatch.supervisor.dependencies import Readiness
from longwatch.supervisor.plan import OutputPolicy, ProgramKind, ProgramPlan, child_environment
from longwatch.supervisor.probes import NO_PROBES, ProbePolicy, ProbeSet, StartupPolicy

if TYPE_CHECKING:
    from longwatch.supervisor.containers.agent_registry import RegistryDefaults
    from longwatch.workers.preflight import GroupInfo

SHELL_EXAMPLE = '["sh", "-c", "…"]'

WorkerEnvironment = Callable[[int | None], Mapping[str, str]]
"""Returns the environment variables of the worker processes of a user."""

Connect = Callable[[ProgramPlan, ProgramKind], ProgramPlan]
"""Returns the plan of a Longwatch program of this kind, such that it reports to its parent."""

EXTRA_GRACE = 5.0
"""Seconds between the end of a group's shutdown_timeout and the kill of its worker process."""


def _no_variables(_: int | None) -> Mapping[str, str]:
    return {}


def _unconnected(plan: ProgramPlan, kind: ProgramKind) -> ProgramPlan:
    return replace(plan, kind=kind)


def make_plans(  # noqa: PLR0913 - the settings and their surroundings, each by name
    settings: Settings,
    *,
    base: Path,
    environ: Mapping[str, str],
    source: str = FILE_NAME,
    config: Path | None = None,
    worker_environment: WorkerEnvironment = _no_variables,
    connect: Connect = _unconnected,
) -> dict[str, ProgramPlan]:
    """The plans of the programs and containers of the file, by name. Raises ConfigError with all
    faults, also if there is no program. The agents of a registry are not among them.

    Relative directories begin at `base`. `source` is the name of the file in messages, `config` its
    absolute path, which the runner reads. `worker_environment` returns the variables of the worker
    processes of a user. `connect` makes the runner report to this process.
    """
    if not settings.keeps_anything_up:
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
    if settings.has_containers:
        planned |= builder.containers()
    if settings.runner is not None:
        runner = builder.runner(settings.runner, config or base / FILE_NAME)
        planned[RUNNER_PROGRAM] = connect(runner, ProgramKind.RUNNER)
    if builder.faults:
        raise builder.config_error()
    return planned


def make_plan(
    name: str,
    settings: ManagedSettings,
    spec: ProcessSpec | ContainerSpec,
    probes: ProbeSet = NO_PROBES,
) -> ProgramPlan:
    """Make a plan from the settings that `[run]`, programs, workers and containers share."""
    backoff, breaker = settings.backoff, settings.breaker
    return ProgramPlan(
        name=name,
        spec=spec,
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
        probes=probes,
    )


def make_declared_plan(
    name: str,
    settings: ProgramSettings | ContainerSettings,
    spec: ProcessSpec | ContainerSpec,
    probes: ProbeSet,
) -> ProgramPlan:
    """Make a plan from the settings that `[program.NAME]` and `[container.NAME]` share."""
    return replace(
        make_plan(name, settings, spec, probes),
        readiness=_readiness(settings.ready, probes),
        ready_timeout=_none_if_off(settings.ready_timeout),
        depends_on=settings.dependencies,
        critical=settings.critical,
        output=_output_policy(settings.log),
        autostart=settings.autostart,
    )


def process_spec(
    settings: ProcessSettings, argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str]
) -> ProcessSpec:
    """The process to start, without its streams. Raises UsageError for a user that it cannot run
    as.
    """
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


def health_probes(health: HealthSettings, *, port: int) -> ProbeSet:
    """The probes that a `health` table declares: liveness, and with `startup` a startup probe that
    asks the same. `port` is for kinds that need one.
    """
    probe, startup = make_probe(health, port), _none_if_off(health.startup)
    return ProbeSet(
        liveness=ProbePolicy(
            probe=probe,
            interval=health.interval,
            timeout=health.timeout,
            failures=health.failures,
            start_grace=health.start_grace,
        ),
        startup=None
        if startup is None
        else StartupPolicy(
            probe=probe,
            within=startup,
            interval=health.startup_interval,
            timeout=health.timeout,
        ),
    )


def bind_roots(settings: Settings, base: Path) -> tuple[Path, ...]:
    """The directories below which containers may bind files."""
    return tuple(base / root for root in settings.containers.bind_roots)


def registry_defaults(settings: Settings, base: Path) -> RegistryDefaults:
    """The settings that apply to every agent of the registry."""
    from longwatch.supervisor.containers.agent_registry import RegistryDefaults  # noqa: PLC0415 - only a file with a registry needs it

    return RegistryDefaults(
        bind_roots=bind_roots(settings, base),
        pull=settings.containers.pull,
        stop_on_exit=settings.containers.stop_on_exit,
    )


def check_limits(limits: LimitsSettings) -> Iterator[Fault]:
    """Yield the limits that only root may grant."""
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
            f"must not be less than {best}, the lowest that this process may set",
            "raise it, or start as root",
        )


def _readiness(ready: Readiness | None, probes: ProbeSet) -> Readiness | None:
    """What makes a program ready. None: its probes decide, also if it names probes that are off."""
    is_asked = (probes.liveness or probes.startup) is not None
    if (ready is Readiness.HEALTHY and not is_asked) or (
        ready is Readiness.PROBE and probes.readiness is None
    ):
        return None
    return ready


def _output_policy(log: OutputSettings) -> OutputPolicy:
    return OutputPolicy(console=log.console, max_bytes=log.max_bytes, keep=log.keep)


def _none_if_off(seconds: float | str) -> float | None:
    return None if isinstance(seconds, str) else seconds


class _PlanBuilder:
    """Makes the plans of all programs, and collects their faults."""

    def __init__(
        self, settings: Settings, base: Path, environ: Mapping[str, str], source: str
    ) -> None:
        self.settings = settings
        self.base = base
        self.environ = environ
        self.source = source
        self.faults: list[Fault] = []
        self._notes: list[str] = []
        """Tracebacks of user code, which `--debug` shows beside the faults."""

    def program(self, name: str, program: ProgramSettings) -> ProgramPlan:
        cwd = self.base / (program.cwd or "")
        probes = self._probes(name, program)
        made = make_declared_plan(name, program, self._process(name, program, cwd), probes)
        self._check_machine(name, program, made.process.env, cwd)
        return made

    def containers(self) -> dict[str, ProgramPlan]:
        from longwatch.app.container_plans import container_plan, runtime_faults  # noqa: PLC0415 - only a file with containers needs it

        self.faults += runtime_faults(self.settings, environ=self.environ, source=self.source)
        planned = {}
        for name, container in self.settings.container.items():
            planned[name], faults = container_plan(
                name, container, settings=self.settings, base=self.base
            )
            for fault in faults:
                self._add_fault(name, fault.where, fault.problem, fault.cure, kind="container")
        return planned

    def worker(
        self, name: str, worker: WorkerSettings, worker_environment: WorkerEnvironment
    ) -> list[ProgramPlan]:
        """The plans of the processes of a worker; empty if there is a fault."""
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
        """The process of a program. If its user does not exist, it is planned for ours, so that the
        rest can be checked.
        """
        with self._collecting_fault(name, "user") as refused:
            made = process_spec(program, program.argv, cwd=cwd, environ=self.environ)
        if refused:
            made = ProcessSpec(argv=program.argv, env=child_environment(self.environ, program.env))
        return made

    def _probes(self, name: str, program: ProgramSettings) -> ProbeSet:
        if not self.settings.supervisor.health_checks:
            return NO_PROBES
        declared = declared_probes(program, port=self.settings.supervisor.health_port)
        health = program.effective_health
        if health is None:
            return declared
        asked = health_probes(health, port=self.settings.health_port(name) or 0)
        return replace(
            asked, readiness=declared.readiness, startup=declared.startup or asked.startup
        )

    def _check_machine(
        self, name: str, program: ProgramSettings, env: Mapping[str, str], cwd: Path
    ) -> None:
        """Check that this machine can start it: with these names and within these limits."""
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
            **{f"{key}.command": probe.argv for key, probe in program.probe_tables.items()},
        }
        for key, argv in commands.items():
            if argv and not (problem and _is_relative(argv[0])):
                with self._collecting_fault(name, key):
                    check_command(argv, cwd=cwd, env=env, shell_example=SHELL_EXAMPLE)
        if not problem:
            self._check_scripts(name, program, cwd)
        for fault in check_limits(program.limits):
            self._add_fault(name, fault.where, fault.problem, fault.cure)

    def _check_scripts(self, name: str, program: ProgramSettings, cwd: Path) -> None:
        for key, probe in program.probe_tables.items():
            if probe.script is not None and (problem := script_problem(cwd / probe.script)):
                self._add_fault(
                    name,
                    f"{key}.script",
                    f"the script {str(cwd / probe.script)!r} {problem}",
                    "put it into the working directory, or correct script",
                )

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
        """Turn a UsageError inside the block into a fault of this key and go on. The list has the
        error afterwards.
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
        place = f"{self.source}: {kind}.{toml_key(name)}" + (f".{key}" if key else "")
        self.faults.append(Fault(place, problem, cure))


def _is_relative(program: str) -> bool:
    """Whether the path of the program depends on its working directory."""
    return "/" in program and not program.startswith("/")


def make_worker_plans(
    name: str,
    worker: WorkerSettings,
    *,
    base: Path,
    environ: Mapping[str, str],
    worker_environment: WorkerEnvironment,
) -> tuple[GroupInfo, list[ProgramPlan]]:
    """Inspect the group of a worker and plan its processes. Raises UsageError if it cannot run."""
    from longwatch.workers.preflight import WORKER_MODULE, inspect_group  # noqa: PLC0415 - needed only with workers

    cwd = base / (worker.cwd or "")
    spec = process_spec(
        worker,
        (sys.executable, "-m", WORKER_MODULE, "run", worker.target),
        cwd=cwd,
        environ=environ,
    )
    info = inspect_group(worker.target, cwd=cwd, env=spec.env, identity=spec.identity)
    env = {**spec.env, **worker_environment(spec.identity.uid if spec.identity else None)}
    common = make_plan(name, worker, replace(spec, env=env))
    shared = replace(
        common,
        kind=ProgramKind.WORKER,
        stop=replace(common.stop, grace=worker.stop_grace or info.shutdown_timeout + EXTRA_GRACE),
        readiness=Readiness.NOTIFY,
        depends_on=worker.dependencies,
        critical=worker.critical,
        autostart=worker.autostart,
        output=_output_policy(worker.log),
        group=name,
    )
    return info, [replace(shared, name=each) for each in worker.names(name)]
