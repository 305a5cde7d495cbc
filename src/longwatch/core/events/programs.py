"""Events of supervised programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted(Event):
    """The program runs."""

    program: str
    pid: int
    command: tuple[str, ...]
    """Of a container the image first."""
    start_number: int
    """1 for the first start, 2 for the first restart, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded(Event):
    """The whole tree of the program has ended. The name is the verdict of the exit table."""

    program: str
    pid: int | None
    verdict: str
    cause: EndCause
    lasted: float
    restart: bool
    killed: int = 0
    """Processes of the tree that had to be killed with SIGKILL."""
    survivors: int = 0
    """Processes that did not end even then; they are still being killed."""
    detail: str = ""

    @property
    def level(self) -> Level:
        """Warning if the program is restarted, the end was unexpected, or processes survived; error
        if the end is fatal or a configuration error.
        """
        if self.verdict in {"configuration_error", "fatal_error_no_restart"}:
            return Level.ERROR
        return (
            Level.WARNING
            if self.restart or self.survivors or self.verdict == "unexpected_exit"
            else Level.INFO
        )

    @property
    def name(self) -> str:
        return self.verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJudgeFailed(Event):
    """The parent could not determine how a worker process ended; only the exit code decides."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    pid: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartScheduled(Event):
    """The program will be restarted."""

    program: str
    delay: float
    """Seconds; 0 for a worker process whose end does not count."""
    failures: int
    """In a row."""
    restarts_in_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReady(Event):
    """The program is ready, by its health, its readiness probe or `READY=1`; not emitted for
    programs that are ready when they are up. With a readiness probe each time that it becomes
    ready.
    """

    program: str
    pid: int
    startup_seconds: float
    """Seconds since its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramNotReady(Event):
    """The readiness probe of a program failed too often in a row. The program keeps running."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAdopted(Event):
    """The supervisor adopted a container that an earlier supervisor left running, or that a person
    started.
    """

    program: str
    pid: int
    age: float
    """Seconds since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLeftRunning(Event):
    """A container runs on without supervision: the supervisor ends, the container was removed from
    the settings, or it has a fault that a person must correct.
    """

    program: str
    reason: str = ""
    """The fault, empty without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingHeld(Event):
    """A container was restarted for failed liveness: its probes are held for a while."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    seconds: float
    """For how long."""
    restarts: int
    """Such restarts without a run of 600 s in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProcessLeaked(Event):
    """The command of a probe did not end in time, and Longwatch cannot kill it."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStable(Event):
    """The program was up for `stable_after`: backoff and counters are reset."""

    program: str
    pid: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerTripped(Event):
    """The program failed too often, or no restart can help: a manifest or a probe script is
    missing, a name belongs to another container.
    """

    default_level: ClassVar[Level] = Level.CRITICAL

    program: str
    restarts: int
    window: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStopping(Event):
    """The program got the stop signal."""

    program: str
    pid: int
    signal: int
    grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckPassed(Event):
    """The first success of a startup or liveness probe after a start or after failures."""

    program: str
    pid: int
    probe: str = "liveness"
    """`startup` or `liveness` (also for `health`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckFailed(Event):
    """A probe failed. Failures of a startup probe are not emitted. For a readiness probe: each
    failure until the threshold, and for a ready program only the failure that reaches it.
    """

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str
    failures: int
    threshold: int
    probe: str = "liveness"
    """`liveness` or `readiness`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDropped(Event):
    """Lines of the program were dropped, because no reader or disk accepted them in time."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    lines: int
