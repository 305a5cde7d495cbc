"""Every setting of Longwatch: meaning, special values, default. What stands here is what
`longwatch.toml` may hold.

Durations are seconds. Each struct is frozen and knows no other keys; an environment variable or a
flag overrides the file. `config/programs.py` has what is kept up, `config/tables.py` the tables
below it, `config/fields.py` the types of the fields.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from longwatch.config.fields import Name, Period, Port, SettingsTable, Text, argv
from longwatch.config.programs import ProcessSettings, ProgramSettings, WorkerSettings
from longwatch.config.runner import VARIABLES as RUNNER_VARIABLES
from longwatch.config.runner import RunnerSettings
from longwatch.config.settings_reader import (
    UNSET,
    EnvironmentVariable,
    from_environment,
    from_flags,
    read_settings,
    toml_key,
)
from longwatch.config.tables import DEFAULT_HEALTH_PORT, HealthSettings, LogFileSettings
from longwatch.config.value_checks import TRUE_WORDS
from longwatch.core.events.base import Level
from longwatch.core.masking import mask_mapping
from longwatch.engine.policy import suspect_names
from longwatch.errors import Fault
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.dependencies import dependency_problems

RUNNER_PROGRAM = "runner"
"""The name of the program that is the runner."""


class LogSettings(LogFileSettings, frozen=True, kw_only=True):
    """`[run.log]` and `[supervisor.log]`: what is logged, how it looks on the console, and how
    large files get.
    """

    level: Level = Level.INFO
    """The quietest level on the console (environment: DEBUG=1 for "debug"). Files have
    everything.
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
    """`[supervisor]`: what `longwatch up` does beside its programs."""

    shutdown_timeout: Period | Literal["off"] = "off"
    """By then everything is killed that has not stopped; "off": each program has its own grace."""
    keep_days: Annotated[int, Meta(ge=1, le=36_500)] | Literal["off"] = 30
    """How long the ledger remembers starts and ends, and how long logs of programs that are no
    more are kept; "off": for ever.
    """
    health_checks: bool = True
    """False: no program is asked for its health (environment: HEALTH_CHECK_ENABLED=false)."""
    health_port: Port = DEFAULT_HEALTH_PORT
    """Where http and tcp checks ask that name no port of their own (environment: PORT)."""
    log: LogSettings = LogSettings()


class Settings(SettingsTable, frozen=True, kw_only=True):
    """The whole file."""

    state_dir: Text = ".longwatch"
    """Where logs and state are kept (environment: LONGWATCH_STATE_DIR); "off" keeps no files."""
    run: RunSettings = RunSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    program: dict[Name, ProgramSettings] = field(default_factory=dict)
    """The programs that `longwatch up` keeps up, by name."""
    worker: dict[Name, WorkerSettings] = field(default_factory=dict)
    """The worker processes that it keeps up, by name."""
    runner: RunnerSettings | None = None
    """The runner, which it keeps up as one program; not set: there is none."""

    @property
    def state_path(self) -> Path | None:
        """The state directory; None if there is to be none."""
        return None if self.state_dir == "off" else Path(self.state_dir)

    def effective_health(self, name: str) -> HealthSettings | None:
        """How a program is asked for its health, all settings considered."""
        program = self.program.get(name)
        if program is None or not self.supervisor.health_checks:
            return None
        return program.effective_health

    def health_port(self, name: str) -> int | None:
        """The port on which a program is asked for its health; None if it is not asked on one."""
        health = self.effective_health(name)
        if health is None or health.effective_kind not in {"http", "tcp"}:
            return None
        return self.supervisor.health_port if health.port is None else health.port

    def faults(self) -> Iterator[Fault]:
        """Programs that start together cannot listen on one port."""
        users: dict[int, str] = {}
        for name, program in self.program.items():
            port = self.health_port(name)
            first = users.setdefault(port, name) if port is not None and program.autostart else name
            if first != name:
                problem = f"is {port}, on which {first} is asked for its health too"
                yield Fault(f"program.{toml_key(name)}.health.port", problem, "give each its own")
        yield from self._name_faults()
        yield from self._worker_dependency_faults()

    def _name_faults(self) -> Iterator[Fault]:
        """Every process has its own name, and our log too; that of a worker stands for all of
        its processes.
        """
        taken = {**dict.fromkeys(self.program, "a program"), SUPERVISOR_LOG: "our own log"}
        if self.runner is not None:
            if RUNNER_PROGRAM in taken:
                yield Fault(
                    f"program.{RUNNER_PROGRAM}",
                    "has the name of the runner, and there is a [runner]",
                    "choose another",
                )
            taken[RUNNER_PROGRAM] = "the runner"
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

    def _worker_dependency_faults(self) -> Iterator[Fault]:
        """As `ProgramSettings.faults_among` has it for programs; of the processes of one worker
        the first speaks.
        """
        firsts = {worker.names(name)[0]: name for name, worker in self.worker.items()}
        dependency_map = {name: program.dependencies for name, program in self.program.items()}
        dependency_map |= {
            each: worker.dependencies
            for name, worker in self.worker.items()
            for each in worker.names(name)
        }
        for name, problem, cure in dependency_problems(dependency_map):
            if name in firsts:
                yield Fault(f"worker.{toml_key(firsts[name])}.depends_on", problem, cure)


def load_settings(
    *, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object]
) -> Settings:
    """The settings in effect; ConfigError with every fault there is. `flags` maps dotted paths
    to values, None is "not given".
    """
    overrides = [*from_environment(VARIABLES, environ), *from_flags(flags, flag_name=flag_name)]
    return read_settings(Settings, path=path, overrides=overrides)


def masked_settings(settings: Settings) -> dict[str, object]:
    """The settings in effect as plain values, secrets masked, for the log. The runner shows its
    own.
    """
    plain = msgspec.to_builtins(settings)
    del plain["runner"]
    for table in (plain["run"], *plain["program"].values()):
        for command_table in (table, table["health"] or {}):
            command_table["command"] = command_table.get("command") and argv(
                command_table["command"]
            )  # in words, secrets are told apart more surely
    return mask_mapping(plain)


def flag_name(path: str) -> str:
    """What the flag for a setting is called: `run.health.port` is `--health-port`,
    `run.health.enabled` is `--health`.
    """
    own = path.removeprefix("run.").removeprefix("supervisor.").removeprefix("runner.")
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
    """HEALTH_CHECK_ENABLED can turn checks off; to turn them on takes a port or a setting."""
    return UNSET if text.strip().lower() in TRUE_WORDS else text


def _parse_debug(text: str) -> object:
    """DEBUG is everybody's variable: what is no yes (`DEBUG=app:*`) was not meant for us."""
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
    *RUNNER_VARIABLES,
)
"""The environment variables that are read, and the setting each one overrides."""


def is_pretty(log: LogSettings) -> bool:
    """Whether the console has the form for people."""
    return log.format == "pretty" or (log.format == "auto" and os.isatty(2))
