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
    """A program ended, and no process of its tree is left.

    Its name in the logs is the verdict of the exit table: `clean_exit`, `unexpected_exit`, …
    """

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
    """The parent of a worker process could not judge how it ended, so the exit table decides."""

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
    """The program is ready: programs that wait for it may start."""

    program: str
    pid: int
    startup_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramNotReady(Event):
    """The readiness probe of a program failed too often in a row. The program keeps running."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramAdopted(Event):
    """The supervisor took over a program that an earlier supervisor left running."""

    program: str
    pid: int
    age: float
    """Seconds since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLeftRunning(Event):
    """The supervisor stops or no longer watches the program, which keeps running."""

    program: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbingHeld(Event):
    """The program was restarted after failed liveness probes, so it is not probed for a while
    (crash loop).
    """

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    seconds: float
    restarts: int
    """Restarts after failed liveness probes, without a stable run in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProcessLeaked(Event):
    """The command of a probe did not end in time, and the supervisor cannot kill it."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStable(Event):
    """The program has been up long enough that its backoff and counters are reset."""

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
    """Lines of a program were dropped, because no reader and no disk took them in time."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    lines: int
