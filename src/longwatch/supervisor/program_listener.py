"""Direct calls for code that must act when a program starts, stops or ends.

A supervisor calls its listeners on its loop, in the order in which they were added, after it
emitted the event of the same fact. Events are for logs and metrics: an observer that fails is
counted and ignored. A listener is part of the control flow, so its failure is not ignored:

    one listener raises   the other listeners are still called, so that each gets every fact
    then                  the supervisor emits `ProgramListenerFailed`, stops every program with its
                          own grace, and `Supervisor.wait` raises the first error

Invariants: `program_started` comes before `program_stopping` and `program_ended` of the same pid.
Each start has one end, unless the guardian ends first: then there is one `guardian_lost` and no
end. A failed spawn has an end without a pid and no start. `breaker_tripped` comes after the
`program_ended` that tripped it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from longwatch.core.end_cause import EndCause
from longwatch.supervisor.plan import ProgramKind
from longwatch.supervisor.restart_policy import EndVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStart:
    """The start of a process of a program."""

    program: str
    kind: ProgramKind
    pid: int
    on_demand: bool = False
    """Whether the program runs once, on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramStop:
    """The supervisor is about to signal a process. Sent again when a stop is escalated."""

    program: str
    kind: ProgramKind
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramEnd:
    """The end of a program's process tree, or a spawn that failed."""

    program: str
    kind: ProgramKind
    pid: int | None
    """None if it could not be spawned."""
    verdict: EndVerdict
    cause: EndCause
    restart: bool
    """Whether the program is started again after a backoff."""
    killed: int
    """How many processes of the tree were killed with SIGKILL."""
    on_demand: bool = False
    """Whether the program ran once, on demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerTrip:
    """A program failed too often. It starts again after the cooldown, if it has one."""

    program: str
    kind: ProgramKind


class ProgramListener:
    """Acts on starts and ends of programs. Override the methods you need.

    Every method is called on the supervisor's loop, also while it shuts down. It must not block. An
    error ends the supervisor (see the module).
    """

    def program_started(self, start: ProgramStart) -> None:
        """Called after a process was spawned."""

    def program_stopping(self, stop: ProgramStop) -> None:
        """Called before a process is signalled."""

    def program_ended(self, end: ProgramEnd) -> None:
        """Called when a process tree is gone."""

    def breaker_tripped(self, trip: BreakerTrip) -> None:
        """Called when the breaker of a program opened."""

    def guardian_lost(self) -> None:
        """Called when the guardian died, which killed all processes."""


class ProgramListeners(ProgramListener):
    """Calls several listeners in order. Passes an error of one to `on_error` and goes on.

    `add` is thread-safe. A listener that is added while programs run gets only later calls.
    """

    def __init__(self, on_error: Callable[[ProgramListener, BaseException], None]) -> None:
        self._listeners: tuple[ProgramListener, ...] = ()
        self._on_error = on_error

    def add(self, listener: ProgramListener) -> None:
        self._listeners = (*self._listeners, listener)

    def program_started(self, start: ProgramStart) -> None:
        self._call_each(lambda listener: listener.program_started(start))

    def program_stopping(self, stop: ProgramStop) -> None:
        self._call_each(lambda listener: listener.program_stopping(stop))

    def program_ended(self, end: ProgramEnd) -> None:
        self._call_each(lambda listener: listener.program_ended(end))

    def breaker_tripped(self, trip: BreakerTrip) -> None:
        self._call_each(lambda listener: listener.breaker_tripped(trip))

    def guardian_lost(self) -> None:
        self._call_each(lambda listener: listener.guardian_lost())

    def _call_each(self, call: Callable[[ProgramListener], None]) -> None:
        for listener in self._listeners:
            try:
                call(listener)
            except BaseException as error:  # noqa: BLE001 - SystemExit would end the loop's thread silently
                self._on_error(listener, error)
