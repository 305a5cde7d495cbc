"""Decides whether a stream event is queued, or filtered for a reason.

    malformed   it is not a stream event
    disabled    its source is disabled
    severity    it is milder than the threshold
    duplicate   an event of the same fault was queued less than the window ago

The window counts from the event that was queued. Its duplicates do not extend it, so a fault that
goes on is queued again once in a window. An event that was dropped for a full queue leaves the
window again: its fault has not been dealt with.

Each source has its own window in memory. It is read again from the stored events when the runner
starts, claims a source, or does not know whether a transaction was committed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from longwatch.runner.policy import RunnerPolicy, Severity
from longwatch.runner.severity import RANKS
from longwatch.runner.stream_event import StreamEvent

MALFORMED, OVERSIZE, OVERFLOW = "malformed", "oversize", "overflow"
DISABLED, SEVERITY, DUPLICATE = "disabled", "severity", "duplicate"


class FaultWindow:
    """When each fault was last queued, oldest first; times are on the store's wall clock."""

    def __init__(self, seconds: float, queued: Iterable[tuple[str, float]] = ()) -> None:
        self._seconds = seconds
        self._queued_at: OrderedDict[str, float] = OrderedDict(queued)

    def holds(self, fault_key: str, now: float) -> bool:
        """Return whether the fault was queued less than the window ago."""
        queued_at = self._queued_at.get(fault_key)
        # A clock that was set back must not make the window longer.
        return queued_at is not None and abs(now - queued_at) < self._seconds

    def add(self, fault_keys: Iterable[str], now: float) -> None:
        if self._seconds <= 0:
            return
        queued_at = self._queued_at
        for key in fault_keys:
            queued_at[key] = now
            queued_at.move_to_end(key)
        while queued_at and abs(now - next(iter(queued_at.values()))) >= self._seconds:
            queued_at.popitem(last=False)

    def discard(self, fault_keys: Iterable[str | None]) -> None:
        for key in fault_keys:
            if key is not None:
                self._queued_at.pop(key, None)

    def __len__(self) -> int:
        return len(self._queued_at)


class EventFilter:
    """The rules for one source."""

    def __init__(self, policy: RunnerPolicy, *, is_enabled: bool = True) -> None:
        threshold = RANKS[policy.severity_threshold]
        self._too_mild = frozenset(each for each in Severity if RANKS[each] < threshold)
        self._is_enabled = is_enabled
        self._has_window = policy.dedup_window > 0

    def reason(
        self, event: StreamEvent, window: FaultWindow, fresh: set[str], now: float
    ) -> str | None:
        """Return why the event is filtered; None if it is to be queued. `fresh` are the faults that
        this transaction queues, which are not in the window yet.
        """
        if event.problem:
            return MALFORMED
        if not self._is_enabled:
            return DISABLED
        if event.severity in self._too_mild:
            return SEVERITY
        key = event.fault_key
        if self._has_window and key is not None and (key in fresh or window.holds(key, now)):
            return DUPLICATE
        return None
