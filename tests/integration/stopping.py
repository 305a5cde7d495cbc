"""Stops that are under way, and the moment before their deadline in which what still runs is
told.
"""

from __future__ import annotations

from collections.abc import Callable

from longwatch.host.errand import Errand
from longwatch.testing import FakeClock

PATIENCE = 10.0


class Stopping:
    """A stop under way in another thread."""

    def __init__(self, stop: Callable[[], bool]) -> None:
        self.gone: bool | None = None
        self._stop = stop
        self._errand = Errand(self._run, name="stopping")
        self._errand.start()

    def _run(self) -> None:
        self.gone = self._stop()

    def is_over(self, *, within: float) -> bool:
        return self._errand.over.block(within)

    def outcome(self) -> bool | None:
        assert self.is_over(within=PATIENCE)
        if self._errand.error is not None:
            raise self._errand.error
        return self.gone


def stopped_once_told(
    clock: FakeClock, told: Callable[[], bool], stop: Callable[[float], bool]
) -> bool | None:
    """Stop with a deadline, and move time until it was `told`, which has to be before the last half
    second; what the stop says.

    After that time stands still: however slow the machine is, what is told has all the time it
    takes.
    """
    until = clock.monotonic() + 19.5
    stopping = Stopping(lambda: stop(20.0))
    for _ in range(2000):
        if told():
            return stopping.outcome()
        clock._wake_due(min(clock.monotonic() + 0.5, until))
        stopping.is_over(within=0.005)
    raise AssertionError("nobody was told")
