"""Events of supervised programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.end_cause import EndCause
from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted(Event):
    program: str
    pid: int
    command: tuple[str, ...]
    start_number: int
    """1 for the first start, 2 for the first restart, …"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnded(Event):
    """A program's tree is gone. Its name in the logs is the verdict of the exit table:
    `clean_exit`, `unexpected_exit`, …
    """

    program: str
    pid: int | None
    verdict: str
    cause: EndCause
    lasted: float
    restart: bool
    killed: int = 0
    """How many processes of the tree had to be killed with SIGKILL."""
    survivors: int = 0
    """How many did not end even then; they are still being killed."""
    detail: str = ""

    @property
    def level(self) -> Level:
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
    """The parent of a worker process could not say how that ended: the exit table decides."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    pid: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartScheduled(Event):
    program: str
    delay: float
    failures: int
    restarts_in_window: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReady(Event):
    """It does what it is there for: others that wait for that may start."""

    program: str
    pid: int
    startup_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramNotReady(Event):
    """Its readiness probe failed often enough in a row. It runs on."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAdopted(Event):
    """The supervisor took over what an earlier one left running."""

    program: str
    pid: int
    age: float
    """Seconds since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLeftRunning(Event):
    """The supervisor ends or no longer watches it, and it runs on."""

    program: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingHeld(Event):
    """It was restarted for failed liveness probes: nothing is probed for a while (crash loop)."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    seconds: float
    restarts: int
    """For failed liveness, without a settled run in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProcessLeaked(Event):
    """The command of a probe did not end in time, and nothing here can kill it."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStable(Event):
    """It has been up long enough: backoff and counters start anew."""

    program: str
    pid: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerTripped(Event):
    default_level: ClassVar[Level] = Level.CRITICAL

    program: str
    restarts: int
    window: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStopping(Event):
    program: str
    pid: int
    signal: int
    grace: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckPassed(Event):
    """The first check that passed after a start or after failures."""

    program: str
    pid: int
    probe: str = "liveness"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckFailed(Event):
    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str
    failures: int
    threshold: int
    probe: str = "liveness"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDropped(Event):
    """Lines of a program that no reader and no disk took in time."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    lines: int
