"""The one stream of events of `longwatch up`: what happens in the runner is in the log of events,
in the metrics and in the health of the one port, as what happens in workers is.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from event_server import EventServer, serving_events
from page_process import ServedPage, served_page
from polling import eventually
from run_process import Record
from test_up_metrics import on_port, serving, values
from up_process import FROM_SOURCE, sh, start_up, unused_port
from worker_process import WorkerProcess

READY = (200, "Ready")
UNTIL_TOLD = "until [ -e ../../enough ]; do sleep 0.02; done"
"""An agent that runs until the test has made a file."""


@contextmanager
def running(
    cwd: Path, stream: EventServer, script: str, **settings: object
) -> Iterator[WorkerProcess]:
    """`longwatch up` with a runner of one source, and a metrics port."""
    port = unused_port()
    runner = {
        "source": {"prod": {"url": stream.url}},
        "agent": {"command": ["sh", "-c", script]},
        **settings,
    }
    with start_up(cwd=cwd, programs={}, supervisor=on_port(port), runner=runner, **FROM_SOURCE) as (
        run
    ):
        yield WorkerProcess(
            run.process, run.out, run.err, port=port, longwatch=run.longwatch, cwd=cwd
        )


def runs(run: WorkerProcess, namespace: str = "runner") -> dict[str, float]:
    """The series about agent runs on one page, each of which adds up."""
    found = {
        match[1]: value
        for name, value in values(run).items()
        if (match := re.fullmatch(rf"{namespace}_agents_((?:spawned|completed|active).*)", name))
    }
    if found:
        assert found["spawned_total{prod}"] == sum(
            value for name, value in found.items() if "spawned" not in name
        )
    return found


def wait_for_runs(
    run: WorkerProcess, wanted: Mapping[str, float], namespace: str = "runner"
) -> None:
    assert eventually(lambda: wanted.items() <= runs(run, namespace).items()), runs(run, namespace)


def relayed(run: WorkerProcess, *names: str) -> list[Record]:
    """The records of these events in the log of events that the runner has relayed."""
    return [
        each
        for each in run.logged_events()
        if each["event"] in names and each.get("program") == "runner"
    ]


def names_of(records: list[Record]) -> list[str]:
    return [str(record["event"]) for record in records]


RUN_EVENTS = ("runner_started", "agent_run_started", "agent_run_ended", "runner_stopped")


def test_a_run_is_once_and_in_order_in_log_metrics_and_health(tmp_path: Path) -> None:
    with serving_events() as stream, running(tmp_path, stream, UNTIL_TOLD) as run:
        run.wait_for_reply("/readyz", lambda reply: reply == READY)
        wait_for_runs(run, {"spawned_total{prod}": 0.0})
        stream.send()
        wait_for_runs(run, {"spawned_total{prod}": 1.0, "active{prod}": 1.0})
        (tmp_path / "enough").touch()
        wait_for_runs(run, {"completed_total{prod,success}": 1.0, "active{prod}": 0.0})
        page = values(run)
        shown = run.request("status", "runner")["programs"][0]
        run.stop_cleanly()
    assert (1.0, 1.0, 1.0, 0.0) == tuple(
        page[name]
        for name in (
            "runner_up{}",
            "program_ready{runner}",
            "runner_sse_connections_active{prod}",
            "runner_queue_depth{prod}",
        )
    )
    assert page["program_memory_bytes{runner}"] > 1e6
    assert page["program_cpu_seconds_total{runner}"] > 0.0
    assert "runner" == shown["kind"]
    records = relayed(run, *RUN_EVENTS)
    assert list(RUN_EVENTS) == names_of(records)
    assert {shown["pid"]} == {each["pid"] for each in (records[0], records[-1])}
    log = names_of([each for each in run.logged_events() if each.get("program") == "runner"])
    assert log.index("program_started") < log.index("runner_started")
    assert log.index("runner_stopped") < log.index("shutdown_complete")


def shown_events(page: ServedPage, program: str) -> list[str]:
    """The events on the status page of a program, oldest first."""
    names = re.findall(r'<td class="nowrap">(\w+)</td>', page.get(f"/programs/{program}").body)
    return names[::-1]


def test_the_end_of_a_program_is_once_and_in_order_in_log_metrics_health_and_status_page(
    tmp_path: Path,
) -> None:
    names = ["program_started", "unexpected_exit", "restart_scheduled"]
    backoff = {"initial": 600, "cap": 600}
    web = sh("until [ -e enough ]; do sleep 0.02; done; exit 3", backoff=backoff)
    with serving(tmp_path, {"web": web}) as run:
        run.wait_for_reply("/readyz", lambda reply: reply == READY)
        (tmp_path / "enough").touch()
        run.wait_for_reply(
            "/readyz", lambda reply: reply == (503, "programs: not ready: web (waiting)")
        )
        page = values(run)
        with served_page(run.state_dir) as status_page:
            assert eventually(lambda: names == shown_events(status_page, "web")[1:])
            assert "exit 3" in status_page.get("/").body
        run.stop_cleanly()
    assert (1.0, 1.0, 0.0, 0.0, 0.0) == tuple(
        page[name]
        for name in (
            "program_starts_total{web}",
            "program_ends_total{web,unexpected_exit}",
            "program_up{web}",
            "program_ready{web}",
            "health_ready{}",
        )
    )
    about_it = [each for each in run.logged_events() if each.get("program") == "web"]
    assert names == names_of(about_it)


def test_a_runner_without_a_source_makes_up_unready_and_says_why(tmp_path: Path) -> None:
    with serving_events() as stream, running(tmp_path, stream, "true") as run:
        run.wait_for_reply("/readyz", lambda reply: reply == READY)
        with stream.changed:
            stream.is_closing = True
            stream.changed.notify_all()
        stream.shutdown()
        stream.server_close()
        run.wait_for_reply(
            "/readyz",
            lambda reply: (
                reply
                == (
                    503,
                    "programs: not ready: runner (sse_connections: no active SSE connections)",
                )
            ),
        )
        page = values(run)
        status = run.status("runner")
        run.stop_cleanly()
    assert (0.0, 0.0, 1.0) == tuple(
        page[name] for name in ("health_ready{}", "program_ready{runner}", "program_up{runner}")
    )
    assert (False, "sse_connections: no active SSE connections", "up") == (
        status["ready"],
        status["unready_reason"],
        status["state"],
    )


def test_a_runner_that_is_killed_leaves_its_counts_and_the_next_one_goes_on(
    tmp_path: Path,
) -> None:
    """Its run in progress counts as cancelled, so that the sums hold in every scrape."""
    with (
        serving_events() as stream,
        running(tmp_path, stream, UNTIL_TOLD, metrics_namespace="agents") as run,
    ):
        run.wait_for_reply("/readyz", lambda reply: reply == READY)
        stream.send()
        wait_for_runs(run, {"active{prod}": 1.0}, "agents")
        os.kill(run.status("runner")["pid"], signal.SIGKILL)
        wait_for_runs(run, {"completed_total{prod,cancelled}": 1.0}, "agents")
        wait_for_runs(run, {"spawned_total{prod}": 2.0, "active{prod}": 1.0}, "agents")
        (tmp_path / "enough").touch()
        wait_for_runs(run, {"completed_total{prod,success}": 1.0}, "agents")
        found = runs(run, "agents")
        live = run.get("/health/live")
        run.stop_cleanly()
    assert 200 == live.status
    assert (2.0, 1.0, 1.0, 0.0) == tuple(
        found[name]
        for name in (
            "spawned_total{prod}",
            "completed_total{prod,cancelled}",
            "completed_total{prod,success}",
            "active{prod}",
        )
    )
    started = relayed(run, "runner_started")
    assert 2 == len({each["pid"] for each in started}) == len(started)


def test_agents_do_not_know_the_address_of_the_parent(tmp_path: Path) -> None:
    with serving_events() as stream, running(tmp_path, stream, "env > ../../variables") as run:
        run.wait_for_reply("/readyz", lambda reply: reply == READY)
        stream.send()
        run.wait_for_reply(
            "/metrics",
            lambda reply: 'completed_total{cluster="prod",status="success"} 1.0' in reply.body,
        )
        run.stop_cleanly()
    variables: dict[str, Any] = dict(
        line.split("=", 1) for line in (tmp_path / "variables").read_text().splitlines()
    )
    assert set() == {name for name in variables if name.startswith("LONGWATCH_PARENT")}
