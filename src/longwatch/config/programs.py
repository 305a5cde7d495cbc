"""What is kept up: the keys that `[run]` and `[program.NAME]` share, and those that only
programs of a file have.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

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
)
from longwatch.core.end_cause import EndCause
from longwatch.errors import Fault
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.dependencies import (
    Condition,
    DependencyMap,
    Readiness,
    dependency_problems,
)
from longwatch.supervisor.restart_policy import Restart, RestartPolicy


class ProcessSettings(SettingsTable, frozen=True, kw_only=True):
    """What `[run]` and `[program.NAME]` share."""

    command: Command | None = None
    """The command and its arguments, run without a shell; a text is split into words, quotes
    understood.

    For what a shell does write `["sh", "-c", "…"]`. In `[run]`, not set: it stands on the command
    line after `--`.
    """
    cwd: Text | None = None
    """Its working directory. A program's is relative to the file, and not set is where the file
    is; in `[run]` both are ours.
    """
    env: dict[VariableName, Argument] = field(default_factory=dict)
    """Variables added to its environment."""
    user: Text | None = None
    """Who it runs as, by name or number; not set: as we do. Somebody else takes root."""
    umask: Umask | None = None
    """The permissions that files it makes do not get, in octal: "022"; not set: ours."""
    restart: Literal["on-failure", "always", "never"] = "on-failure"
    """When it is started again after it ended; "on-failure" goes by the exit table."""
    restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is always started again."""
    no_restart_codes: list[ExitCode] = field(default_factory=list)
    """Exit codes after which it is never started again."""
    stop_signal: SignalName | None = None
    """The signal that asks it to stop, by name, with or without "SIG"; not set: TERM, in `[run]`
    the one that told us to stop.
    """
    stop_grace: Seconds = 15.0
    """How long it may take to stop before it is killed."""
    stable_after: Seconds = 60.0
    """Up for longer than this it counts as stable: backoff and counters start anew."""
    backoff: BackoffSettings = BackoffSettings()
    breaker: BreakerSettings = BreakerSettings()
    limits: LimitsSettings = LimitsSettings()

    @property
    def argv(self) -> list[str]:
        """The command as words; empty if there is none."""
        return argv(self.command)

    @property
    def stop_signal_number(self) -> signal.Signals:
        return SIGNALS[self.stop_signal or "TERM"]

    @property
    def umask_number(self) -> int | None:
        return None if self.umask is None else int(self.umask, 8)

    @property
    def restart_policy(self) -> RestartPolicy:
        codes, final = tuple(sorted({*self.restart_codes})), tuple(sorted({*self.no_restart_codes}))
        return RestartPolicy(
            restart=Restart(self.restart), restart_codes=codes, no_restart_codes=final
        )

    def faults(self) -> Iterator[Fault]:
        yield from command_faults(self.command)
        for code in sorted({*self.restart_codes} & {*self.no_restart_codes}):
            yield Fault(
                "no_restart_codes",
                f"has {code}, which is in restart_codes too",
                "take it out of one of the two",
            )


class WorkerSettings(ProcessSettings, frozen=True, kw_only=True):
    """`[worker.NAME]`: worker processes that `longwatch up` keeps up, each of which runs the
    loops of one group.
    """

    target: Text
    """The group, as `module:name`: a LoopGroup, a loop, a list of loops, or a function that returns
    one. Modules are looked for in `cwd` first.
    """
    processes: Annotated[int, Meta(ge=1, le=256)] = 1
    """How many processes run it. One is called NAME, several NAME-1, NAME-2, …; NAME stands for
    all of them in commands.
    """
    stop_grace: Seconds = 0.0
    """How long one may take to stop before it is killed; 0: five seconds more than the group's
    own shutdown_timeout.
    """
    critical: bool = False
    """As for a program."""
    autostart: bool = True
    """As for a program."""
    depends_on: list[Name] | dict[Name, Condition] = field(default_factory=list)
    """As for a program."""
    log: OutputSettings = OutputSettings()

    @property
    def dependencies(self) -> dict[str, Condition]:
        return dependencies(self.depends_on)

    def names(self, name: str) -> list[str]:
        """What its processes are called."""
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
    """`[program.NAME]`: one program that `longwatch up` keeps up."""

    command: Command
    health: HealthSettings | None = None
    """How it is asked whether it is well; not set: it is not asked."""
    ready: Readiness | None = None
    """What makes it ready: "up", "healthy", or "notify": it says `READY=1` on its notify socket.
    Not set: "healthy" if it is asked for its health, else "up".
    """
    ready_timeout: Period | Literal["off"] = "off"
    """One that is not ready by then is restarted as one that failed its health checks; "off": it
    may take as long as it likes.
    """
    critical: bool = False
    """Whether everything is stopped, and we exit with 100, when its breaker trips or it fails in
    a way nothing is done about.
    """
    autostart: bool = True
    """Whether it is started with the others; else it waits for `longwatch start`."""
    depends_on: list[Name] | dict[Name, Condition] = field(default_factory=list)
    """The programs it waits for before it starts: a list of names, each of which has to be ready,
    or a table of names with "started", "ready" or "completed" (it has ended well).
    """
    log: OutputSettings = OutputSettings()

    @property
    def dependencies(self) -> dict[str, Condition]:
        return dependencies(self.depends_on)

    @property
    def effective_health(self) -> HealthSettings | None:
        """How it is asked for its health, unless its own settings say that it is not."""
        return self.health if self.health is not None and self.health.enabled is not False else None

    def faults(self) -> Iterator[Fault]:
        yield from super().faults()
        if self.ready is Readiness.HEALTHY and self.health is None:
            yield Fault(
                "ready",
                'is "healthy", and nothing says how to ask for its health',
                'add a health table, or say "up"',
            )

    @classmethod
    def faults_among(
        cls, programs: Mapping[str, ProgramSettings | None]
    ) -> Iterator[tuple[str, Fault]]:
        """What shows only when programs stand side by side, with the program's name; None is one
        that has faults of its own.
        """
        if SUPERVISOR_LOG in programs:
            yield SUPERVISOR_LOG, Fault("", "is the name of our own log", "choose another")
        dependency_map = {
            name: program.dependencies if program else {} for name, program in programs.items()
        }
        for name, problem, cure in dependency_problems(dependency_map):
            yield name, Fault("depends_on", problem, cure)
        for name, wanted in _never_completed(dependency_map, programs):
            problem = (
                f"waits until {wanted!r} is completed, which is started again even after it ended "
                f"well"
            )
            yield (
                name,
                Fault(
                    "depends_on",
                    problem,
                    f'wait for "ready", or let {wanted} have restart = "on-failure"',
                ),
            )


def dependencies(depends_on: list[str] | dict[str, Condition]) -> dict[str, Condition]:
    """What is waited for, and until when; a bare name has to be ready."""
    return (
        dict(depends_on)
        if isinstance(depends_on, dict)
        else dict.fromkeys(depends_on, Condition.READY)
    )


def _never_completed(
    dependency_map: DependencyMap, programs: Mapping[str, ProgramSettings | None]
) -> Iterator[tuple[str, str]]:
    for name, conditions in dependency_map.items():
        for awaited, condition in conditions.items():
            program = programs.get(awaited)
            restarts = (
                program is not None and program.restart_policy.decide(EndCause.exit(0)).restart
            )
            if condition is Condition.COMPLETED and restarts:
                yield name, awaited
