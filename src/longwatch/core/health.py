"""Named checks, and what they say together: is it live, is it ready, has it started?"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum, auto

from longwatch.core.clock import Clock


class Aspect(StrEnum):
    """The questions that can be asked."""

    LIVE = auto()
    READY = auto()
    STARTED = auto()


class Reason(StrEnum):
    """The closed list of answers a check can give; all but `ok` are a no."""

    OK = auto()
    FAILED = auto()  # it said no and nothing more
    RAISED = auto()
    OVERRAN = auto()  # no answer within the check's deadline
    PENDING = auto()  # it has been asked, and has not answered once yet
    STALE = auto()  # a heartbeat is too old
    DRAINING = auto()
    NOT_STARTED = auto()
    NOT_RUNNING = auto()
    UNREACHABLE = auto()
    DISCONNECTED = auto()
    BREAKER_OPEN = auto()
    FULL = auto()
    OVER_LIMIT = auto()


Probe = Callable[[], bool | Reason | None]


@dataclass(frozen=True, slots=True)
class Check:
    """A probe with a name, the aspects it speaks for, and the seconds it may take.

    The probe says ok with True, None or `Reason.OK`, and no with False or any other reason. It is
    called in the thread of whoever asks for a report, never twice at a time. A `quick` one only
    looks at what is in memory: it may be asked by a thread that others wait for.
    """

    name: str
    probe: Probe
    aspects: frozenset[Aspect]
    deadline: float = 2.0
    quick: bool = False

    def __post_init__(self) -> None:
        if not (self.name and self.aspects and self.deadline > 0):
            raise ValueError(
                f"check {self.name!r} needs a name, at least one aspect, and a deadline above 0"
            )


@dataclass(frozen=True, slots=True)
class Result:
    """What one check says; `detail` is the type of the error if it raised, never its text, which
    may hold secrets.
    """

    name: str
    reason: Reason
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.reason is Reason.OK


@dataclass(frozen=True, slots=True)
class Report:
    """What all checks of one aspect say; ok if each is, and if there are none."""

    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        return all(result.ok for result in self.results)

    @property
    def failing(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if not result.ok)


class Health:
    """Asks the checks, in the thread of whoever wants a report; reports may run side by side.

    A check that another report is asking at the moment is not asked again: past its deadline it
    `overran`, before that it says what it said last, `pending` if nothing yet. So a probe that
    hangs holds only its first caller, and `known` is never held.
    """

    def __init__(self, checks: Iterable[Check], clock: Clock) -> None:
        self._asked = [_Asked(check, clock) for check in checks]
        names = Counter(asked.check.name for asked in self._asked)
        if twice := sorted(name for name, times in names.items() if times > 1):
            raise ValueError(
                f"checks need different names; more than one is called {', '.join(twice)}"
            )

    def report(self, aspect: Aspect) -> Report:
        """Ask every check of this aspect, one after the other."""
        return Report(tuple(asked.ask() for asked in self._asked if aspect in asked.check.aspects))

    def known(self, aspect: Aspect) -> Report:
        """What is known without asking anyone: the last answers, and who has overrun by now.
        Never blocks.
        """
        return Report(
            tuple(asked.known() for asked in self._asked if aspect in asked.check.aspects)
        )


class _Asked:
    """One check, since when it is being asked, and what it said last."""

    def __init__(self, check: Check, clock: Clock) -> None:
        self.check = check
        self._clock = clock
        self._since: float | None = None
        self._last = Result(check.name, Reason.PENDING)
        self._lock = threading.Lock()

    def ask(self) -> Result:
        if not self._begin():
            return self.known()
        try:
            return self._end(self._probe())
        except BaseException as exiting:
            self._end(Result(self.check.name, Reason.RAISED, type(exiting).__name__))
            raise

    def known(self) -> Result:
        with self._lock:
            return Result(self.check.name, Reason.OVERRAN) if self._overdue() else self._last

    def _begin(self) -> bool:
        with self._lock:
            free = self._since is None
            if free:
                self._since = self._clock.monotonic()
            return free

    def _probe(self) -> Result:
        try:
            said = self.check.probe()
        except Exception as error:  # noqa: BLE001 - a check that raises is a failed check, and the report goes on
            return Result(self.check.name, Reason.RAISED, type(error).__name__)
        return Result(self.check.name, _reason(said))

    def _end(self, answer: Result) -> Result:
        with self._lock:
            self._last = Result(self.check.name, Reason.OVERRAN) if self._overdue() else answer
            self._since = None
            return self._last

    def _overdue(self) -> bool:
        return (
            self._since is not None and self._clock.monotonic() - self._since > self.check.deadline
        )


def _reason(said: bool | Reason | None) -> Reason:  # noqa: FBT001 - it is what probes return
    if isinstance(said, Reason):
        return said
    return Reason.OK if said is None or said is True else Reason.FAILED
