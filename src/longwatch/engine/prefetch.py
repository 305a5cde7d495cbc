"""How many rows to lease ahead of the slots: pure arithmetic over recent durations.

Leasing ahead saves round trips when work is short, and starves long work of other workers. So the
engine holds what its slots can begin within a quarter of a second at the recent 95th percentile,
and nothing ahead when work takes longer than that. Durations are known only when work ends; so if
nothing begins for half a second while rows wait, those are stuck: they are released, and the
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
    """Remembers recent durations and says how many rows to hold beyond those that run. One
    owner; not thread-safe.
    """

    def __init__(self, slots: int, *, maximum: int | None = None) -> None:
        self._slots = slots
        self._maximum = MAX_PREFETCH if maximum is None else min(maximum, MAX_PREFETCH)
        self._recent: deque[float] = deque(maxlen=_SAMPLE_SIZE)
        self._since_estimate = 0
        self.limit = 0

    def record(self, duration: float) -> None:
        """A row took so long."""
        self._recent.append(duration)
        self._since_estimate += 1
        if self._since_estimate >= _ESTIMATE_EVERY or duration > PREFETCH_SECONDS:
            self._since_estimate = 0
            self.limit = self._estimate()

    def reset(self) -> None:
        """What was leased ahead could not begin in time."""
        self._recent.clear()
        self._since_estimate = 0
        self.limit = 0

    def surplus(self, held: int) -> int:
        """How many of the rows held are too many; a few too many are left where they are, the
        estimate goes up and down.
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
