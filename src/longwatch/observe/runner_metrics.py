"""Metrics of a runner: counts its events, and writes them as Prometheus reads them.

Invariants
    1. Spawned = completed + active, for each cluster, in every snapshot: one lock guards all
       series, and an end without a start counts as both.
    2. Every series of a cluster exists at 0 from the start, for all values of closed labels.
    3. A label holds a value of its closed set, whatever an event says.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from longwatch.core.events.base import Event
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunStarted,
    EventSourceDegraded,
    EventSourceRecovered,
    QueuedEventExpired,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    StreamEventsTaken,
    WorkBreakerClosed,
    WorkBreakerOpened,
)
from longwatch.observe.counters import (
    MetricSample,
    SampleValue,
    SeriesKey,
    add_to_histogram,
    empty_histogram,
)
from longwatch.observe.metric_families import MetricFamily, MetricKind
from longwatch.observe.metrics import exposition
from longwatch.observe.runner_families import (
    CATALOGUE,
    CLEAN_END,
    DEFAULT_NAMESPACE,
    STATUSES,
    UNKNOWN_REASON,
    runner_families,
)

AGENT = ""
"""The cluster of alerts about the agent."""
_NOT_IN_TOTALS = frozenset({"build_info", "up"})


class RunnerMetrics:
    """Counts the events of a runner. Thread-safe; `observe` blocks for nothing but a lock.

    `queue_depth` is called at each scrape, in the thread that scrapes; while it raises, the gauge
    is absent. `agent_timeout`: above 300 seconds it adds buckets to the durations of runs.
    """

    def __init__(  # noqa: PLR0913 - facts of one runner, each by name
        self,
        *,
        clusters: Sequence[str],
        namespace: str = DEFAULT_NAMESPACE,
        agent_timeout: float | None = None,
        queue_depth: Callable[[], Mapping[str, int]] = dict,
        version: str = "unknown",
        git_commit: str = "unknown",
        build_date: str = "unknown",
    ) -> None:
        self.naming: dict[str, Any] = {"namespace": namespace, "agent_timeout": agent_timeout}
        """The arguments of `runner_families`, for a parent that serves these metrics."""
        self._families = runner_families(namespace, agent_timeout)
        self._by_full_name = {family.name: family for family in self._families.values()}
        self._clusters = tuple(clusters)
        self._queue_depth = queue_depth
        self._lock = threading.Lock()
        self._series = _RunnerSeries(self._families)
        self._series.set(1.0, "build_info", version, git_commit, build_date)
        self._series.set(1.0, "up")
        self._series.set(0.0, "circuit_breaker_state")
        for cluster in clusters:
            self._series.add_cluster(cluster)
        for alert in CATALOGUE["alerts_total"].values:
            self._series.add("alerts_total", AGENT, alert, number=0)

    def observe(self, event: Event) -> None:
        """Count an event. Events of other features are ignored."""
        rule = _RULES.get(type(event))
        if rule is not None:
            with self._lock:
                rule(self._series, event)

    def __call__(self) -> bytes:
        """The exposition, with the metrics of the process and its garbage collector."""
        samples = self.samples(self._queue_depth)
        return exposition(samples, self._by_full_name, with_process=True)

    def samples(self, queue_depth: Callable[[], Mapping[str, int]]) -> list[MetricSample]:
        """All series at one moment, by their full names. `queue_depth` is read just before."""
        return [
            MetricSample(self._families[name].name, labels, value)
            for (name, labels), value in self._snapshot(queue_depth).items()
        ]

    def totals(self) -> dict[str, float]:
        """Counters and gauges by name without namespace, each summed over its labels."""
        totals: dict[str, float] = {}
        for (name, _), value in self._snapshot(self._queue_depth).items():
            if not isinstance(value, list) and name not in _NOT_IN_TOTALS:
                totals[name] = totals.get(name, 0.0) + value
        return totals

    def _snapshot(
        self, queue_depth: Callable[[], Mapping[str, int]]
    ) -> dict[SeriesKey, SampleValue]:
        """All series at one moment. The depth of the queues is read just before."""
        depths = self._depths(queue_depth)
        with self._lock:
            return self._series.copy() | depths

    def _depths(self, queue_depth: Callable[[], Mapping[str, int]]) -> dict[SeriesKey, SampleValue]:
        try:
            depths = queue_depth()
        except Exception:  # noqa: BLE001 - a gauge that cannot be read is absent, which is what its absence means
            return {}
        return {
            ("queue_depth", (cluster,)): float(depths.get(cluster, 0))
            for cluster in dict.fromkeys((*self._clusters, *depths))
        }


class _RunnerSeries:
    """The values of all series. Not thread-safe: the lock of its owner guards it."""

    def __init__(self, families: Mapping[str, MetricFamily]) -> None:
        self._families = families
        self._values: dict[SeriesKey, SampleValue] = {}
        self._clusters: set[str] = set()
        self.active: set[str] = set()
        """The ids of runs under way."""

    def add_cluster(self, cluster: str) -> None:
        """Create every series of this cluster at 0."""
        if cluster in self._clusters:
            return
        self._clusters.add(cluster)
        for name, each in CATALOGUE.items():
            if "cluster" not in each.family.labels or name == "queue_depth":
                continue
            for value in each.values or (None,):
                labels = (cluster,) if value is None else (cluster, value)
                self._values.setdefault((name, labels), self._zero(name))

    def add(self, name: str, *labels: str, number: float = 1.0) -> None:
        value = self._values.setdefault((name, labels), 0.0)
        assert not isinstance(value, list)
        self._values[name, labels] = value + number

    def add_each(self, name: str, cluster: str, numbers: Mapping[str, int], other: str) -> None:
        """Count by the second label; a value that is not in its set counts as `other`."""
        for label, number in numbers.items():
            self.add(name, cluster, closed(name, label, other), number=number)

    def set(self, value: float, name: str, *labels: str) -> None:
        self._values[name, labels] = value

    def add_duration(self, name: str, seconds: float, *labels: str) -> None:
        histogram = self._values.setdefault((name, labels), self._zero(name))
        assert isinstance(histogram, list)
        add_to_histogram(histogram, self._families[name].buckets, seconds)

    def copy(self) -> dict[SeriesKey, SampleValue]:
        return {
            key: list(value) if isinstance(value, list) else value
            for key, value in self._values.items()
        }

    def _zero(self, name: str) -> SampleValue:
        family = self._families[name]
        return empty_histogram(family.buckets) if family.kind is MetricKind.HISTOGRAM else 0.0


def closed(name: str, value: str, other: str) -> str:
    """The value if the second label of this metric may have it, else `other`."""
    return value if value in CATALOGUE[name].values else other


# --- what an event adds ---


def _count_taken(series: _RunnerSeries, event: StreamEventsTaken) -> None:
    cluster = event.cluster
    series.add_cluster(cluster)
    series.add_each("events_received_total", cluster, event.received, UNKNOWN_REASON)
    series.add_each("events_filtered_total", cluster, event.filtered, UNKNOWN_REASON)
    series.add_each("events_dropped_total", cluster, event.dropped, UNKNOWN_REASON)
    series.add("events_queued_total", cluster, number=event.queued)
    series.add("circuit_breaker_events_dropped_total", cluster, number=event.breaker_dropped)


def _count_expired(series: _RunnerSeries, event: QueuedEventExpired) -> None:
    series.add_cluster(event.cluster)
    series.add("events_expired_total", event.cluster, number=event.count)


def _count_start(series: _RunnerSeries, event: AgentRunStarted) -> None:
    if event.run_id in series.active:
        return
    _add_start(series, event.cluster, event.attempt)
    series.active.add(event.run_id)


def _count_end(series: _RunnerSeries, event: AgentRunEnded) -> None:
    cluster = event.cluster
    if event.run_id not in series.active:
        _add_start(series, cluster, event.attempt)
    series.active.discard(event.run_id)
    status = closed("agents_completed_total", event.status, STATUSES[1])
    series.add("agents_active", cluster, number=-1)
    series.add("agents_completed_total", cluster, status)
    series.add_duration("agent_duration_seconds", event.duration, cluster, status)
    if status == "timeout":
        series.add("agents_timeout_total", cluster)


def _add_start(series: _RunnerSeries, cluster: str, attempt: int) -> None:
    series.add_cluster(cluster)
    series.add("agents_spawned_total", cluster)
    series.add("agents_active", cluster)
    if attempt == 1:
        series.add("events_dequeued_total", cluster)


def _mark_connected(series: _RunnerSeries, event: SseConnectionEstablished) -> None:
    series.add_cluster(event.cluster)
    series.set(1.0, "sse_connections_active", event.cluster)


def _mark_closed(series: _RunnerSeries, event: SseConnectionClosed) -> None:
    series.add_cluster(event.cluster)
    series.set(0.0, "sse_connections_active", event.cluster)
    series.add_duration("sse_connection_duration_seconds", event.duration_seconds, event.cluster)


def _count_reconnect(series: _RunnerSeries, event: SseConnectionFailed) -> None:
    series.add_cluster(event.cluster)
    reason = closed("sse_reconnections_total", event.reason, UNKNOWN_REASON)
    series.add("sse_reconnections_total", event.cluster, reason)
    if reason != CLEAN_END:
        series.add("sse_connection_errors_total", event.cluster, reason)


def _count_alert(alert: str) -> Callable[[_RunnerSeries, Any], None]:
    return lambda series, event: series.add("alerts_total", event.cluster, alert)


def _set_breaker(value: float) -> Callable[[_RunnerSeries, Any], None]:
    return lambda series, _: series.set(value, "circuit_breaker_state")


_RULES: dict[type[Event], Callable[[_RunnerSeries, Any], None]] = {
    StreamEventsTaken: _count_taken,
    QueuedEventExpired: _count_expired,
    AgentRunStarted: _count_start,
    AgentRunEnded: _count_end,
    SseConnectionEstablished: _mark_connected,
    SseConnectionClosed: _mark_closed,
    SseConnectionFailed: _count_reconnect,
    EventSourceDegraded: _count_alert("degraded"),
    EventSourceRecovered: _count_alert("recovered"),
    WorkBreakerOpened: _set_breaker(1.0),
    WorkBreakerClosed: _set_breaker(0.0),
}
