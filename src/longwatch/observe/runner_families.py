"""Every metric of the runner: its name after the namespace, its kind, its labels, and the closed
set of values of its second label.

`cluster` is the name of an event source, so its values are the sources of the configuration. No
label holds an id, the name of a resource or a time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from longwatch.errors import UsageError
from longwatch.observe.metric_families import MetricFamily, MetricKind

SEVERITIES = ("debug", "info", "warning", "error", "critical", "other")
FILTER_REASONS = ("severity", "duplicate", "disabled", "malformed")
DROP_REASONS = ("overflow", "oversize")
STATUSES = ("success", "failure", "timeout", "cancelled")
LOST = "cancelled"
"""The status of a run whose runner died."""
CLEAN_END = "server_restart"
ERROR_REASONS = ("network_error", "idle_timeout", "http_status", "bad_content_type", "dns", "tls")
RECONNECT_REASONS = (*ERROR_REASONS, CLEAN_END)
ALERTS = ("degraded", "recovered")

UNKNOWN_REASON = "other"
"""The label of a reason outside the known set. Its series appears with its first count."""

DEFAULT_NAMESPACE = "longwatch_runner"
_NAMESPACE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_RUN_BUCKETS = (1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_CONNECTION_BUCKETS = (60.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 14_400.0)


@dataclass(frozen=True, slots=True)
class RunnerFamily:
    """A metric without its namespace. `values`: all values of its second label, if it has one."""

    family: MetricFamily
    values: tuple[str, ...] = ()


def _counter(
    name: str, text: str, *more: str, values: tuple[str, ...] = (), note: str = ""
) -> RunnerFamily:
    family = MetricFamily(
        name=f"{name}_total",
        kind=MetricKind.COUNTER,
        help=text,
        labels=("cluster", *more),
        note=note,
    )
    return RunnerFamily(family, values)


def _gauge(
    name: str,
    text: str,
    *labels: str,
    ends_as: tuple[str, tuple[str, ...]] | None = None,
    note: str = "",
    absent: str = "",
) -> RunnerFamily:
    return RunnerFamily(
        MetricFamily(
            name=name,
            kind=MetricKind.GAUGE,
            help=text,
            labels=labels,
            ends_as=ends_as,
            note=note,
            absent=absent,
        )
    )


def _histogram(
    name: str,
    text: str,
    *more: str,
    buckets: tuple[float, ...],
    values: tuple[str, ...] = (),
    note: str = "",
) -> RunnerFamily:
    family = MetricFamily(
        name=f"{name}_seconds",
        kind=MetricKind.HISTOGRAM,
        help=text,
        labels=("cluster", *more),
        buckets=buckets,
        note=note,
    )
    return RunnerFamily(family, values)


_ALL = (
    _counter(
        "events_received",
        "Stream events received.",
        "severity",
        values=SEVERITIES,
        note="Those that the server repeated count, too.",
    ),
    _counter("events_filtered", "Stream events not queued.", "reason", values=FILTER_REASONS),
    _counter(
        "events_dropped",
        "Stream events dropped: the queue was full, or they were too large.",
        "reason",
        values=DROP_REASONS,
        note="For `overflow`, `queue_overflow_policy` decides whether that is the oldest or the "
        "newest event.",
    ),
    _counter("events_queued", "Stream events stored in the queue."),
    _counter(
        "events_expired",
        "Stream events that waited for too long and were not run.",
        note="The limit is `MAX_QUEUE_AGE_SECONDS`.",
    ),
    _counter(
        "events_dequeued",
        "Stream events taken from the queue for their first run.",
        note="A retry is not counted again.",
    ),
    _gauge(
        "queue_depth",
        "Stream events that wait in the queue.",
        "cluster",
        note="Read from the store at each scrape.",
        absent="while the store does not answer",
    ),
    _counter("agents_spawned", "Agent runs started, those that could not be spawned included."),
    _counter(
        "agents_timeout",
        "Agent runs ended at their timeout.",
        note="They have the status `timeout`.",
    ),
    _counter("agents_completed", "Agent runs that have ended.", "status", values=STATUSES),
    _histogram(
        "agent_duration",
        "How long agent runs took.",
        "status",
        buckets=_RUN_BUCKETS,
        values=STATUSES,
        note="An `AGENT_TIMEOUT_SECONDS` above 300 adds three buckets: that, 1.5 times that and "
        "twice that.",
    ),
    _gauge(
        "agents_active",
        "Agent runs under way.",
        "cluster",
        ends_as=("agents_completed_total", (LOST,)),
    ),
    _gauge(
        "circuit_breaker_state",
        "Whether the work breaker is open: 1 or 0.",
        note="1 during its trial, too.",
    ),
    _counter(
        "circuit_breaker_events_dropped",
        "Stream events dropped for a full queue while the work breaker was open.",
        note="`events_dropped_total` does not count them.",
    ),
    _gauge(
        "sse_connections_active",
        "Established connections to event sources.",
        "cluster",
        note="1 or 0 for each source.",
    ),
    _counter(
        "sse_reconnections",
        "Connections made again, by what ended the last.",
        "reason",
        values=RECONNECT_REASONS,
    ),
    _counter(
        "sse_connection_errors",
        "Connections that failed or could not be made.",
        "reason",
        values=ERROR_REASONS,
        note="`sse_reconnections_total` without `server_restart`, which is a clean end.",
    ),
    _histogram(
        "sse_connection_duration",
        "How long established connections lasted.",
        buckets=_CONNECTION_BUCKETS,
    ),
    _counter(
        "alerts",
        "Outages announced and ended; without a cluster: those of the agent.",
        "alert",
        values=ALERTS,
    ),
    _gauge("build_info", "What runs here; always 1.", "version", "git_commit", "build_date"),
    _gauge("up", "Whether the runner is up; always 1."),
)

CATALOGUE: Mapping[str, RunnerFamily] = {each.family.name: each for each in _ALL}


def runner_families(namespace: str, agent_timeout: float | None) -> dict[str, MetricFamily]:
    """The metrics by their names without the namespace, which the families themselves carry."""
    if not _NAMESPACE.fullmatch(namespace):
        raise UsageError(
            f"expected a metrics namespace of letters, digits and _, not beginning with a digit, "
            f"got {namespace!r}; {DEFAULT_NAMESPACE} is the default"
        )
    families = {name: each.family for name, each in CATALOGUE.items()}
    if agent_timeout is not None and agent_timeout > _RUN_BUCKETS[-1]:
        longer = tuple(agent_timeout * factor for factor in (1.0, 1.5, 2.0))
        duration = families["agent_duration_seconds"]
        families[duration.name] = replace(duration, buckets=(*_RUN_BUCKETS, *longer))
    return {name: _in_namespace(family, namespace) for name, family in families.items()}


def _in_namespace(family: MetricFamily, namespace: str) -> MetricFamily:
    ends_as = family.ends_as and (f"{namespace}_{family.ends_as[0]}", family.ends_as[1])
    return replace(family, name=f"{namespace}_{family.name}", ends_as=ends_as)
