"""One alert for an outage, however many failures it has.

An outage is announced once: at the N-th failure in a row, or at the first failure that only a
person can repair. Its end is announced once, if its begin was. The throttle decides; its owner
emits what it returns.
"""

from __future__ import annotations

from longwatch.core.events.runner import EventSourceDegraded, EventSourceRecovered


class AlertThrottle:
    """Counts the failures in a row of one source, or of the agent (`cluster` empty). One owner.

    Moments are on any clock that only grows.
    """

    def __init__(self, cluster: str, *, alert_after: int) -> None:
        self._cluster = cluster
        self._alert_after = alert_after
        self._failures = 0
        self._first_at = 0.0
        self.is_degraded = False
        """Whether an outage was announced that has not ended."""

    def failed(
        self, *, now: float, error: str, at_once: bool = False
    ) -> EventSourceDegraded | None:
        """Count a failure. Return the alert if this failure raises it."""
        if not self._failures:
            self._first_at = now
        self._failures += 1
        if self.is_degraded or (self._failures < self._alert_after and not at_once):
            return None
        self.is_degraded = True
        return EventSourceDegraded(cluster=self._cluster, failures=self._failures, error=error)

    def succeeded(self, *, now: float) -> EventSourceRecovered | None:
        """End the row of failures at `now`. Return the all-clear if there was an alert."""
        was_degraded, self.is_degraded = self.is_degraded, False
        self._failures = 0
        if not was_degraded:
            return None
        return EventSourceRecovered(cluster=self._cluster, downtime=now - self._first_at)
