"""Every setting of Longwatch: meaning, special values, default. What stands here is what
`longwatch.toml` may hold.

Durations are seconds; the file may have texts such as "5m", too. Each struct is frozen and knows no
other keys; an environment variable or a flag overrides the file. `config/programs.py` and
`config/containers.py` have what is kept up, `config/tables.py` the tables below it,
`config/fields.py` the types of the fields.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, field

from longwatch.config.containers import (
    RUNTIME_VARIABLE,
    ContainerSettings,
    ContainersSettings,
    parse_runtime,
)
from longwatch.config.fields import ContainerName, Name, Period, Port, SettingsTable, Text, argv
from longwatch.config.programs import ProcessSettings, ProgramSettings, WorkerSettings
from longwatch.config.runner import VARIABLES as RUNNER_VARIABLES
from longwatch.config.runner import RunnerSettings
from longwatch.config.settings_reader import (
    UNSET,
    EnvironmentVariable,
    from_environment,
    from_flags,
    inspect_settings,
    toml_key,
)
from longwatch.config.tables import (
    DEFAULT_HEALTH_PORT,
    HealthSettings,
    LogFileSettings,
    PageSettings,
)
from longwatch.config.tomlfile import read_toml
from longwatch.config.value_checks import TRUE_WORDS
from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Level
from longwatch.core.masking import mask_mapping
from longwatch.core.sanitize import printable
from longwatch.engine.policy import suspect_names
from longwatch.errors import ConfigError, Fault
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.dependencies import Condition, dependency_problems

EntryT = TypeVar("EntryT", bound=SettingsTable)

DEFAULT_STATE_DIR = ".longwatch"
_WHERE_KEYS = ("command", "cwd", "user", "env", "target")
"""The fields that decide where a command is found on this machine."""
_DEPENDENCY_KEYS = ("depends_on", "restart", "restart_codes", "no_restart_codes", "processes")
_REQUIRED_KEYS = ("command", "image", "target")

RUNNER_PROGRAM = "runner"
"""The name of the program that is the runner."""
PAGE_PROGRAM = "page"
"""The name of the program that is the status page. A program of the file may have it instead."""


class LogSettings(LogFileSettings, frozen=True, kw_only=True):
    """`[run.log]` and `[supervisor.log]`: what is logged, how it looks on the console, and how
    large files get.
    """

    level: Level = Level.INFO
    """The lowest level on the console. Files have all levels. DEBUG=1 in the environment means
    "debug".
    """
    format: Literal["auto", "json", "pretty"] = "auto"
    """The form on the console; "auto" is pretty on a terminal and JSON elsewhere. Files are
    always JSON lines.
    """


class RunSettings(ProcessSettings, frozen=True, kw_only=True):
    """`[run]`: the defaults of `longwatch run`."""

    name: Name | None = None
    """The program's name in logs; not set: the command's base name."""
    health: HealthSettings = HealthSettings()
    log: LogSettings = LogSettings()


class SupervisorSettings(SettingsTable, frozen=True, kw_only=True):
    """`[supervisor]`: settings of `longwatch up` itself."""

    shutdown_timeout: Period | Literal["off"] = "off"
    """Programs that have not stopped by then are killed; "off": each program has its own grace."""
    keep_days: Annotated[int, Meta(ge=1, le=36_500)] | Literal["off"] = 30
    """How many days records and logs of removed programs are kept; "off": for ever."""
    health_checks: bool = True
    """False: no program or container is probed."""
    health_port: Port = DEFAULT_HEALTH_PORT
    """The port for http and tcp probes of programs that name no port."""
    metrics_port: Port | Literal["off"] = "off"
    """The port for health and metrics of everything in the file; "off": none."""
    metrics_host: Text = "0.0.0.0"  # noqa: S104 - scrapes and probes come from outside
    """The address of that port."""
    log: LogSettings = LogSettings()


class Settings(SettingsTable, frozen=True, kw_only=True):
    """The whole file: what belongs to no table."""

    state_dir: Text = DEFAULT_STATE_DIR
    """The directory for logs and state; "off" keeps no files."""
    run: RunSettings = RunSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    program: dict[Name, ProgramSettings] = field(default_factory=dict)
    """The programs that `longwatch up` keeps up, by name."""
    worker: dict[Name, WorkerSettings] = field(default_factory=dict)
    """The worker processes that it keeps up, by name."""
    containers: ContainersSettings = ContainersSettings()
    """What holds for all containers, and the registry of agents."""
    container: dict[ContainerName, ContainerSettings] = field(default_factory=dict)
    """The containers that it keeps up, by name."""
    runner: RunnerSettings | None = None
    """The runner, which it keeps up as one program; not set: there is none."""
    page: PageSettings = PageSettings()

    @property
    def state_path(self) -> Path | None:
        """The state directory; None if there is to be none."""
        return None if self.state_dir == "off" else Path(self.state_dir)

    def effective_health(self, name: str) -> HealthSettings | None:
        """The health settings of a program in effect; None if it is not checked."""
        program = self.program.get(name)
        if program is None or not self.supervisor.health_checks:
            return None
        return program.effective_health

    def health_port(self, name: str) -> int | None:
        """The port of the health checks of a program; None if they use none."""
        health = self.effective_health(name)
        if health is None or health.effective_kind not in {"http", "tcp"}:
            return None
        return self.supervisor.health_port if health.port is None else health.port

    def probe_ports(self, name: str) -> dict[str, int]:
        """The ports on which a program is probed, by the keys that set them; none if its probes
        are off.
        """
        program = self.program.get(name)
        if program is None or not self.supervisor.health_checks:
            return {}
        health_port = self.health_port(name)
        ports = {} if health_port is None else {"health.port": health_port}
        for key, probe in program.probe_tables.items():
            if probe.effective_kind in {"http", "tcp"}:
                ports[f"{key}.port"] = probe.port or self.supervisor.health_port
        return ports

    @property
    def keeps_anything_up(self) -> bool:
        """Whether there is a program, a worker, a container or a runner."""
        return bool(self.program or self.worker or self.runner or self.has_containers)

    @property
    def has_containers(self) -> bool:
        """Whether a container runtime is needed."""
        return bool(self.container) or self.containers.registry is not None

    def faults(self) -> Iterator[Fault]:
        yield from self._port_faults()
        yield from self._name_faults({})

    def _port_faults(self) -> Iterator[Fault]:
        """Faults of ports: programs that start together cannot share one, and none can have our
        own.
        """
        users: dict[int, str] = {}
        for name, program in self.program.items():
            for key, port in self.probe_ports(name).items():
                where, problem = f"program.{toml_key(name)}.{key}", ""
                if port == self.supervisor.metrics_port:
                    problem = f"is {port}, as metrics_port of [supervisor] is"
                elif program.autostart and (first := users.setdefault(port, name)) != name:
                    problem = f"is {port}, on which {first} is asked for its health too"
                if problem:
                    yield Fault(where, problem, "give each its own")

    @property
    def taken_names(self) -> dict[str, str]:
        """The names that no agent of a registry can have, each with its owner."""
        taken: dict[str, str] = {}
        list(self._name_faults(taken))
        return taken

    def _name_faults(self, taken: dict[str, str]) -> Iterator[Fault]:
        """Faults of names: every process and container has its own, and so has our log. The name of
        a worker stands for all of its processes. Adds each name with its owner to `taken`.
        """
        taken |= {**dict.fromkeys(self.program, "a program"), SUPERVISOR_LOG: "our own log"}
        if self.runner is not None:
            if RUNNER_PROGRAM in taken:
                yield Fault(
                    f"program.{RUNNER_PROGRAM}",
                    "has the name of the runner, and there is a [runner]",
                    "choose another",
                )
            taken[RUNNER_PROGRAM] = "the runner"
        for name in self.container:
            if name in taken:
                problem = f"is called {name}, which is the name of {taken[name]}"
                yield Fault(f"container.{toml_key(name)}", problem, "choose another")
            taken[name] = "a container"
        for name, worker in self.worker.items():
            for each in dict.fromkeys([name, *worker.names(name), *suspect_names(name)]):
                if each in taken:
                    problem = f"is called {each}" if each == name else f"has a process {each}"
                    yield Fault(
                        f"worker.{toml_key(name)}",
                        f"{problem}, which is the name of {taken[each]}",
                        "choose another",
                    )
                taken[each] = f"worker {name}" if each == name else f"a process of worker {name}"


def load_settings(
    *, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """The settings in effect. Raises ConfigError with every fault. `flags` maps dotted paths to
    values; None means "not given".
    """
    settings, faults = examine_settings(path=path, environ=environ, flags=flags)
    if faults:
        raise ConfigError(*faults)
    assert settings is not None
    return settings


def examine_settings(
    *, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> tuple[Settings | None, list[Fault]]:
    """Read the settings and every fault. With faults the settings are partial, for further checks;
    None if the file itself is unusable.
    """
    overrides = [*from_environment(VARIABLES, environ), *from_flags(flags, flag_name=flag_name)]
    reading = inspect_settings(Settings, path=path, overrides=overrides)
    settings = reading.settings
    if reading.faults or settings is None:
        entries = _Dependents.read(path)
    else:
        entries = _Dependents(settings.program, settings.container, settings.worker)
    faults = [*reading.faults, *entries.faults(printable(str(path)))]
    if settings is not None and reading.invalid_paths:
        settings = _without_doubtful_parts(settings, reading.invalid_paths)
    return settings, faults


def _without_doubtful_parts(settings: Settings, invalid_paths: Collection[str]) -> Settings:
    """The settings without parts that depend on a faulty field: programs and workers whose command
    cannot be located, and unknown ports.
    """
    kept = {}
    for table in ("program", "worker"):
        kept[table] = {
            name: entry
            for name, entry in getattr(settings, table).items()
            if not any(f"{table}.{toml_key(name)}.{key}" in invalid_paths for key in _WHERE_KEYS)
        }
    supervisor = settings.supervisor
    if {"supervisor", "supervisor.health_port", "supervisor.health_checks"} & {*invalid_paths}:
        supervisor = msgspec.structs.replace(supervisor, health_checks=False)
    return msgspec.structs.replace(settings, supervisor=supervisor, **kept)


@dataclass(frozen=True, slots=True)
class _Dependents:
    """Programs, containers and workers by name, for checks of their dependencies; None is an entry
    with faults of its own.
    """

    programs: Mapping[str, ProgramSettings | None]
    containers: Mapping[str, ContainerSettings | None]
    workers: Mapping[str, WorkerSettings | None]

    @classmethod
    def read(cls, path: Path | None) -> _Dependents:
        """Read the dependencies of a file that has other faults."""
        table = {} if path is None else read_toml(path)[0]
        return cls(
            _valid_entries(ProgramSettings, table.get("program")),
            _valid_entries(ContainerSettings, table.get("container")),
            _valid_entries(WorkerSettings, table.get("worker")),
        )

    def faults(self, source: str) -> Iterator[Fault]:
        """Faults of dependencies. Programs and containers can wait for each other. Of the processes
        of a worker only the first is reported.
        """
        waiting = {name: _awaited(entry) for name, entry in self._kept_up.items()}
        first_processes: dict[str, str] = {}
        processes: dict[str, dict[str, Condition]] = {}
        for name, worker in self.workers.items():
            names = [name] if worker is None else worker.names(name)
            first_processes[names[0]] = name
            processes |= dict.fromkeys(names, _awaited(worker))
        problems = [
            *dependency_problems(waiting),
            *(
                problem
                for problem in dependency_problems({**waiting, **processes})
                if problem.program in first_processes
            ),
        ]
        for name, text, cure in problems:
            place = self._place(first_processes.get(name, name))
            yield Fault(f"{source}: {place}.depends_on", text, cure)
        yield from self._completion_faults(source)

    @property
    def _kept_up(self) -> dict[str, ProgramSettings | ContainerSettings | None]:
        return {**self.programs, **self.containers}

    def _completion_faults(self, source: str) -> Iterator[Fault]:
        """Faults of entries that wait for a completion that never comes."""
        for name, entry in {**self._kept_up, **self.workers}.items():
            for awaited, condition in _awaited(entry).items():
                other = self._kept_up.get(awaited)
                if (
                    condition is Condition.COMPLETED
                    and other is not None
                    and other.restart_policy.decide(EndCause.exit(0)).restart
                ):
                    yield Fault(
                        f"{source}: {self._place(name)}.depends_on",
                        f"waits until {awaited!r} is completed, which is started again even after "
                        f"it ended well",
                        f'wait for "ready", or let {awaited} have restart = "on-failure"',
                    )

    def _place(self, name: str) -> str:
        tables = {"program": self.programs, "container": self.containers}
        table = next((word for word, entries in tables.items() if name in entries), "worker")
        return f"{table}.{toml_key(name)}"


def _awaited(
    entry: ProgramSettings | ContainerSettings | WorkerSettings | None,
) -> dict[str, Condition]:
    return {} if entry is None else entry.dependencies


def _valid_entries(kind: type[EntryT], raw: object) -> dict[str, EntryT | None]:
    """The tables of one kind, reduced to the keys that dependencies need; None for an entry in
    which these have faults.
    """
    entries: dict[str, EntryT | None] = {}
    required = {key: "-" for key in _REQUIRED_KEYS if key in kind.__struct_fields__}
    for name, table in raw.items() if isinstance(raw, dict) else ():
        try:
            given = {key: table[key] for key in _DEPENDENCY_KEYS if key in table}
            entries[name] = msgspec.convert({**required, **given}, kind)
        except (msgspec.MsgspecError, TypeError):
            entries[name] = None
    return entries


def masked_settings(settings: Settings) -> dict[str, object]:
    """The settings in effect as plain values, secrets masked, for the log. The runner shows its
    own.
    """
    plain = msgspec.to_builtins(settings)
    del plain["runner"]
    for table in (plain["run"], *plain["program"].values(), *plain["container"].values()):
        _split_commands(table)
    return mask_mapping(plain)


def _split_commands(table: dict[str, Any]) -> None:
    """Split commands into words, because masking recognises secrets better in words."""
    probes = (table.get(key) for key in ("health", "liveness", "readiness", "startup"))
    for each in (table, *probes):
        if each and each["command"]:
            each["command"] = argv(each["command"])


def flag_name(path: str) -> str:
    """The flag of a setting: `run.health.port` is `--health-port`, `run.health.enabled` is
    `--health`.
    """
    own = path
    for table in ("run.", "supervisor.", "runner.", "page."):
        own = own.removeprefix(table)
    return "--" + own.removesuffix(".enabled").replace(".", "-").replace("_", "-")


def setting_path(option: str) -> str:
    """The setting that an option of `longwatch run` is for, the reverse of `flag_name`:
    `health_port` is `run.health.port`.
    """
    table, _, key = option.partition("_")
    if option in Settings.__struct_fields__:
        return option
    if table in {"backoff", "breaker", "health", "log"}:
        return f"run.{table}.{key or 'enabled'}"
    return f"run.{option}"


def _parse_off_only(text: str) -> object:
    """Parse HEALTH_CHECK_ENABLED, which can only turn checks off."""
    return UNSET if text.strip().lower() in TRUE_WORDS else text


def _parse_debug(text: str) -> object:
    """Parse DEBUG. Other programs use this variable too, so other values than yes (`DEBUG=app:*`)
    are ignored.
    """
    return Level.DEBUG.value if text.strip().lower() in TRUE_WORDS else UNSET


VARIABLES = (
    EnvironmentVariable(name="PORT", path="run.health.port"),
    EnvironmentVariable(name="PORT", path="supervisor.health_port"),
    EnvironmentVariable(
        name="HEALTH_CHECK_ENABLED", path="run.health.enabled", parse=_parse_off_only
    ),
    EnvironmentVariable(
        name="HEALTH_CHECK_ENABLED", path="supervisor.health_checks", parse=_parse_off_only
    ),
    EnvironmentVariable(name="DEBUG", path="run.log.level", parse=_parse_debug),
    EnvironmentVariable(name="DEBUG", path="supervisor.log.level", parse=_parse_debug),
    EnvironmentVariable(name="LONGWATCH_STATE_DIR", path="state_dir"),
    EnvironmentVariable(name="LONGWATCH_PAGE_PORT", path="page.port"),
    EnvironmentVariable(name=RUNTIME_VARIABLE, path="containers.runtime", parse=parse_runtime),
    *RUNNER_VARIABLES,
)
"""The environment variables that are read, and the setting each one overrides."""


def is_pretty(log: LogSettings, descriptor: int) -> bool:
    """Whether stdout (1) or stderr (2) gets the pretty form; with `auto` if it is a terminal."""
    return log.format == "pretty" or (log.format == "auto" and os.isatty(descriptor))
