"""When a process that is there for suspects has nothing left to do.

It is idle while none of its loops holds a row. It ends when it has been idle for `IDLE_SECONDS`
after every loop has reached its store. A store that cannot be reached keeps it for
`MAX_START_SECONDS` at most: its parent starts another process when suspects are reported again.
"""

from __future__ import annotations

from collections.abc import Sequence

from longwatch.core.clock import Clock
from longwatch.host.service import Runnable

IDLE_SECONDS = 2.0
MAX_START_SECONDS = 30.0
CHECK_SECONDS = 0.2


class IdleEnd:
    """Decides from the state of the loops, checked every `CHECK_SECONDS`, whether the process may
    end.
    """

    def __init__(self, loops: Sequence[Runnable], clock: Clock) -> None:
        self._loops = loops
        self._clock = clock
        self._started_at = self._idle_since = clock.monotonic()

    def is_over(self) -> bool:
        now = self._clock.monotonic()
        if any(getattr(loop, "held_count", 0) for loop in self._loops):
            self._started_at = self._idle_since = now
        elif not all(getattr(loop, "has_reached_store", True) for loop in self._loops):
            self._idle_since = now
        return now - self._idle_since >= IDLE_SECONDS or now - self._started_at >= MAX_START_SECONDS
