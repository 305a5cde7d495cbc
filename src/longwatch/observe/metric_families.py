"""Defines every metric of the product: name, help text, labels, and how values of several processes
merge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto


class MetricKind(StrEnum):
    COUNTER = auto()
    GAUGE = auto()
    HISTOGRAM = auto()


class GaugeMerge(StrEnum):
    """How the values of one gauge in several processes merge. Counters and histograms
    are summed.
    """

    SUM = auto()
    MAX = auto()
    LAST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric. `buckets` are the upper bounds of a histogram, without the unbounded
    last bucket. `ends_as` is for a gauge of work in progress: the counter, and the values of its
    further labels, to which the last value is added when the process ends.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    merge: GaugeMerge = GaugeMerge.SUM
    buckets: tuple[float, ...] = ()
    ends_as: tuple[str, tuple[str, ...]] | None = None


Families = Mapping[str, MetricFamily]
"""Metrics by their names."""

HANDLE_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
ATTEMPT_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0)
"""Fewer than those of a loop: every node has them."""
SWEEP_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0)


def _counter(name: str, text: str, *labels: str) -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}_total", kind=MetricKind.COUNTER, help=text, labels=labels
    )


def _gauge(name: str, text: str, *labels: str, merge: GaugeMerge = GaugeMerge.SUM) -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}", kind=MetricKind.GAUGE, help=text, labels=labels, merge=merge
    )


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}_seconds",
        kind=MetricKind.HISTOGRAM,
        help=text,
        labels=labels,
        buckets=buckets,
    )


_FLOW = (
    _counter(
        "flow_attempts",
        "Attempts to compute a node that workers and sweeps ended.",
        "graph",
        "node",
        "state",
        "cause",
    ),
    _histogram(
        "flow_attempt",
        "How long the code of an attempt ran.",
        "graph",
        "node",
        buckets=ATTEMPT_BUCKETS,
    ),
    _gauge("flow_ready", "Attempts that a worker could claim now.", "graph", merge=GaugeMerge.MAX),
    _gauge("flow_delayed", "Attempts that are due later.", "graph", merge=GaugeMerge.MAX),
    _gauge("flow_running", "Attempts that workers have claimed.", "graph", merge=GaugeMerge.MAX),
    _gauge(
        "flow_oldest_ready_seconds",
        "Age of the attempt that a worker claims next.",
        "graph",
        merge=GaugeMerge.MAX,
    ),
    _counter("flow_claimed", "Attempts claimed by a loop.", "loop"),
    _counter("flow_released", "Attempts given back without blame, as in a shutdown.", "loop"),
    _counter("flow_stale_settlements", "Results that came too late: the lease was lost.", "loop"),
    _histogram("flow_sweep", "How long a sweep took.", "sweep", buckets=SWEEP_BUCKETS),
    _counter("flow_sweep_rows", "Rows that a sweep changed.", "sweep"),
    _counter("flow_sweep_errors", "Sweeps that failed.", "sweep"),
)
"""The metrics of graphs. Every worker process samples the whole backlog of its store, so its gauges
merge to their largest value. A node is a label because a graph defines its nodes: their number does
not grow with the work.
"""

_ALL = (
    _gauge("health_ready", "Whether everything is ready: 1 or 0.", merge=GaugeMerge.LAST),
    _gauge(
        "heartbeat_age_seconds",
        "Seconds since the last beat of a loop, of the stalest process.",
        "loop",
        merge=GaugeMerge.MAX,
    ),
    _gauge("loop_running", "How many processes run this loop.", "loop"),
    _counter("watchdog_stalls", "Loops that gave no beat for the threshold.", "loop"),
    _counter("loop_crashes", "Runs of a loop that raised.", "loop"),
    _counter("mailbox_received", "Messages leased by a loop.", "loop"),
    _counter("mailbox_acked", "Messages that are done.", "loop"),
    _counter("mailbox_nacked", "Messages given back after a failure.", "loop"),
    _counter("mailbox_released", "Messages given back without blame, as in a shutdown.", "loop"),
    _counter("mailbox_dead_lettered", "Messages given up by a loop.", "loop"),
    _counter(
        "messages_dead_lettered",
        "Messages that became dead letters, by a loop or in a sweep.",
        "mailbox",
        "reason",
    ),
    _counter(
        "mailbox_stale_settlements", "Settlements that came too late: the lease was lost.", "loop"
    ),
    _counter("replies_failed", "Replies that could not be sent.", "loop"),
    _histogram(
        "handle_duration", "How long the work on a message took.", "loop", buckets=HANDLE_BUCKETS
    ),
    _gauge("leases_held", "Messages or attempts that a loop holds now.", "loop"),
    _counter("leases_renewed", "Lease renewals, one for each row.", "loop"),
    _counter("leases_lost", "Leases lost while their work ran.", "loop", "reason"),
    _counter("claim_source_failures", "Outages of a store, as a loop saw them.", "loop"),
    _gauge("mailbox_ready", "Messages that could be taken now.", "mailbox", merge=GaugeMerge.LAST),
    _gauge("mailbox_delayed", "Messages that are due later.", "mailbox", merge=GaugeMerge.LAST),
    _gauge("mailbox_leased", "Messages that are leased.", "mailbox", merge=GaugeMerge.LAST),
    _gauge("mailbox_dead", "Dead letters.", "mailbox", merge=GaugeMerge.LAST),
    _gauge(
        "mailbox_oldest_age_seconds",
        "Age of the oldest message that could be taken now.",
        "mailbox",
        merge=GaugeMerge.LAST,
    ),
    *_FLOW,
    _gauge(
        "worker_up", "Whether a worker process is up: 1 or 0.", "program", merge=GaugeMerge.LAST
    ),
    _counter(
        "worker_stalls", "Worker processes that were killed because they gave no beat.", "program"
    ),
    _counter(
        "relay_dropped",
        "Events of a program that are missing in the log: its parent fell behind.",
        "program",
    ),
    _counter("program_starts", "Starts of a program.", "program"),
    _counter("program_ends", "Ends of a program, by verdict.", "program", "verdict"),
    _gauge("program_up", "Whether a program runs: 1 or 0.", "program", merge=GaugeMerge.LAST),
    _gauge(
        "program_ready", "Whether a program is ready: 1 or 0.", "program", merge=GaugeMerge.LAST
    ),
    _gauge(
        "program_breaker_open",
        "Whether the breaker of a program is open: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
    ),
    _gauge(
        "program_memory_bytes",
        "Resident memory of the process tree of a program.",
        "program",
        merge=GaugeMerge.LAST,
    ),
    _counter("program_cpu_seconds", "CPU time of the process tree of a program.", "program"),
    _gauge(
        "probe_success",
        "Whether a probe of a program passes: 1 or 0; absent until a threshold is reached.",
        "program",
        "probe",
        merge=GaugeMerge.LAST,
    ),
    _gauge(
        "container_runtime_up",
        "Whether the container runtime answers: 1 or 0.",
        merge=GaugeMerge.LAST,
    ),
    _counter("probe_failures", "Failed probes of a program.", "program", "probe"),
    _counter("breaker_trips", "Times that the breaker of a program tripped.", "program"),
)

FAMILIES = {family.name: family for family in _ALL}
