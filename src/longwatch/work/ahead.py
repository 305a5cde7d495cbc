"""How many rows to lease ahead of the slots: pure arithmetic over recent durations.

Leasing ahead saves round trips when work is short, and starves long work of other workers. So the
engine holds what its slots can begin within a quarter of a second at the recent 95th percentile,
and nothing ahead when work takes longer than that. Durations are known only when work ends; so if
nothing begins for half a second while rows wait, those are `stuck`: they are handed back, and what
was remembered is forgotten.
"""

from __future__ import annotations

from collections import deque

WITHIN = 0.25
STUCK_AFTER = 2 * WITHIN
MOST = 1000
_REMEMBERED = 200
_AGAIN_AFTER = 20


class LeaseAhead:
    """Remembers recent durations and says how many rows to hold beyond those that run. One
    owner; not thread-safe.
    """

    def __init__(self, slots: int, *, most: int | None = None) -> None:
        self._slots = slots
        self._most = MOST if most is None else min(most, MOST)
        self._recent: deque[float] = deque(maxlen=_REMEMBERED)
        self._fresh = 0
        self.ahead = 0

    def ran(self, duration: float) -> None:
        """A row took so long."""
        self._recent.append(duration)
        self._fresh += 1
        if self._fresh >= _AGAIN_AFTER or duration > WITHIN:
            self._fresh = 0
            self.ahead = self._reckon()

    def stuck(self) -> None:
        """What was leased ahead could not begin in time."""
        self._recent.clear()
        self._fresh = 0
        self.ahead = 0

    def surplus(self, held: int) -> int:
        """How many of the rows held are too many; a few too many are left where they are, the
        estimate goes up and down.
        """
        allowed = self._slots + self.ahead
        return held - allowed if held > allowed + self.ahead else 0

    def _reckon(self) -> int:
        ordered = sorted(self._recent)
        p95 = ordered[int(len(ordered) * 0.95)]
        return 0 if p95 > WITHIN else min(int(self._slots * WITHIN / max(p95, 1e-6)), self._most)
