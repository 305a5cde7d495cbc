"""Named health checks, and their combined report: is it live, is it ready, has it started?"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.clock import Clock


class Aspect(StrEnum):
    """The aspects of health that a report can be about."""

    LIVE = auto()
    READY = auto()
    STARTED = auto()


class HealthReason(StrEnum):
    """The closed list of results of a check; all but `ok` mean that it failed."""

    OK = auto()
    FAILED = auto()  # the probe returned False
    RAISED = auto()
    TIMED_OUT = auto()  # no result within the check's timeout
    PENDING = auto()  # its first run has not ended yet
    STALE = auto()  # a heartbeat is too old
    DRAINING = auto()
    NOT_STARTED = auto()
    NOT_RUNNING = auto()
    UNREACHABLE = auto()


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """A reason, and the text that plain-text paths show for it.

    The text is Longwatch's own. Every client may read it, so it never contains the text of an
    error.
    """

    reason: HealthReason
    text: str


Probe = Callable[[], bool | HealthReason | HealthAnswer | None]


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A probe with a name, the aspects it counts for, and the seconds it may take.

    The probe passes with True, None or `HealthReason.OK`, and fails with False or any other reason.
    A `HealthAnswer` is its reason with a text of its own. It runs in the thread that asks for a
    report, never twice at a time. A `quick` check only reads memory, so threads that others wait
    for may run it.
    """

    name: str
    probe: Probe
    aspects: frozenset[Aspect]
    timeout: float = 2.0
    quick: bool = False

    def __post_init__(self) -> None:
        if not (self.name and self.aspects and self.timeout > 0):
            raise ValueError(
                f"check {self.name!r} needs a name, at least one aspect, and a timeout above 0"
            )


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check.

    `detail` is the type of the error if it raised, never its text, which may contain secrets.
    `text` is the text of a `HealthAnswer`.
    """

    name: str
    reason: HealthReason
    detail: str = ""
    text: str = ""

    @property
    def ok(self) -> bool:
        return self.reason is HealthReason.OK


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The results of all checks of one aspect; ok if every check is, and if there are none."""

    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    @property
    def failing(self) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if not result.ok)


class Health:
    """Runs health checks in the caller's thread. Thread-safe; reports may run concurrently.

    A check that another report is running is not run again. Past its timeout its result is
    `timed_out`. Before that it is its last result, `pending` if there is none yet. So a probe that
    hangs blocks only its first caller.
    """

    def __init__(self, checks: Iterable[HealthCheck], clock: Clock) -> None:
        self._states = [_CheckState(check, clock) for check in checks]
        names = Counter(asked.check.name for asked in self._states)
        if duplicates := sorted(name for name, times in names.items() if times > 1):
            raise ValueError(
                f"checks need different names; more than one is called {', '.join(duplicates)}"
            )

    def report(self, aspect: Aspect) -> HealthReport:
        """Run every check of this aspect, one after the other. May block."""
        return HealthReport(
            tuple(asked.run() for asked in self._states if aspect in asked.check.aspects)
        )


class _CheckState:
    """One check, when its current run began, and its last result."""

    def __init__(self, check: HealthCheck, clock: Clock) -> None:
        self.check = check
        self._clock = clock
        self._running_since: float | None = None
        self._last = CheckResult(check.name, HealthReason.PENDING)
        self._lock = threading.Lock()

    def run(self) -> CheckResult:
        if not self._begin():
            return self._last_result()
        try:
            return self._end(self._probe())
        except BaseException as exiting:
            self._end(CheckResult(self.check.name, HealthReason.RAISED, type(exiting).__name__))
            raise

    def _last_result(self) -> CheckResult:
        with self._lock:
            return (
                CheckResult(self.check.name, HealthReason.TIMED_OUT)
                if self._is_overdue()
                else self._last
            )

    def _begin(self) -> bool:
        with self._lock:
            free = self._running_since is None
            if free:
                self._running_since = self._clock.monotonic()
            return free

    def _probe(self) -> CheckResult:
        try:
            answer = self.check.probe()
        except Exception as error:  # noqa: BLE001 - a check that raises has failed, and the report goes on
            return CheckResult(self.check.name, HealthReason.RAISED, type(error).__name__)
        if isinstance(answer, HealthAnswer):
            return CheckResult(self.check.name, answer.reason, text=answer.text)
        return CheckResult(self.check.name, _to_reason(answer))

    def _end(self, result: CheckResult) -> CheckResult:
        with self._lock:
            self._last = (
                CheckResult(self.check.name, HealthReason.TIMED_OUT)
                if self._is_overdue()
                else result
            )
            self._running_since = None
            return self._last

    def _is_overdue(self) -> bool:
        return (
            self._running_since is not None
            and self._clock.monotonic() - self._running_since > self.check.timeout
        )


def _to_reason(answer: bool | HealthReason | None) -> HealthReason:  # noqa: FBT001 - probes return it
    if isinstance(answer, HealthReason):
        return answer
    return HealthReason.OK if answer is None or answer is True else HealthReason.FAILED
