"""How often an engine may take rows: for ever, or a number of times, each of which ends with
rows or with the end of its wait.
"""

from __future__ import annotations

from math import inf

from longwatch.core.clock import Clock
from longwatch.work.policy import EnginePolicy


class Polling:
    """Counts the polls of one engine. One owner; not thread-safe. An engine that counts takes no
    more than its slots can run.
    """

    def __init__(self, policy: EnginePolicy, clock: Clock) -> None:
        self._left = inf if policy.polls is None else policy.polls
        self._slots = policy.slots
        self._wait = policy.poll_wait
        self._clock = clock
        self._began = clock.monotonic()

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    @property
    def _counts(self) -> bool:
        return self._left != inf

    def polled(self, got: int) -> None:
        """Rows were asked for, and so many came."""
        if self._counts and (got or self._elapsed() >= self._wait):
            self._left -= 1
            self._began = self._clock.monotonic()

    def bounded(self, room: int, *, held: int) -> int:
        """How many of so many rows may be taken."""
        if not self._counts:
            return room
        return 0 if self.is_over else min(room, max(self._slots - held, 0))

    def patience(self) -> float:
        """Until this poll is over."""
        return max(self._wait - self._elapsed(), 0.0) if self._counts else inf

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._began
