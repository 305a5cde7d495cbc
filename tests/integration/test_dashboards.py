"""The dashboards of deploy/grafana: a real Prometheus answers each of their queries, from the
metrics of a real `longwatch up` with programs, workers, graphs and a runner.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import flow_app
import requires
from dashboard_files import FILES, panels
from event_server import serving_events
from longwatch.flow import Flow
from markdown_files import ROOT
from polling import eventually
from prometheus_server import PrometheusServer, promtool, scraping
from runner_process import agent
from up_process import FROM_SOURCE, NO_BACKOFF, SLEEPER, Facts, sh, start_up, unused_port
from worker_process import opened_mailbox, store_url, write_app

RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
TIMEOUT = 60.0
GIVE_UP = """
from longwatch.errors import PermanentError

def give_up(context, job):
    raise PermanentError(job["id"])
"""
PROGRAMS: dict[str, Facts] = {
    "well": {**SLEEPER, "readiness": {"command": ["true"], "interval": 0.05}},
    "slow": {**SLEEPER, "readiness": {"command": ["false"], "interval": 0.05}},
    "sick": sh("sleep 0.2; exit 1", **NO_BACKOFF, breaker={"restarts": 3}),
}
EMPTY = {
    "Container runtime": "no container needs one here",
    "Events missing in the log": "the parent keeps up",
    "Leases lost": "no lease is lost here",
    "Outages of stores": "the store answers",
    "Stalls and crashes": "no loop hangs or crashes here",
    "Leases {{loop}} renewed": "no work takes as long as a third of its lease",
    "Replies that could not be sent": "no message asks for a reply",
    "Work done twice or given back": "all work ends in time, and nothing stops",
    "Claims {{loop}} released": "nothing stops a worker in its work",
    "Results that came too late": "all results come in time",
    "Sweeps that failed": "the store answers",
}
"""Which queries have no result here, by the title or by title and legend, and why."""
AGENT = agent("grep -q bad event.json && exit 1; exit 0")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """It scrapes a `longwatch up` in which something of everything has happened."""
    requires.require_tool("prometheus")
    directory = tmp_path_factory.mktemp("up")
    with ExitStack() as stack:
        source = stack.enter_context(serving_events())
        port = unused_port()
        write_app(directory, GIVE_UP)
        shutil.copy(Path(flow_app.__file__), directory)
        url = store_url(directory)
        run = stack.enter_context(
            start_up(
                cwd=directory,
                programs=PROGRAMS,
                env={"STORE": url},
                supervisor={"metrics_port": port, "metrics_host": "127.0.0.1"},
                worker={
                    "jobs": {"target": "app:group"},
                    "flows": {"target": "flow_app:flow"},
                },
                runner={
                    "health_port": "off",
                    "metrics_port": "off",
                    "source": {"prod": {"url": source.url}},
                    "agent": AGENT,
                },
                **FROM_SOURCE,
            )
        )
        mailbox = stack.enter_context(opened_mailbox(url))
        flow = stack.enter_context(Flow(url, graphs=[flow_app.graph]))
        run.wait_for_status("well", ready=True)
        targets = [f"127.0.0.1:{port}"]
        server = stack.enter_context(scraping(directory, {"longwatch": targets}, RULES))
        for number in range(3):  # so that each counter is seen to grow
            mailbox.send_many(
                [{"id": f"{number}-{do}", "do": do} for do in ("done", "fail", "give_up")]
            )
            flow.start("jobs", job={"id": f"good-{number}"})
            flow.start("jobs", job={"id": f"bad-{number}", "error": "bad"})
            source.send(resource=f"pod/{number}")
            source.send(resource=f"pod/bad-{number}")
            count = f"sum(longwatch_mailbox_acked_total) > {number}"
            assert eventually(lambda: bool(server.result(count)), TIMEOUT)  # noqa: B023 - called at once
        flow.start("jobs", job={"id": "deadly", "die": True})
        yield server
        run.stop_cleanly()


def instant(expression: str) -> str:
    """The expression with all that Grafana would fill in."""
    filled = re.sub(r'"\$\w+"', '".*"', expression)
    return re.sub(r"\$__(rate_interval|range)", "1m", filled)


def unanswered(prometheus: PrometheusServer) -> set[str]:
    """The queries without a result, by title and legend, but for those that have none here."""
    queries = [
        (panel["title"], f"{panel['title']} {target['legendFormat']}", target["expr"])
        for path in FILES
        for panel in panels(path)
        for target in panel["targets"]
    ]
    return {
        name
        for title, name, expression in queries
        if not prometheus.result(instant(expression)) and EMPTY.keys().isdisjoint({title, name})
    }


def test_a_real_prometheus_answers_each_query_of_each_dashboard(
    prometheus: PrometheusServer,
) -> None:
    assert eventually(lambda: not unanswered(prometheus), TIMEOUT), unanswered(prometheus)


def test_a_panel_that_may_be_empty_says_what_it_shows_then() -> None:
    texts = {
        panel["title"]: panel["fieldConfig"]["defaults"].get("noValue")
        for path in FILES
        for panel in panels(path)
    }
    assert [] == [title for title in EMPTY if title in texts and not texts[title]]


def test_a_real_prometheus_evaluates_each_rule_and_finds_the_open_breaker(
    prometheus: PrometheusServer,
) -> None:
    assert eventually(lambda: not prometheus.rule_errors(), TIMEOUT), prometheus.rule_errors()
    states = 'ALERTS{alertname="LongwatchBreakerOpen",program="sick"}'
    assert eventually(lambda: prometheus.query(states) != {}, TIMEOUT)


def test_promtool_finds_no_fault_in_what_is_scraped(prometheus: PrometheusServer) -> None:
    for page in prometheus.scraped_pages():
        assert "" == promtool("check", "metrics", text=page)
