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
    further labels, to which the last value is added when the process ends. The reference adds
    `note` to the help text. `absent` says when a series is missing that one would expect.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    merge: GaugeMerge = GaugeMerge.SUM
    buckets: tuple[float, ...] = ()
    ends_as: tuple[str, tuple[str, ...]] | None = None
    note: str = ""
    absent: str = ""


Families = Mapping[str, MetricFamily]
"""Metrics by their names."""

HANDLE_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0)
ATTEMPT_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 14_400.0, 43_200.0)
"""Fewer than those of a loop: every node has them."""
SWEEP_BUCKETS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0)


def _counter(name: str, text: str, *labels: str, note: str = "") -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}_total",
        kind=MetricKind.COUNTER,
        help=text,
        labels=labels,
        note=note,
    )


def _gauge(
    name: str,
    text: str,
    *labels: str,
    merge: GaugeMerge = GaugeMerge.SUM,
    note: str = "",
    absent: str = "",
) -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}",
        kind=MetricKind.GAUGE,
        help=text,
        labels=labels,
        merge=merge,
        note=note,
        absent=absent,
    )


def _histogram(
    name: str, text: str, *labels: str, buckets: tuple[float, ...], note: str = ""
) -> MetricFamily:
    return MetricFamily(
        name=f"longwatch_{name}_seconds",
        kind=MetricKind.HISTOGRAM,
        help=text,
        labels=labels,
        buckets=buckets,
        note=note,
    )


HEARTBEAT_AGE = "longwatch_heartbeat_age_seconds"
"""The one gauge that a parent computes itself, as a frozen process reports none."""

LOOP_FAMILIES = (
    _gauge("health_ready", "Whether everything is ready: 1 or 0.", merge=GaugeMerge.LAST),
    _gauge(
        "heartbeat_age_seconds",
        "Seconds since the last heartbeat of a loop, in the stalest process.",
        "loop",
        merge=GaugeMerge.MAX,
    ),
    _gauge("loop_running", "How many processes run this loop.", "loop"),
    _counter(
        "watchdog_stalls",
        "Loops without a heartbeat for the threshold, as their own watchdog saw it.",
        "loop",
        note="The process ends then: see `longwatch_program_ends_total` for its end.",
    ),
    _counter("loop_crashes", "Runs of a loop that raised.", "loop"),
    _histogram(
        "handle_duration", "How long the work on a message took.", "loop", buckets=HANDLE_BUCKETS
    ),
    _gauge("leases_held", "Messages or attempts that a loop has leased now.", "loop"),
    _counter(
        "leases_renewed",
        "Lease renewals, one for each row.",
        "loop",
        note="Those of a parent are not counted.",
    ),
    _counter("leases_lost", "Leases lost while their work ran.", "loop", "reason"),
    _counter("claim_source_failures", "Outages of a store, as a loop saw them.", "loop"),
)
"""The metrics of every loop."""

_STORE_AWAY = "while the store does not answer"

MAILBOX_FAMILIES = (
    _counter("mailbox_received", "Messages leased by a loop.", "loop"),
    _counter("mailbox_acked", "Messages acknowledged.", "loop"),
    _counter("mailbox_nacked", "Messages released after a failure.", "loop"),
    _counter("mailbox_released", "Messages released without a failure, as in a shutdown.", "loop"),
    _counter(
        "mailbox_dead_lettered",
        "Messages dead-lettered by a loop.",
        "loop",
        note="Those of a sweep are in `longwatch_messages_dead_lettered_total`.",
    ),
    _counter(
        "messages_dead_lettered",
        "Messages dead-lettered by a loop or in a sweep.",
        "mailbox",
        "reason",
    ),
    _counter(
        "mailbox_stale_settlements", "Settlements that came too late: the lease was lost.", "loop"
    ),
    _counter("replies_failed", "Replies that could not be sent.", "loop"),
    _gauge(
        "mailbox_ready",
        "Messages that a loop could take now.",
        "mailbox",
        merge=GaugeMerge.LAST,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "mailbox_delayed",
        "Messages that are due later.",
        "mailbox",
        merge=GaugeMerge.LAST,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "mailbox_leased",
        "Messages that are leased.",
        "mailbox",
        merge=GaugeMerge.LAST,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "mailbox_dead",
        "Dead letters.",
        "mailbox",
        merge=GaugeMerge.LAST,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "mailbox_oldest_age_seconds",
        "Age of the oldest message that a loop could take now.",
        "mailbox",
        merge=GaugeMerge.LAST,
        absent=_STORE_AWAY,
    ),
)

FLOW_FAMILIES = (
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
        note="Only attempts that their own worker ended.",
    ),
    _gauge(
        "flow_ready",
        "Attempts that a worker could claim now.",
        "graph",
        merge=GaugeMerge.MAX,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "flow_delayed",
        "Attempts that are due later.",
        "graph",
        merge=GaugeMerge.MAX,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "flow_running",
        "Attempts that workers have claimed.",
        "graph",
        merge=GaugeMerge.MAX,
        absent=_STORE_AWAY,
    ),
    _gauge(
        "flow_oldest_ready_seconds",
        "Age of the attempt that a worker claims next.",
        "graph",
        merge=GaugeMerge.MAX,
        note="0 without one.",
        absent=_STORE_AWAY,
    ),
    _counter("flow_claimed", "Attempts claimed by a loop.", "loop"),
    _counter("flow_released", "Attempts released without a failure, as in a shutdown.", "loop"),
    _counter("flow_stale_settlements", "Results that came too late: the lease was lost.", "loop"),
    _histogram(
        "flow_sweep",
        "How long a sweep took.",
        "sweep",
        buckets=SWEEP_BUCKETS,
        note="`_count` is the number of runs.",
    ),
    _counter("flow_sweep_rows", "Attempts or executions that a sweep changed.", "sweep"),
    _counter("flow_sweep_errors", "Sweeps that failed.", "sweep"),
)
"""The metrics of graphs. Every worker process samples the whole backlog of its store, so its gauges
merge to their largest value. A node is a label because a graph defines its nodes: their number does
not grow with the work.
"""

PROGRAM_FAMILIES = (
    _counter("program_starts", "Starts of a program.", "program"),
    _counter(
        "program_ends",
        "Ends of a program, by verdict.",
        "program",
        "verdict",
        note="Ends by failed liveness are `health_check_restart`.",
    ),
    _counter("breaker_trips", "Times that the breaker of a program tripped.", "program"),
    _counter(
        "worker_stalls",
        "Worker processes that the parent killed because they gave no heartbeat.",
        "program",
        note="Where their own watchdog was first, only the end is counted.",
    ),
    _counter(
        "relay_dropped",
        "Events of a program that are missing in the log: its parent fell behind.",
        "program",
        note="The log is `logs/watchdog.log`. Workers, the runner and the page send such events.",
    ),
    _gauge(
        "worker_up",
        "Whether a worker process is up: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
        absent="on the port of `longwatch up`, which has `longwatch_program_up`",
    ),
)
"""The metrics of `longwatch worker`, and of `longwatch up` but for `longwatch_worker_up`."""

_SUPERVISOR_AWAY = "while the supervisor does not answer within a second"

UP_FAMILIES = (
    _gauge(
        "program_desired",
        "Whether a program should run: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
        note="0 once it was stopped, or has ended with 0 and is not restarted. 0 for the status "
        "page, which never counts.",
        absent=_SUPERVISOR_AWAY,
    ),
    _gauge(
        "program_up",
        "Whether a program runs: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
        absent=_SUPERVISOR_AWAY,
    ),
    _gauge(
        "program_ready",
        "Whether a program is ready: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
        note="0 also for a worker or a runner that reports that it is not.",
        absent=_SUPERVISOR_AWAY,
    ),
    _gauge(
        "program_breaker_open",
        "Whether the breaker of a program is open: 1 or 0.",
        "program",
        merge=GaugeMerge.LAST,
        note="0 during a trial start.",
        absent=_SUPERVISOR_AWAY,
    ),
    _gauge(
        "program_memory_bytes",
        "Resident memory of the process tree of a program.",
        "program",
        merge=GaugeMerge.LAST,
        note="Pages that its processes share count for each.",
        absent="where its processes are not visible",
    ),
    _counter(
        "program_cpu_seconds",
        "CPU time of the process tree of a program.",
        "program",
        note="Summed over its restarts, as of the last scrape of each.",
    ),
    _gauge(
        "probe_success",
        "Whether a probe of a program passes: 1 or 0; absent until a threshold is reached.",
        "program",
        "probe",
        merge=GaugeMerge.LAST,
        absent="until it has passed or failed as often as its threshold says",
    ),
    _counter(
        "probe_failures",
        "Failed probes of a program.",
        "program",
        "probe",
        note="For readiness only those up to its failure threshold.",
    ),
    _gauge(
        "container_runtime_up",
        "Whether the container runtime answers: 1 or 0.",
        merge=GaugeMerge.LAST,
        absent="where no container has needed it",
    ),
)
"""The metrics that only the port of `longwatch up` has."""

FAMILIES = {
    family.name: family
    for family in (
        *LOOP_FAMILIES,
        *MAILBOX_FAMILIES,
        *FLOW_FAMILIES,
        *PROGRAM_FAMILIES,
        *UP_FAMILIES,
    )
}
