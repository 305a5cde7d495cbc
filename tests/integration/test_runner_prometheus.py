"""The metrics of a runner in a real Prometheus, and the alert rules of the documentation."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

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
from loopback import free_port
from markdown_files import ROOT, Page
from polling import eventually

HOW_TO = ROOT / "docs" / "how-to" / "alert-on-the-runner.md"
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


def metrics_after_events(**options: Any) -> RunnerMetrics:
    metrics = RunnerMetrics(clusters=["prod", "dev"], version="1.2.3", **options)
    for event in EVENTS:
        metrics.observe(event)
    return metrics


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """What promtool says; it must find no fault."""
    done = subprocess.run(
        ["promtool", *map(str, arguments)],
        check=False,
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- the exposition ---


@pytest.mark.parametrize(
    "options",
    [{}, {"namespace": "kubernetes_mcp_runner"}, {"agent_timeout": 1800.0}],
    ids=["default", "namespace", "timeout"],
)
def test_promtool_finds_no_fault_in_the_exposition(options: dict[str, Any]) -> None:
    assert "" == promtool("check", "metrics", text=metrics_after_events(**options)().decode())


# --- a real Prometheus ---


class PrometheusServer:
    """A Prometheus that scrapes one address every second and evaluates the documented rules."""

    def __init__(self, directory: Path, target: str) -> None:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        rules = directory / "rules.yml"
        rules.write_text(documented_rules(), encoding="utf-8")
        config = directory / "prometheus.yml"
        config.write_text(json.dumps(scrape_config(target, rules)), encoding="utf-8")
        promtool("check", "config", config)
        self._log = (directory / "prometheus.log").open("wb")
        self.process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def get(self, path: str) -> Any:
        """The data of an answer of its API; None while it does not answer."""
        try:
            with urlopen(f"{self._url}{path}", timeout=TIMEOUT) as answer:
                return json.load(answer)["data"]
        except (URLError, ConnectionError):
            return None

    def query(self, expression: str) -> dict[str, float]:
        """The value of each series, by the values of its labels but for those of the target."""
        data = self.get(f"/api/v1/query?query={quote(expression)}") or {"result": []}
        return {
            ",".join(
                value
                for label, value in sorted(each["metric"].items())
                if label not in {"__name__", "job", "instance"}
            ): float(each["value"][1])
            for each in data["result"]
        }


def scrape_config(target: str, rules: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": "longwatch-runner", "static_configs": [{"targets": [target]}]}
        ],
    }


@contextmanager
def scraping(metrics: RunnerMetrics, directory: Path) -> Iterator[PrometheusServer]:
    with HealthServer(host="127.0.0.1", port=0, metrics=metrics) as server:
        assert server.address is not None
        host, port = server.address
        prometheus = PrometheusServer(directory, f"{host}:{port}")
        try:
            yield prometheus
        finally:
            prometheus.close()


def test_a_real_prometheus_scrapes_the_runner_and_evaluates_the_documented_rules(
    tmp_path: Path,
) -> None:
    with scraping(metrics_after_events(), tmp_path) as prometheus:
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
        assert eventually(lambda: evaluated_rules(prometheus) == {"ok"}, TIMEOUT)


def evaluated_rules(prometheus: PrometheusServer) -> set[str]:
    """What Prometheus says of the rules: unknown, ok or err."""
    groups = prometheus.get("/api/v1/rules")["groups"]
    return {rule["health"] for group in groups for rule in group["rules"]}


# --- the rules of the documentation ---


def documented_rules() -> str:
    [rules] = [
        block.text
        for block in Page.read(HOW_TO).blocks
        if block.info == ("yaml",) and block.text.startswith("groups:")
    ]
    return rules


def test_promtool_takes_the_documented_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(documented_rules(), encoding="utf-8")
    assert "SUCCESS: 12 rules found" in promtool("check", "rules", rules)


def test_the_documented_rules_and_expressions_ask_for_metrics_that_there_are() -> None:
    text = metrics_after_events()().decode()
    known = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line[0] != "#"}
    asked = set(re.findall(r"longwatch_runner_\w+", HOW_TO.read_text(encoding="utf-8")))
    assert asked
    assert asked <= known


DURATIONS = 'longwatch_runner_agent_duration_seconds_bucket{cluster="a",status="success",le="%s"}'
FIRES: dict[str, tuple[str, str, str, str]] = {
    # alert: (a series, its values while all is well, those while not, when the alert has to fire)
    "RunnerDown": ('up{job="longwatch-runner"}', "1x90", "0x90", "5m"),
    "RunnerHasNoEventSource": (
        'longwatch_runner_sse_connections_active{cluster="a"}',
        "1x90",
        "0x90",
        "6m",
    ),
    "EventSourceDown": (
        'longwatch_runner_sse_connections_active{cluster="a"}',
        "1x90",
        "0x90",
        "11m",
    ),
    "EventSourceUnsteady": (
        'longwatch_runner_sse_connection_errors_total{cluster="a",reason="dns"}',
        "0x5 1x90",
        "0+1x90",
        "50m",
    ),
    "WorkBreakerOpen": ("longwatch_runner_circuit_breaker_state", "0x90", "1x90", "2m"),
    "WorkBreakerStaysOpen": ("longwatch_runner_circuit_breaker_state", "0x90", "1x90", "16m"),
    "QueueAlmostFull": ('longwatch_runner_queue_depth{cluster="a"}', "800x90", "801x90", "6m"),
    "EventsDropped": (
        'longwatch_runner_events_dropped_total{cluster="a",reason="overflow"}',
        "0x90",
        "0x5 1x90",
        "8m",
    ),
    "EventsExpired": (
        'longwatch_runner_events_expired_total{cluster="a"}',
        "0x90",
        "0x5 1x90",
        "8m",
    ),
    "EventsMalformed": (
        'longwatch_runner_events_filtered_total{cluster="a",reason="malformed"}',
        "0x90",
        "0x5 1x90",
        "8m",
    ),
    "AgentsFail": (
        'longwatch_runner_agents_completed_total{cluster="a",status="failure"}',
        "0x5 1x90",
        "0+1x90",
        "20m",
    ),
    "AgentsSlow": (DURATIONS % "120.0", "0+1x90", "0x90", "60m"),
}
BESIDE = {
    'longwatch_runner_circuit_breaker_events_dropped_total{cluster="a"}': "0x90",
    'longwatch_runner_agents_completed_total{cluster="a",status="success"}': "0x90",
    DURATIONS % "300.0": "0+1x90",
    DURATIONS % "+Inf": "0+1x90",
}
"""What the expressions ask for, too."""


def rules_test(series: str, values: str, alert: str, at: str, *, fires: bool) -> dict[str, Any]:
    """That an alert fires at a time after the start, or that it does not.

    promtool compares whole alerts, so the question is put to the series that Prometheus writes.
    """
    count = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    return {
        "interval": "1m",
        "input_series": [
            {"series": name, "values": numbers}
            for name, numbers in {**BESIDE, series: values}.items()
        ],
        "promql_expr_test": [
            {
                "expr": count,
                "eval_time": at,
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
        ],
    }


def check_rules(test: dict[str, Any], directory: Path) -> None:
    (directory / "rules.yml").write_text(documented_rules(), encoding="utf-8")
    whole = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [test]}
    tests = directory / "tests.yml"
    tests.write_text(json.dumps(whole), encoding="utf-8")
    promtool("test", "rules", tests)


def test_every_documented_alert_is_tried() -> None:
    assert re.findall(r"alert: (\w+)", documented_rules()) == list(FIRES)


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_fires_when_its_series_says_so(alert: str, tmp_path: Path) -> None:
    series, _, values, at = FIRES[alert]
    check_rules(rules_test(series, values, alert, at, fires=True), tmp_path)


@pytest.mark.parametrize("alert", FIRES)
def test_an_alert_is_silent_while_all_is_well(alert: str, tmp_path: Path) -> None:
    series, values, _, at = FIRES[alert]
    check_rules(rules_test(series, values, alert, at, fires=False), tmp_path)
