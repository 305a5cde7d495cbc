"""How often an engine may take rows: for ever, or a number of times, each of which ends with
rows or with the end of its wait.
"""

from __future__ import annotations

from math import inf

from longwatch.core.clock import Clock
from longwatch.engine.policy import EnginePolicy


class PollBudget:
    """Counts the polls of one engine. One owner; not thread-safe. An engine that counts takes no
    more than its slots can run.
    """

    def __init__(self, policy: EnginePolicy, clock: Clock) -> None:
        self._polls_left = inf if policy.max_polls is None else policy.max_polls
        self._slots = policy.slots
        self._poll_wait = policy.poll_wait
        self._clock = clock
        self._started_at = clock.monotonic()

    @property
    def is_spent(self) -> bool:
        return self._polls_left <= 0

    @property
    def _is_limited(self) -> bool:
        return self._polls_left != inf

    def record(self, claimed: int) -> None:
        """Rows were asked for, and so many came."""
        if self._is_limited and (claimed or self._elapsed() >= self._poll_wait):
            self._polls_left -= 1
            self._started_at = self._clock.monotonic()

    def cap(self, capacity: int, *, held: int) -> int:
        """How many of so many rows may be taken."""
        if not self._is_limited:
            return capacity
        return 0 if self.is_spent else min(capacity, max(self._slots - held, 0))

    def time_left(self) -> float:
        """Until this poll is over."""
        return max(self._poll_wait - self._elapsed(), 0.0) if self._is_limited else inf

    def _elapsed(self) -> float:
        return self._clock.monotonic() - self._started_at
