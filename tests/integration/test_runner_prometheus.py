"""The metrics of a runner in a real Prometheus, with the alert rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import requires
from longwatch.core.events.base import Event
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunStarted,
    QueuedEventExpired,
    SseConnectionClosed,
    SseConnectionEstablished,
    SseConnectionFailed,
    StreamEventsTaken,
    WorkBreakerOpened,
)
from longwatch.host.health_server import HealthServer
from longwatch.observe.runner_metrics import RunnerMetrics
from markdown_files import ROOT
from polling import eventually
from prometheus_server import promtool, scraping

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
TIMEOUT = 60.0
EVENTS: list[Event] = [
    SseConnectionEstablished(cluster="prod", downtime=0.0),
    StreamEventsTaken(
        cluster="prod", received={"error": 3}, filtered={"duplicate": 1}, dropped={"overflow": 1}
    ),
    QueuedEventExpired(cluster="prod", event_id="e", age=601.0),
    AgentRunStarted(cluster="prod", run_id="r1", event_id="e", attempt=1, pid=7),
    AgentRunEnded(
        cluster="prod",
        run_id="r1",
        event_id="e",
        attempt=1,
        status="timeout",
        cause="timeout",
        duration=300.2,
    ),
    AgentRunStarted(cluster="prod", run_id="r2", event_id="e", attempt=2, pid=8),
    WorkBreakerOpened(failures=5, cooldown=300.0),
    SseConnectionClosed(cluster="dev", error="reset", duration_seconds=61.0),
    SseConnectionFailed(
        cluster="dev", error="reset", reason="network_error", retry_in=1.0, attempt=1
    ),
]


@pytest.fixture(autouse=True)
def _promtool() -> None:
    requires.require_tool("promtool")
    requires.require_tool("prometheus")


def metrics_after_events(**options: Any) -> RunnerMetrics:
    metrics = RunnerMetrics(clusters=["prod", "dev"], version="1.2.3", **options)
    for event in EVENTS:
        metrics.observe(event)
    return metrics


def target(server: HealthServer) -> str:
    assert server.address is not None
    return "{}:{}".format(*server.address)


# --- the exposition ---


@pytest.mark.parametrize(
    "options",
    [{}, {"namespace": "kubernetes_mcp_runner"}, {"agent_timeout": 1800.0}],
    ids=["default", "namespace", "timeout"],
)
def test_promtool_finds_no_fault_in_the_exposition(options: dict[str, Any]) -> None:
    assert "" == promtool("check", "metrics", text=metrics_after_events(**options)().decode())


# --- a real Prometheus ---


def test_a_real_prometheus_scrapes_the_runner_and_evaluates_the_alert_rules(
    tmp_path: Path,
) -> None:
    with (
        HealthServer(host="127.0.0.1", port=0, metrics=metrics_after_events()) as server,
        scraping(tmp_path, {"longwatch-runner": [target(server)]}, RULES) as prometheus,
    ):
        assert eventually(lambda: prometheus.query("up") == {"": 1.0}, TIMEOUT)
        assert eventually(
            lambda: bool(prometheus.query("longwatch_runner_agents_spawned_total")), TIMEOUT
        )
        assert {"prod": 2.0, "dev": 0.0} == prometheus.query(
            "longwatch_runner_agents_spawned_total"
        )
        assert {"prod": 1.0, "dev": 0.0} == prometheus.query("longwatch_runner_agents_active")
        balance = (
            "longwatch_runner_agents_spawned_total - longwatch_runner_agents_active"
            " - sum without (status) (longwatch_runner_agents_completed_total)"
        )
        assert {"prod": 0.0, "dev": 0.0} == prometheus.query(balance)
        assert {"": 1.0} == prometheus.query("longwatch_runner_circuit_breaker_state")
        assert {"gauge"} == {
            each["type"]
            for each in prometheus.get("/api/v1/metadata")["longwatch_runner_queue_depth"]
        }
        assert eventually(lambda: prometheus.rule_errors() == {}, TIMEOUT)
