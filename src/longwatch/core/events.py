"""What happens in Longwatch, as typed values that parts emit and observers turn into logs, metrics
and pages.

Every event of the product is in this file. Its class name in snake_case is its name in the logs
(`ProgramStarted` → `program_started`) unless it says otherwise; names and fields are API. An event
carries facts, never text for people.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from longwatch.core.endcause import EndCause


class Level(StrEnum):
    """How loud an event is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The base of all events."""

    loudness: ClassVar[Level] = Level.INFO

    @property
    def level(self) -> Level:
        """How loud this one is: its class's loudness unless its facts say otherwise."""
        return self.loudness

    @property
    def name(self) -> str:
        """The event's name in logs and on pages."""
        return _snake(type(self).__name__)


Observer = Callable[[Event], None]


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class Events:
    """Fans each event out to every observer, in the order they subscribed.

    `emit` never raises: an observer that does, be it an exit, is counted in `failures` and the
    others still hear the event. Only an interrupt of the main thread is not the observer's, and
    goes on. Thread-safe.
    """

    def __init__(self, *observers: Observer) -> None:
        self._observers: tuple[Observer, ...] = observers
        self._lock = threading.Lock()
        self.failures = 0

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Add an observer; returns what takes it off again."""
        with self._lock:
            self._observers = (*self._observers, observer)
        return lambda: self._unsubscribe(observer)

    @property
    def heard(self) -> bool:
        """Whether anybody listens: what is costly to tell is told only then."""
        return bool(self._observers)

    def emit(self, event: Event) -> None:
        """Tell every observer."""
        for observer in self._observers:
            try:
                observer(event)
            except BaseException as error:  # an observer must not harm what it observes
                with self._lock:
                    self.failures += 1
                if (
                    isinstance(error, KeyboardInterrupt)
                    and threading.current_thread() is threading.main_thread()
                ):
                    raise

    def _unsubscribe(self, observer: Observer) -> None:
        with self._lock:
            self._observers = tuple(known for known in self._observers if known is not observer)


# --- the life of a program ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStarted(Event):
    program: str
    pid: int
    command: tuple[str, ...]
    start: int
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
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStable(Event):
    """It has been up long enough: backoff and counters start anew."""

    program: str
    pid: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerTripped(Event):
    loudness: ClassVar[Level] = Level.CRITICAL

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheckFailed(Event):
    loudness: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    reason: str
    failures: int
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputDropped(Event):
    """Lines of a program that nobody took in time."""

    loudness: ClassVar[Level] = Level.WARNING

    program: str
    lines: int


# --- the life of the process that watches ---------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStarted(Event):
    version: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSetAside(Event):
    """What was remembered of programs could not be read: it is kept under another name, and a
    new ledger was begun.
    """

    loudness: ClassVar[Level] = Level.ERROR

    path: str
    kept_as: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopsRemembered(Event):
    """These programs are not started: somebody has stopped them, and nobody has started them
    since.
    """

    loudness: ClassVar[Level] = Level.WARNING

    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCommand(Event):
    """Somebody told the supervisor what to do."""

    command: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReloaded(Event):
    """The settings were read again; what is in no list was left alone."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    """Started anew."""
    updated: tuple[str, ...]
    """Changed as they run."""
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadRefused(Event):
    """The settings have faults: everything goes on as it was."""

    loudness: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsInEffect(Event):
    """Every setting, whoever said it; secrets are masked."""

    loudness: ClassVar[Level] = Level.DEBUG

    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived(Event):
    signal: int
    action: str
    """`stop`, `escalate`, `forward`, `reload` or `ignore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStopped(Event):
    exit_code: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianLost(Event):
    loudness: ClassVar[Level] = Level.CRITICAL

    guardian_pid: int
    killed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicFailed(Event):
    """One round of a periodic task raised; the next one comes as usual."""

    loudness: ClassVar[Level] = Level.ERROR

    task: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackFailed(Event):
    """A shutdown callback raised; the others ran all the same."""

    loudness: ClassVar[Level] = Level.ERROR

    callback: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlFailed(Event):
    """A command over the control socket raised what it should not have; who asked was told, and
    the socket lives on.
    """

    loudness: ClassVar[Level] = Level.ERROR

    command: str
    error: str


# --- the life of an engine ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFailed(Event):
    """The code that works on a row raised."""

    loudness: ClassVar[Level] = Level.WARNING

    engine: str
    row: int
    attempt: int
    error: str
    retry_in: float | None
    """When it is tried again; None: never, it goes to the dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """The right to rows was lost while they ran or waited; what they do does not count."""

    loudness: ClassVar[Level] = Level.ERROR

    engine: str
    rows: tuple[int, ...]
    reason: str
    """`untrusted`: it could not be renewed in time, `stale`: no beat, so it was not renewed,
    `taken`: the store gave it away, `called_off`: somebody wanted that.
    """

    @property
    def level(self) -> Level:
        return Level.INFO if self.reason == "called_off" else self.loudness


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRefused(Event):
    """A finished row was not the engine's any more."""

    loudness: ClassVar[Level] = Level.WARNING

    engine: str
    row: int
    outcome: str
    unknown: bool
    """Whether an earlier try of the same settlement may have been the one that counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFailed(Event):
    """A call to where the work comes from raised; it is made again. Told once, and if it lasts
    at the 16th failure, the 32nd, …
    """

    loudness: ClassVar[Level] = Level.ERROR

    engine: str
    call: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecovered(Event):
    """The call works again."""

    engine: str
    call: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGivenUp(Event):
    """The deadline of a stop passed while rows still ran; nobody is blamed if the process ends
    now.
    """

    loudness: ClassVar[Level] = Level.ERROR

    engine: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsClaimed(Event):
    """Rows were leased, in one exchange."""

    loudness: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int
    held: int
    """How many it has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettled(Event):
    """Rows were settled, in one exchange."""

    loudness: ClassVar[Level] = Level.DEBUG

    engine: str
    done: int
    failed: int
    back: int
    dead: int
    refused: int
    """How many of all these were not the engine's any more."""
    lasted: tuple[float, ...]
    """How long the work on each took, of those that were begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(Event):
    loudness: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """An attempt to compute a node was given up, by whoever noticed first."""

    loudness: ClassVar[Level] = Level.WARNING

    execution: str
    node: str
    attempt: int
    cause: str


# --- the life of loops ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStarted(Event):
    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(Event):
    """Its run is over: it was told to stop, its mailbox was closed, or it has made its
    iterations.
    """

    loop: str
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCrashed(Event):
    """Its run raised; the others of its group are stopped."""

    loudness: ClassVar[Level] = Level.ERROR

    loop: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDegraded(Event):
    """It has given no beat for so long that nothing more should be sent its way; the watchdog
    may end the process soon.
    """

    loudness: ClassVar[Level] = Level.WARNING

    loop: str
    elapsed: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(Event):
    """It beats again."""

    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """It has given no beat for the threshold: the process is ended."""

    loudness: ClassVar[Level] = Level.CRITICAL

    loop: str
    elapsed: float
    threshold: float
    stacks: str
    """Where every thread's stack was written; empty if nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSkipped(Event):
    """The watchdog woke up so late that the process must have been stopped or the machine
    paused: it looks again next time.
    """

    loudness: ClassVar[Level] = Level.WARNING

    late: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFailed(Event):
    """The answer to a message could not be sent: the message comes back, and its work is done
    once more.
    """

    loudness: ClassVar[Level] = Level.ERROR

    loop: str
    request_id: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsQuestioned(Event):
    """Two timeouts do not go together: it works, and not as it is meant."""

    loudness: ClassVar[Level] = Level.WARNING

    setting: str
    """The one to change."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsNotHeard(Event):
    """A group was run off the main thread, where no signal handlers can be installed: nobody but
    code stops it.
    """

    loudness: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted(Event):
    loops: tuple[str, ...]
    health: str
    """Where health is answered for; empty: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraining(Event):
    """Nothing more is taken; what runs goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed(Event):
    """Messages are taken again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopping(Event):
    reason: str
    """`asked`, `crashed`, `done` (every loop has ended by itself), `failed` (it could not be
    started), or the name of a signal.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopped(Event):
    lasted: float
    overdue: tuple[str, ...]
    """The loops that did not stop in their time."""

    @property
    def level(self) -> Level:
        return Level.ERROR if self.overdue else Level.INFO


# --- worker processes and their parent ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A worker process runs its loops, and its parent keeps its leases."""

    program: str
    pid: int
    loops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStalled(Event):
    """A worker process gives no beat: its stacks are saved, it is killed, and what it held goes
    to others.
    """

    loudness: ClassVar[Level] = Level.CRITICAL

    program: str
    pid: int
    rows: tuple[int, ...]
    """Those to blame: the work on them is silent."""
    elapsed: float
    threshold: float
    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReleased(Event):
    """What a worker process held when it ended is free again."""

    program: str
    pid: int
    rows: int
