from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from longwatch.core.events.base import Event
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunStarted,
    AgentRunTimedOut,
    EventSourceDegraded,
    EventSourceRecovered,
    QueuedEventExpired,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    StreamEventsTaken,
    WorkBreakerClosed,
    WorkBreakerOpened,
    WorkBreakerTrialStarted,
)
from longwatch.errors import UsageError
from longwatch.observe.runner_families import SEVERITIES, STATUSES
from longwatch.observe.runner_metrics import RunnerMetrics
from longwatch.runner.policy import Severity

SPACE = "longwatch_runner_"
CATALOGUE = {
    "events_received": ("counter", {"cluster", "severity"}),
    "events_filtered": ("counter", {"cluster", "reason"}),
    "events_dropped": ("counter", {"cluster", "reason"}),
    "events_queued": ("counter", {"cluster"}),
    "events_expired": ("counter", {"cluster"}),
    "events_dequeued": ("counter", {"cluster"}),
    "queue_depth": ("gauge", {"cluster"}),
    "agents_spawned": ("counter", {"cluster"}),
    "agents_timeout": ("counter", {"cluster"}),
    "agents_completed": ("counter", {"cluster", "status"}),
    "agent_duration_seconds": ("histogram", {"cluster", "status"}),
    "agents_active": ("gauge", {"cluster"}),
    "circuit_breaker_state": ("gauge", set()),
    "circuit_breaker_events_dropped": ("counter", {"cluster"}),
    "sse_connections_active": ("gauge", {"cluster"}),
    "sse_reconnections": ("counter", {"cluster", "reason"}),
    "sse_connection_errors": ("counter", {"cluster", "reason"}),
    "sse_connection_duration_seconds": ("histogram", {"cluster"}),
    "alerts": ("counter", {"cluster", "alert"}),
    "build_info": ("gauge", {"version", "git_commit", "build_date"}),
    "up": ("gauge", set()),
}
"""The metrics that dashboards expect, and `alerts`; parsers leave out the `_total` of counters."""


def made(**options: Any) -> RunnerMetrics:
    return RunnerMetrics(**{"clusters": ["a", "b"], "version": "1.2.3", **options})


def families(metrics: RunnerMetrics) -> dict[str, Metric]:
    """By name, as Prometheus' own parser reads them, which raises on what is not its format."""
    return {each.name: each for each in text_string_to_metric_families(metrics().decode())}


def values(metrics: RunnerMetrics) -> dict[str, float]:
    """All series without namespace and buckets as `name{value,value}`, in the order of labels."""
    return {
        f"{each.name.removeprefix(SPACE)}{{{','.join(each.labels.values())}}}": each.value
        for metric in families(metrics).values()
        for each in metric.samples
        if each.name.startswith(SPACE) and "le" not in each.labels
    }


def changes(*events: Event) -> dict[str, float]:
    """What these events change."""
    metrics = made()
    before = values(metrics)
    for event in events:
        metrics.observe(event)
    return {name: value for name, value in values(metrics).items() if value != before.get(name)}


def started(run_id: str = "r1", *, cluster: str = "a", attempt: int = 1) -> AgentRunStarted:
    return AgentRunStarted(cluster=cluster, run_id=run_id, event_id="e", attempt=attempt, pid=7)


def ended(
    run_id: str = "r1", *, cluster: str = "a", status: str = "success", duration: float = 2.0
) -> AgentRunEnded:
    return AgentRunEnded(
        cluster=cluster,
        run_id=run_id,
        event_id="e",
        attempt=1,
        status=status,
        cause="exit 0",
        duration=duration,
    )


def failed(reason: str) -> SseConnectionFailed:
    return SseConnectionFailed(cluster="a", error="no", reason=reason, retry_in=1.0, attempt=1)


# --- the catalogue ---


def test_the_catalogue_has_exactly_these_names_types_and_labels() -> None:
    found = {
        name.removeprefix(SPACE): (metric.type, set(metric.samples[0].labels) - {"le"})
        for name, metric in families(made()).items()
        if name.startswith(SPACE)
    }
    assert found == CATALOGUE


def test_every_series_exists_at_zero_from_the_start() -> None:
    found = values(made())
    assert {"up{}": 1.0, "build_info{unknown,unknown,1.2.3}": 1.0} == {
        name: value for name, value in found.items() if value
    }
    expected = {
        "events_received_total": Severity,
        "events_filtered_total": ("severity", "duplicate", "disabled", "malformed"),
        "events_dropped_total": ("overflow", "oversize"),
        "agents_completed_total": ("success", "failure", "timeout", "cancelled"),
        "agent_duration_seconds_count": ("success", "failure", "timeout", "cancelled"),
        "sse_reconnections_total": (
            "network_error",
            "server_restart",
            "idle_timeout",
            "http_status",
            "bad_content_type",
            "dns",
            "tls",
        ),
    }
    for name, labels in expected.items():
        assert {f"{name}{{{cluster},{label}}}" for cluster in "ab" for label in labels} == {
            each for each in found if each.startswith(f"{name}{{")
        }
    assert {"queue_depth{a}", "queue_depth{b}", "circuit_breaker_state{}"} <= set(found)


def test_severities_are_those_of_the_runner() -> None:
    assert tuple(Severity) == SEVERITIES


def test_events_after_the_start_make_no_new_series() -> None:
    metrics = made()
    before = set(values(metrics))
    for event in ALL:
        metrics.observe(event)
    assert before == set(values(metrics))


@pytest.mark.parametrize("namespace", ["kubernetes_mcp_runner", "x"])
def test_the_namespace_is_the_prefix_of_every_name(namespace: str) -> None:
    found = families(made(namespace=namespace))
    assert {f"{namespace}_{name}" for name in CATALOGUE} <= set(found)
    assert not any(name.startswith(SPACE) for name in found)


@pytest.mark.parametrize("namespace", ["", "1x", "a-b", "a b", "a\n"])
def test_a_namespace_that_is_no_name_is_refused(namespace: str) -> None:
    with pytest.raises(UsageError, match="namespace"):
        made(namespace=namespace)


def test_the_process_and_its_garbage_collector_are_included() -> None:
    found = set(families(made()))
    assert {"process_cpu_seconds", "python_gc_collections"} <= found
    assert "process_resident_memory_bytes" in found


def test_prometheus_client_is_loaded_only_by_a_scrape() -> None:
    code = (
        "import sys; from longwatch.observe.runner_metrics import RunnerMetrics as M;"
        "m = M(clusters=['a']); m.totals(); assert 'prometheus_client' not in sys.modules;"
        "m(); assert 'prometheus_client' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- events ---

RUN_ENDED = {
    "agents_spawned_total{a}": 1.0,
    "events_dequeued_total{a}": 1.0,
    "agent_duration_seconds_sum{a,success}": 2.0,
    "agent_duration_seconds_count{a,success}": 1.0,
    "agents_completed_total{a,success}": 1.0,
}
RULES: list[tuple[tuple[Event, ...], dict[str, float]]] = [
    (
        (
            StreamEventsTaken(
                cluster="a",
                received={"info": 3, "critical": 1},
                filtered={"duplicate": 2, "malformed": 1},
                dropped={"overflow": 4},
                breaker_dropped=5,
                queued=6,
            ),
        ),
        {
            "events_received_total{a,info}": 3.0,
            "events_received_total{a,critical}": 1.0,
            "events_filtered_total{a,duplicate}": 2.0,
            "events_filtered_total{a,malformed}": 1.0,
            "events_dropped_total{a,overflow}": 4.0,
            "circuit_breaker_events_dropped_total{a}": 5.0,
            "events_queued_total{a}": 6.0,
        },
    ),
    (
        (QueuedEventExpired(cluster="a", event_id="e", age=601.0, count=7),),
        {"events_expired_total{a}": 7.0},
    ),
    (
        (started(),),
        {
            "agents_spawned_total{a}": 1.0,
            "agents_active{a}": 1.0,
            "events_dequeued_total{a}": 1.0,
        },
    ),
    ((started(attempt=2),), {"agents_spawned_total{a}": 1.0, "agents_active{a}": 1.0}),
    ((started(), ended()), RUN_ENDED),
    ((ended(),), RUN_ENDED),
    (
        (
            started(),
            AgentRunTimedOut(cluster="a", run_id="r1", duration=9.0, timeout=9.0),
            ended(status="timeout"),
        ),
        {
            **{name.replace("success", "timeout"): value for name, value in RUN_ENDED.items()},
            "agents_timeout_total{a}": 1.0,
        },
    ),
    (
        (SseConnectionEstablished(cluster="a", downtime=0.0),),
        {"sse_connections_active{a}": 1.0},
    ),
    (
        (
            SseConnectionEstablished(cluster="a", downtime=0.0),
            SseConnectionClosed(cluster="a", error="", duration_seconds=61.0),
        ),
        {
            "sse_connection_duration_seconds_count{a}": 1.0,
            "sse_connection_duration_seconds_sum{a}": 61.0,
        },
    ),
    (
        (failed("dns"),),
        {"sse_reconnections_total{a,dns}": 1.0, "sse_connection_errors_total{a,dns}": 1.0},
    ),
    ((failed("server_restart"),), {"sse_reconnections_total{a,server_restart}": 1.0}),
    ((WorkBreakerOpened(failures=5, cooldown=300.0),), {"circuit_breaker_state{}": 1.0}),
    (
        (WorkBreakerOpened(failures=5, cooldown=300.0), WorkBreakerTrialStarted()),
        {"circuit_breaker_state{}": 1.0},
    ),
    ((WorkBreakerOpened(failures=5, cooldown=300.0), WorkBreakerClosed(open_for=1.0)), {}),
    (
        (EventSourceDegraded(cluster="a", failures=5, error="no"),),
        {"alerts_total{degraded,a}": 1.0},
    ),
    ((EventSourceRecovered(cluster="", downtime=9.0),), {"alerts_total{recovered,}": 1.0}),
]
ALL = [event for events, _ in RULES for event in events]


@pytest.mark.parametrize(
    ("events", "expected"),
    RULES,
    ids=[f"{n}-{events[-1].name}" for n, (events, _) in enumerate(RULES)],
)
def test_events_change_their_series_and_no_others(
    events: tuple[Event, ...], expected: Mapping[str, float]
) -> None:
    assert expected == changes(*events)


def test_a_value_outside_its_closed_set_makes_no_label_of_its_own() -> None:
    taken = StreamEventsTaken(cluster="a", received={"sev-7": 1}, dropped={"whim": 2})
    assert {
        "events_received_total{a,other}": 1.0,
        "events_dropped_total{a,other}": 2.0,
    } == changes(taken)
    assert 1.0 == changes(ended(status="odd"))["agents_completed_total{a,failure}"]
    assert 1.0 == changes(failed("moon"))["sse_connection_errors_total{a,other}"]


def test_a_cluster_that_was_not_named_has_all_its_series_with_its_first_event() -> None:
    metrics = made(clusters=[])
    metrics.observe(started(cluster="late"))
    assert set(values(made(clusters=["late"]))) == {*values(metrics), "queue_depth{late}"}


# --- histograms ---


@pytest.mark.parametrize(
    ("timeout", "more"),
    [
        (None, []),
        (10.0, []),
        (300.0, []),
        (300.5, [300.5, 450.75, 601.0]),
        (1800.0, [1800.0, 2700.0, 3600.0]),
    ],
)
def test_durations_have_more_buckets_only_above_the_default_timeout(
    timeout: float | None, more: list[float]
) -> None:
    metric = families(made(agent_timeout=timeout))[f"{SPACE}agent_duration_seconds"]
    bounds = [
        float(each.labels["le"])
        for each in metric.samples
        if each.name.endswith("_bucket")
        and (each.labels["cluster"], each.labels["status"]) == ("a", "success")
    ]
    assert [1, 5, 10, 30, 60, 120, 300, *more, float("inf")] == bounds


def test_connections_are_measured_up_to_four_hours() -> None:
    metric = families(made(clusters=["a"]))[f"{SPACE}sse_connection_duration_seconds"]
    bounds = [float(each.labels["le"]) for each in metric.samples if "le" in each.labels]
    assert [60, 300, 600, 1800, 3600, 7200, 14400, float("inf")] == bounds


# --- gauges that are read ---


def test_the_depth_of_queues_is_read_at_each_scrape() -> None:
    depths = iter([{"a": 3}, {}])
    metrics = made(queue_depth=lambda: next(depths))
    first, second = values(metrics), values(metrics)
    assert [3.0, 0.0] == [first["queue_depth{a}"], first["queue_depth{b}"]]
    assert 0.0 == second["queue_depth{a}"]


def test_a_depth_that_cannot_be_read_is_absent_and_the_rest_is_there() -> None:
    def fail() -> Mapping[str, int]:
        raise OSError("the store is gone")

    found = values(made(queue_depth=fail))
    assert "up{}" in found
    assert not [name for name in found if name.startswith("queue_depth")]


# --- totals ---


def test_totals_are_summed_over_labels_and_have_no_histograms() -> None:
    metrics = made(queue_depth=lambda: {"a": 2, "b": 3})
    for event in (started(), started("r2", cluster="b"), ended(), failed("dns")):
        metrics.observe(event)
    totals = metrics.totals()
    expected = {"agents_spawned_total": 2.0, "agents_active": 1.0, "queue_depth": 5.0}
    assert expected == {name: totals[name] for name in expected}
    assert set(CATALOGUE) - {"up", "build_info"} - {
        name for name, (kind, _) in CATALOGUE.items() if kind == "histogram"
    } == {name.removesuffix("_total") for name in totals}


# --- spawned = completed + active ---


def assert_balanced(metrics: RunnerMetrics) -> None:
    found = values(metrics)
    for cluster in "ab":
        completed = sum(found[f"agents_completed_total{{{cluster},{each}}}"] for each in STATUSES)
        active = found[f"agents_active{{{cluster}}}"]
        assert active >= 0
        assert found[f"agents_spawned_total{{{cluster}}}"] == completed + active
        assert completed == sum(
            found[f"agent_duration_seconds_count{{{cluster},{each}}}"] for each in STATUSES
        )


run_events = st.builds(
    lambda make, number: make(f"r{number}", cluster="ab"[number % 2]),
    st.sampled_from([started, ended]),
    st.integers(0, 5),
)


@given(st.lists(run_events, max_size=12))
def test_spawned_is_completed_and_active_whatever_comes(events: list[Event]) -> None:
    metrics = made()
    for event in events:
        metrics.observe(event)
    assert_balanced(metrics)


def test_every_scrape_is_balanced_while_runs_start_and_end() -> None:
    metrics = made()
    done = threading.Event()

    def run(name: str, cluster: str) -> None:
        number = 0
        while not done.is_set():
            number += 1
            metrics.observe(started(f"{name}{number}", cluster=cluster))
            metrics.observe(ended(f"{name}{number}", cluster=cluster))

    threads = [threading.Thread(target=run, args=(f"{n}-", "ab"[n % 2])) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert_balanced(metrics)
    finally:
        done.set()
        for thread in threads:
            thread.join()
