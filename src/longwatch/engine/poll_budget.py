"""Counts how often an engine with `max_polls` may still claim. A poll ends with rows, or after its
wait.
"""

from __future__ import annotations

from longwatch.core.clock import Clock


class PollBudget:
    """Counts the polls of one engine, which then claims no more rows than its slots can run. Not
    thread-safe.
    """

    def __init__(self, max_polls: int, *, poll_wait: float, slots: int, clock: Clock) -> None:
        self._polls_left = max_polls
        self._poll_wait = poll_wait
        self._slots = slots
        self._clock = clock
        self._started_at = clock.monotonic()

    @property
    def is_spent(self) -> bool:
        return self._polls_left <= 0

    def record(self, claimed: int) -> None:
        """Count a claim that returned `claimed` rows."""
        if claimed or not self.time_left():
            self._polls_left -= 1
            self._started_at = self._clock.monotonic()

    def cap(self, capacity: int, *, held: int) -> int:
        """Return how many of `capacity` rows may be claimed."""
        return 0 if self.is_spent else min(capacity, max(self._slots - held, 0))

    def time_left(self) -> float:
        """Return the seconds until the wait of this poll is over."""
        return max(self._poll_wait - (self._clock.monotonic() - self._started_at), 0.0)
