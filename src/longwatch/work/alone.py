"""Rows that run alone: those of one engine that wait until nothing else runs, and the one that
does.
"""

from __future__ import annotations

from collections import deque

from longwatch.core.clock import Clock
from longwatch.work.solitude import Seat
from longwatch.work.source import Leased


class Alone:
    """For who deals. A row that has waited for longer than `within` seconds is to be left to
    others.
    """

    def __init__(self, seat: Seat, clock: Clock, *, within: float) -> None:
        self._seat = seat
        self._clock = clock
        self._within = within
        self._waiting: deque[Leased] = deque()
        self._since = 0.0
        self._running: Leased | None = None

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    @property
    def is_any(self) -> bool:
        """Whether one waits or runs: then nothing else is taken."""
        return bool(self._waiting) or self._running is not None

    def add(self, leased: Leased) -> None:
        self._since = self._clock.monotonic()
        self._waiting.append(leased)

    def patience(self) -> float:
        """Seconds until those that wait have waited long enough."""
        return max(self._since + self._within - self._clock.monotonic(), 0.0)

    def next(self, held: int) -> Leased | None:
        """The one to be run now, if nothing else runs: here, of so many that are held, or in
        another engine of this process.
        """
        if (
            not self._waiting
            or self._running is not None
            or not self._seat.ask()
            or held != len(self._waiting)
        ):
            return None
        self._running = self._waiting.popleft()
        return self._running

    @property
    def is_late(self) -> bool:
        return self._running is None and bool(self._waiting) and not self.patience()

    def drop(self) -> list[Leased]:
        """Those that wait, which do so no more."""
        dropped, self._waiting = list(self._waiting), deque()
        if self._running is None:
            self._seat.let_go()
        return dropped

    def over(self, leased: Leased) -> None:
        """A row is done; perhaps it was the one."""
        if self._running is leased:
            self._running = None
            self._seat.let_go()
