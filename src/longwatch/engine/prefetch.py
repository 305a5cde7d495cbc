"""Computes how many rows to prefetch, from the recent durations of rows.

Prefetching saves round trips when work is short. When work is long, it keeps rows from other
workers. So the engine holds the rows that its slots can begin within a quarter of a second, by the
recent 95th percentile. It prefetches none when work takes longer. A duration is known only when
work ends. So if no row begins for half a second while rows wait, these rows are released and the
recent durations are forgotten.
"""

from __future__ import annotations

from collections import deque

PREFETCH_SECONDS = 0.25
STUCK_AFTER = 2 * PREFETCH_SECONDS
MAX_PREFETCH = 1000
_SAMPLE_SIZE = 200
_ESTIMATE_EVERY = 20


class Prefetch:
    """Records recent durations and computes how many rows to hold beyond those that run. Not
    thread-safe.
    """

    def __init__(self, slots: int, *, maximum: int | None = None) -> None:
        self._slots = slots
        self._maximum = MAX_PREFETCH if maximum is None else min(maximum, MAX_PREFETCH)
        self._recent: deque[float] = deque(maxlen=_SAMPLE_SIZE)
        self._since_estimate = 0
        self.limit = 0

    def record(self, duration: float) -> None:
        """Record the duration of a row."""
        self._recent.append(duration)
        self._since_estimate += 1
        if self._since_estimate >= _ESTIMATE_EVERY or duration > PREFETCH_SECONDS:
            self._since_estimate = 0
            self.limit = self._estimate()

    def reset(self) -> None:
        """Forget the durations, because prefetched rows could not begin in time."""
        self._recent.clear()
        self._since_estimate = 0
        self.limit = 0

    def surplus(self, held: int) -> int:
        """Return how many of the held rows are too many. A small excess is ignored, because the
        estimate varies.
        """
        allowed = self._slots + self.limit
        return held - allowed if held > allowed + self.limit else 0

    def _estimate(self) -> int:
        ordered = sorted(self._recent)
        p95 = ordered[int(len(ordered) * 0.95)]
        return (
            0
            if p95 > PREFETCH_SECONDS
            else min(int(self._slots * PREFETCH_SECONDS / max(p95, 1e-6)), self._maximum)
        )
