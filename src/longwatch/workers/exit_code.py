"""Decides when all worker processes are done, and which exit code that is.

A worker is done when it has finished (it reported so, and exited with 0) and is not started again,
or is given up: its breaker has tripped, its configuration is wrong, or it failed for good. A worker
that starts again is not done: every end that the parent or an operator did not ask for is replaced
(`supervisor.restart_policy`).
One worker that is given up does not end the others. When the last one is done, nothing is left to
supervise. Processes of suspects (`workers.suspects`) run on demand and count for nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from longwatch.core.end_cause import EndKind
from longwatch.supervisor.program import EXIT_NEEDS_OPERATOR
from longwatch.supervisor.program_listener import (
    BreakerTrip,
    ProgramEnd,
    ProgramListener,
    ProgramStart,
)
from longwatch.supervisor.restart_policy import EndVerdict

_GIVEN_UP_VERDICTS = frozenset({EndVerdict.CONFIGURATION_ERROR, EndVerdict.FATAL_ERROR_NO_RESTART})


class ExitTracker(ProgramListener):
    """Calls `on_all_done` when none of the named programs is left, and keeps the exit code."""

    def __init__(self, names: Iterable[str], on_all_done: Callable[[], None]) -> None:
        self.exit_code = 0
        """1 if a worker failed while it was shut down, 100 if one was given up and all are done."""
        self._remaining = set(names)
        self._given_up: set[str] = set()
        self._on_all_done = on_all_done

    def program_started(self, start: ProgramStart) -> None:
        if start.on_demand:
            return
        self._remaining.add(start.program)
        self._given_up.discard(start.program)

    def breaker_tripped(self, trip: BreakerTrip) -> None:
        self._give_up(trip.program)

    def program_ended(self, end: ProgramEnd) -> None:
        if end.on_demand:
            return
        if end.verdict is EndVerdict.CLEAN_EXIT and not end.restart:
            self._mark_done(end.program)
        elif end.verdict in _GIVEN_UP_VERDICTS:
            self._give_up(end.program)
        elif end.verdict is EndVerdict.SHUTDOWN_COMPLETE and (
            end.cause.kind is EndKind.EXIT and end.cause.number
        ):
            self.exit_code = max(self.exit_code, 1)

    def _give_up(self, program: str) -> None:
        self._given_up.add(program)
        self._mark_done(program)

    def _mark_done(self, program: str) -> None:
        self._remaining.discard(program)
        if not self._remaining:
            self.exit_code = EXIT_NEEDS_OPERATOR if self._given_up else self.exit_code
            self._on_all_done()
