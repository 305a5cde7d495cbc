"""Settings of programs and workers: the keys that all of them share, and those of processes,
programs and workers alone.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, Protocol

from msgspec import Meta, field

from longwatch.config.fields import (
    SIGNALS,
    Argument,
    Command,
    ExitCode,
    Name,
    Period,
    Seconds,
    SettingsTable,
    SignalName,
    Text,
    Umask,
    VariableName,
    argv,
    command_faults,
)
from longwatch.config.tables import (
    BackoffSettings,
    BreakerSettings,
    HealthSettings,
    LimitsSettings,
    OutputSettings,
    ProbeSettings,
    probe_faults,
)
from longwatch.errors import Fault
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.dependencies import Condition, Readiness
from longwatch.supervisor.restart_policy import Restart, RestartPolicy


class ManagedSettings(SettingsTable, frozen=True, kw_only=True):
    """Settings of everything that is kept up: when it is restarted, and how it is stopped."""

    env: dict[VariableName, Argument] = field(default_factory=dict)
    """Variables added to its environment."""
    restart: Literal["on-failure", "always", "never"] = "on-failure"
    """When it is restarted after its end; "on-failure" follows the exit table."""
    restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is always restarted."""
    no_restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is never restarted."""
    stop_signal: SignalName | None = None
    """The signal that stops it, by name, with or without "SIG"; not set: TERM, for `longwatch run`
    the signal received.
    """
    stop_grace: Seconds = 15.0
    """The time from the signal to SIGKILL."""
    stable_after: Seconds = 60.0
    """A program that was up for longer is stable: backoff and counters are reset."""
    backoff: BackoffSettings = BackoffSettings()
    breaker: BreakerSettings = BreakerSettings()

    @property
    def stop_signal_number(self) -> signal.Signals:
        return SIGNALS[self.stop_signal or "TERM"]

    @property
    def restart_policy(self) -> RestartPolicy:
        codes, final = tuple(sorted({*self.restart_codes})), tuple(sorted({*self.no_restart_codes}))
        return RestartPolicy(
            restart=Restart(self.restart), restart_codes=codes, no_restart_codes=final
        )

    def faults(self) -> Iterator[Fault]:
        for code in sorted({*self.restart_codes} & {*self.no_restart_codes}):
            yield Fault(
                "no_restart_codes",
                f"has {code}, which is in restart_codes too",
                "take it out of one of the two",
            )


class ProcessSettings(ManagedSettings, frozen=True, kw_only=True):
    """Settings that `[run]`, `[program.NAME]` and `[worker.NAME]` share."""

    command: Command | None = None
    """The command and its arguments, run without a shell. A text is split into words as a shell
    does, with quotes. For `[run]`, not set: the command line after `--`.
    """
    cwd: Text | None = None
    """The working directory. That of a program is relative to the file; not set: the directory of
    the file. For `[run]` it is relative to the current directory, and that is the default.
    """
    user: Text | None = None
    """The user, by name or number, with its groups, HOME, USER and LOGNAME; not set: the user of
    Longwatch. Another user needs root.
    """
    umask: Umask | None = None
    """The permissions that new files do not get, in octal and in quotes: "022"; not set: that of
    Longwatch.
    """
    limits: LimitsSettings = LimitsSettings()

    @property
    def argv(self) -> list[str]:
        """The command as words; empty if there is none."""
        return argv(self.command)

    @property
    def umask_number(self) -> int | None:
        return None if self.umask is None else int(self.umask, 8)

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)
        yield from super().faults()


class WorkerSettings(ProcessSettings, frozen=True, kw_only=True):
    """`[worker.NAME]`: processes that run the loops of one group."""

    target: Text
    """The group, as `module:name`: a LoopGroup, a loop, a list of loops, or a function without
    arguments that returns one of these; or a Flow. Python searches modules in `cwd` first.
    """
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    """The number of processes. One is called NAME, several NAME-1, NAME-2, …; commands accept NAME
    for all of them.
    """
    stop_grace: Seconds = 0.0
    """The time from the signal to SIGKILL; 0: five seconds more than the group's own
    shutdown_timeout.
    """
    critical: bool = False
    """As for a program."""
    autostart: bool = True
    """As for a program."""
    depends_on: list[Name] | dict[Name, Condition] = field(default_factory=list)
    """As for a program; programs cannot wait for workers."""
    log: OutputSettings = OutputSettings()

    @property
    def dependencies(self) -> dict[str, Condition]:
        return dependencies(self.depends_on)

    def names(self, name: str) -> list[str]:
        """The names of its processes."""
        return (
            [name]
            if self.processes == 1
            else [f"{name}-{number}" for number in range(1, self.processes + 1)]
        )

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.command is not None:
            yield Fault(
                "command", "is for programs", "name the group with target, or make it a [program.…]"
            )


class ProgramSettings(ProcessSettings, frozen=True, kw_only=True):
    """`[program.NAME]`: one program."""

    command: Command
    health: HealthSettings | None = None
    """Its health checks, which are a liveness probe; not set: none."""
    liveness: ProbeSettings | None = None
    """The probe whose failure restarts it; not set: none."""
    readiness: ProbeSettings | None = None
    """The probe that decides whether it is ready; not set: none."""
    startup: ProbeSettings | None = None
    """The probe that has to pass before the others begin; not set: none."""
    ready: Readiness | None = None
    """The condition of its readiness: "up"; "healthy"; "probe": its readiness probe passes;
    "notify": it sends `READY=1` to its notify socket. Not set: "probe" if it has such a probe, else
    "healthy" if it has health checks or another probe, else "up".
    """
    ready_timeout: Period | Literal["off"] = "off"
    """A program that is not ready by then is restarted, as after failed health checks."""
    critical: bool = False
    """True: when its breaker trips or it fails for good, `longwatch up` stops everything and exits
    with 100.
    """
    autostart: bool = True
    """False: it waits for `longwatch start`."""
    depends_on: list[Name] | dict[Name, Condition] = field(default_factory=list)
    """The programs that it waits for: a list of names, each of which has to be ready, or a table of
    names with "started", "ready" or "completed" (it has ended well).
    """
    log: OutputSettings = OutputSettings()

    @property
    def dependencies(self) -> dict[str, Condition]:
        return dependencies(self.depends_on)

    @property
    def effective_health(self) -> HealthSettings | None:
        """Its health checks in effect; None if they are off."""
        return self.health if self.health is not None and self.health.enabled is not False else None

    @property
    def probe_tables(self) -> dict[str, ProbeSettings]:
        """Its probes by their keys, without `health`."""
        return probe_tables(self)

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        yield from self._health_faults()
        health = self.effective_health
        yield from probe_faults(
            liveness=self.liveness,
            readiness=self.readiness,
            startup=self.startup,
            health_kind=None if health is None else health.effective_kind,
        )
        is_asked = (self.health or self.liveness or self.startup) is not None
        yield from ready_faults(self.ready, self.readiness, is_asked=is_asked, table="health")

    def _health_faults(self) -> Iterator[Fault]:
        """`health` means a liveness probe, and with `health.startup` a startup probe."""
        cure = "take one of the two out"
        if self.health is not None and self.liveness is not None:
            yield Fault("health", "is a liveness probe, and there is a liveness table", cure)
        if self.health is not None and self.startup is not None and self.health.startup != "off":
            yield Fault("health.startup", "is set, and there is a startup table", cure)

    @classmethod
    def faults_among(
        cls, programs: Mapping[str, ProgramSettings | None]
    ) -> Iterator[tuple[str, Fault]]:
        """Faults between programs, each with the name of the program."""
        if SUPERVISOR_LOG in programs:
            yield SUPERVISOR_LOG, Fault("", "is the name of our own log", "choose another")


class HasProbes(Protocol):
    """Settings that may have probes."""

    @property
    def liveness(self) -> ProbeSettings | None: ...
    @property
    def readiness(self) -> ProbeSettings | None: ...
    @property
    def startup(self) -> ProbeSettings | None: ...


def probe_tables(settings: HasProbes) -> dict[str, ProbeSettings]:
    """The probes that are set, by their keys."""
    tables = {
        "startup": settings.startup,
        "liveness": settings.liveness,
        "readiness": settings.readiness,
    }
    return {key: table for key, table in tables.items() if table is not None}


def ready_faults(
    ready: Readiness | None, readiness: ProbeSettings | None, *, is_asked: bool, table: str
) -> Iterator[Fault]:
    """Faults of `ready`; `table` is the table that would add health checks."""
    if ready is Readiness.HEALTHY and not is_asked:
        yield Fault(
            "ready",
            'is "healthy", and nothing says how to ask for its health',
            f'add a {table} table, or say "up"',
        )
    if ready is Readiness.PROBE and readiness is None:
        yield Fault(
            "ready",
            'is "probe", and there is no readiness probe',
            'add a readiness table, or say "up"',
        )


def dependencies(depends_on: list[str] | dict[str, Condition]) -> dict[str, Condition]:
    """The names that a program waits for, with their conditions; a bare name has to be ready."""
    return (
        dict(depends_on)
        if isinstance(depends_on, dict)
        else dict.fromkeys(depends_on, Condition.READY)
    )
