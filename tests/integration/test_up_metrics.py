"""The one port of `longwatch up` that serves health and metrics of everything it runs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import requires
from longwatch import open_mailbox, open_store
from postgres_server import destroy_server, make_server
from prometheus_server import promtool
from run_process import run_longwatch
from up_process import (
    FROM_SOURCE,
    NO_BACKOFF,
    SLEEPER,
    Facts,
    sh,
    start_up,
    unused_port,
    write_config,
)
from worker_process import (
    WorkerProcess,
    opened_mailbox,
    parse_metrics,
    start_worker,
    store_url,
    write_app,
)

TIMEOUT = 30.0
SICK: Facts = {
    **SLEEPER,
    **NO_BACKOFF,
    "liveness": {"command": ["false"], "interval": 0.05, "failure_threshold": 1},
    "breaker": {"restarts": 2, "cooldown": "off"},
}
"""Fails its liveness probe until its breaker trips, at its second end."""
SLOW: Facts = {
    **SLEEPER,
    "readiness": {"command": ["false"], "interval": 0.05, "failure_threshold": 1},
}
WELL: Facts = {**SLEEPER, "readiness": {"command": ["true"], "interval": 0.05}}
DONE: Facts = {"command": ["true"]}
STOPS_WHEN_TOLD = """
trap 'until [ -e enough ]; do sleep 0.01; done; exit 0' TERM
echo ready
while :; do sleep 0.05; done
"""
"""A shell that stops once the test has made a file."""


def on_port(port: int) -> Facts:
    return {"metrics_port": port, "metrics_host": "127.0.0.1"}


@contextmanager
def serving(
    cwd: Path, programs: Mapping[str, Facts], *, env: Mapping[str, str] | None = None, **top: Any
) -> Iterator[WorkerProcess]:
    """`longwatch up` with a metrics port, and the means to ask it."""
    port = unused_port()
    with start_up(
        cwd=cwd, programs=programs, env=env, supervisor=on_port(port), **top, **FROM_SOURCE
    ) as run:
        yield WorkerProcess(
            run.process, run.out, run.err, port=port, longwatch=run.longwatch, cwd=cwd
        )


def values(run: WorkerProcess) -> dict[str, float]:
    """The page, each series as Prometheus spells it but for the prefix."""
    return {
        f"{name.removeprefix('longwatch_')}{{{','.join(value for _, value in labels)}}}": value
        for (name, labels), value in parse_metrics(run.get("/metrics").body).items()
    }


def settled(run: WorkerProcess) -> None:
    """Wait until all four programs have come to where they stay."""
    run.wait_for_status("sick", state="broken")
    run.wait_for_status("well", ready=True)
    run.wait_for_status("done", state="ended")
    run.wait_for_reply("/metrics", lambda reply: 'readiness",program="slow"} 0.0' in reply.body)


# --- what it serves ---


def test_the_page_has_the_state_of_every_program_and_what_happened_to_it(tmp_path: Path) -> None:
    programs = {"sick": SICK, "slow": SLOW, "well": WELL, "done": DONE}
    with serving(tmp_path, programs) as run:
        settled(run)
        found = values(run)
        run.stop_cleanly()
    failures = found.pop("probe_failures_total{readiness,slow}")
    assert failures >= 1
    memory = [found.pop(f"program_memory_bytes{{{name}}}") for name in ("slow", "well")]
    assert min(memory) > 100_000
    cpu = [found.pop(f"program_cpu_seconds_total{{{name}}}") for name in ("slow", "well")]
    assert min(cpu) >= 0.0
    assert {
        "health_ready{}": 0.0,
        **{f"program_starts_total{{{name}}}": 1.0 for name in ("slow", "well", "done")},
        "program_starts_total{sick}": 2.0,
        "program_ends_total{sick,health_check_restart}": 2.0,
        "program_ends_total{done,clean_exit}": 1.0,
        "probe_failures_total{liveness,sick}": 2.0,
        "breaker_trips_total{sick}": 1.0,
        **{f"program_desired{{{name}}}": float(name != "done") for name in programs},
        **{f"program_up{{{name}}}": float(name in {"slow", "well"}) for name in programs},
        **{f"program_ready{{{name}}}": float(name == "well") for name in programs},
        **{f"program_breaker_open{{{name}}}": float(name == "sick") for name in programs},
        "probe_success{readiness,slow}": 0.0,
        "probe_success{readiness,well}": 1.0,
    } == found


def test_ready_names_the_programs_that_are_not_and_live_is_another_matter(tmp_path: Path) -> None:
    programs = {"sick": SICK, "slow": SLOW, "well": WELL, "done": DONE}
    with serving(tmp_path, programs) as run:
        settled(run)
        assert (503, '{"status": "unhealthy"}') == run.get("/health/ready")
        assert (503, "programs: not ready: sick (broken), slow (up)") == run.get("/readyz")
        assert {"programs": "failed"} == run.get("/health/ready?verbose").reasons
        assert (200, '{"status": "healthy"}') == run.get("/health/live")
        assert {"supervisor": "ok", "worker-monitor": "ok"} == run.get(
            "/health/live?verbose"
        ).reasons
        assert (200, "Started") == run.get("/startupz")
        assert 404 == run.get("/programs").status

        run.request("stop", "sick", "slow")
        assert (200, "Ready") == run.get("/readyz")
        assert 1.0 == run.metric("longwatch_health_ready")
        run.stop_cleanly()


def test_promtool_finds_no_fault_in_the_page(tmp_path: Path) -> None:
    requires.require_tool("promtool")
    programs = {"sick": SICK, "slow": SLOW, "well": WELL, "done": DONE}
    with serving(tmp_path, programs) as run:
        settled(run)
        page = run.get("/metrics").body
        run.stop_cleanly()
    assert "" == promtool("check", "metrics", text=page)


def test_promtool_finds_no_fault_in_the_page_of_a_worker(tmp_path: Path) -> None:
    requires.require_tool("promtool")
    env = {"STORE": store_url(tmp_path)}
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        start_worker(cwd=tmp_path, env=env, **FROM_SOURCE) as run,
    ):
        mailbox.send_many([{"id": "a", "do": "done"}, {"id": "b", "do": "fail"}])
        run.wait_for_reply("/metrics", lambda reply: 'nacked_total{loop="jobs"} 1.0' in reply.body)
        run.wait_for_reply("/metrics", lambda reply: 'acked_total{loop="jobs"} 1.0' in reply.body)
        page = run.get("/metrics").body
        run.stop_cleanly()
    assert "" == promtool("check", "metrics", text=page)


def test_what_workers_count_is_on_the_same_page(tmp_path: Path) -> None:
    write_app(tmp_path)
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        serving(
            tmp_path,
            {"web": SLEEPER},
            env={"STORE": store_url(tmp_path)},
            worker={"jobs": {"target": "app:group", "processes": 2}},
        ) as run,
    ):
        mailbox.send_many([{"id": f"{number}", "do": "done"} for number in range(20)])
        run.wait_for_reply("/metrics", lambda reply: 'acked_total{loop="jobs"} 20.0' in reply.body)
        run.wait_for_reply("/readyz", lambda reply: reply.status == 200)
        run.wait_for_reply("/metrics", lambda reply: 'running{loop="jobs"} 2.0' in reply.body)
        found = values(run)
        run.stop_cleanly()
    names = ("web", "jobs-1", "jobs-2")
    assert {f"program_starts_total{{{name}}}": 1.0 for name in names} == {
        name: value for name, value in found.items() if name.startswith("program_starts")
    }
    assert [1.0, 1.0, 1.0] == [found[f"program_ready{{{name}}}"] for name in names]
    assert 0.0 == found["mailbox_ready{jobs}"]


@pytest.mark.parametrize("command", ["up", "worker"])
def test_a_store_that_is_frozen_leaves_the_metrics_that_need_no_store(
    command: str, tmp_path: Path
) -> None:
    server = make_server()
    server.start()
    try:
        with (
            open_store(server.url(), auto_migrate=True) as store,
            serving_workers(command, tmp_path, {"STORE": server.url()}) as run,
        ):
            open_mailbox(store, "jobs").send({"id": "a", "do": "done"})
            run.wait_for_reply(
                "/metrics", lambda reply: 'acked_total{loop="jobs"} 1.0' in reply.body
            )
            assert 0.0 == values(run)["mailbox_ready{jobs}"]
            with server.frozen():
                found = values(run)
                assert "mailbox_ready{jobs}" not in found
                assert (1.0, 1.0) == (
                    found["mailbox_acked_total{jobs}"],
                    found["loop_running{jobs}"],
                )
            run.wait_for_reply("/metrics", lambda reply: 'ready{mailbox="jobs"} 0.0' in reply.body)
            run.stop_cleanly()
    finally:
        destroy_server(server)


@contextmanager
def serving_jobs(cwd: Path, store: str) -> Iterator[WorkerProcess]:
    """`longwatch up` with a worker that is ready."""
    write_app(cwd, "group = LoopGroup([jobs], watchdog_threshold=60, readiness_threshold=2.0)\n")
    with serving(
        cwd,
        {},
        env={"STORE": store},
        worker={"jobs": {"target": "app:group"}},
    ) as run:
        run.wait_for_reply("/metrics", lambda reply: 'running{loop="jobs"} 1.0' in reply.body)
        run.wait_for_status("jobs", ready=True)
        yield run


def wait_until_unready(run: WorkerProcess, reason: str) -> None:
    """Wait until every view of `jobs` says that it is up and not ready, for this reason."""
    run.wait_for_status("jobs", up=True, ready=False, unready_reason=reason)
    assert (503, f"programs: not ready: jobs ({reason})") == run.get("/readyz")[:2]
    assert (1.0, 0.0) == tuple(values(run)[f"program_{name}{{jobs}}"] for name in ("up", "ready"))
    for command in (("status",), ("top", "--once")):
        shown = run_longwatch(run.longwatch, run.cwd, *command, within=FROM_SOURCE["within"]).stdout
        [row, note] = re.findall(r"(?m)^jobs  .*\n.*$", shown)[0].splitlines()
        assert (" no", f"  not ready: {reason}") == (row[-3:], note)


def test_every_view_says_that_a_frozen_worker_is_not_ready(tmp_path: Path) -> None:
    with serving_jobs(tmp_path, store_url(tmp_path)) as run:
        pid = run.status("jobs")["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until_unready(run, "stale")
        finally:
            os.kill(pid, signal.SIGCONT)
        facts = run.wait_for_status("jobs", up=True, ready=True)
        run.stop_cleanly()
    assert (pid, "") == (facts["pid"], facts["unready_reason"])


def serving_workers(
    command: str, cwd: Path, env: Mapping[str, str]
) -> AbstractContextManager[WorkerProcess]:
    """A worker process under `longwatch up`, or under `longwatch worker`."""
    write_app(cwd)
    if command == "up":
        return serving(cwd, {}, env=env, worker={"jobs": {"target": "app:group"}})
    return start_worker(cwd=cwd, env=env, **FROM_SOURCE)


def test_status_says_that_a_worker_without_its_store_is_not_ready(tmp_path: Path) -> None:
    server = make_server()
    server.start()
    try:
        with open_store(server.url(), auto_migrate=True) as store:
            open_mailbox(store, "jobs").stats()
        with serving_workers("up", tmp_path, {"STORE": server.url()}) as run:
            run.wait_for_reply("/metrics", lambda reply: 'running{loop="jobs"} 1.0' in reply.body)
            run.wait_for_status("jobs", ready=True)
            with server.frozen():
                run.wait_for_status("jobs", up=True, ready=False)
                shown = run_longwatch(
                    run.longwatch, run.cwd, "status", within=FROM_SOURCE["within"]
                )
            run.stop_cleanly()
    finally:
        destroy_server(server)
    assert re.search(r"(?m) no\n  not ready: (loop jobs: )?unreachable$", shown.stdout)


# --- from the start to the end ---


def test_a_shutdown_is_not_ready_and_live_and_gives_the_port_back(tmp_path: Path) -> None:
    busy = sh(STOPS_WHEN_TOLD, stop_grace=60)
    with serving(tmp_path, {"busy": busy}) as run:
        run.wait_for_output("busy | ready")
        run.wait_for_reply("/readyz", lambda reply: reply.status == 200)
        run.signal(signal.SIGTERM)
        run.wait_for_reply("/readyz", lambda reply: reply == (503, "programs: draining"))
        assert 200 == run.get("/health/live").status
        assert 0.0 == run.metric("longwatch_health_ready")
        assert 1.0 == run.metric("longwatch_program_up", program="busy")
        (tmp_path / "enough").touch()
        assert 0 == run.wait()
        socket.create_server(("127.0.0.1", run.port)).close()


def test_a_reload_changes_the_programs_on_the_page_and_not_its_port(tmp_path: Path) -> None:
    with serving(tmp_path, {"web": SLEEPER}) as run:
        run.wait_for_status("web", ready=True)
        write_config(tmp_path, {"db": SLEEPER}, supervisor=on_port(run.port))
        assert 0 == reload(tmp_path).returncode
        run.wait_for_status("db", ready=True)
        assert ["db"] == [
            found[1] for name in values(run) if (found := re.fullmatch(r"program_up{(.*)}", name))
        ]

        write_config(tmp_path, {"db": SLEEPER}, supervisor=on_port(unused_port()))
        refused = reload(tmp_path)
        assert (2, True) == (
            refused.returncode,
            "longwatch.toml: supervisor.metrics_port: cannot change while we run; put it back, or "
            "stop `longwatch up` and start it again" in refused.stderr,
        )
        assert 200 == run.get("/health/live").status
        run.stop_cleanly()


def reload(cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FROM_SOURCE["within"], FROM_SOURCE["longwatch"], "reload"],
        check=False,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def test_a_port_that_is_taken_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = sh("echo started > started; sleep 1000")
        with start_up(
            cwd=tmp_path, programs={"web": started}, supervisor=on_port(port), **FROM_SOURCE
        ) as run:
            assert 2 == run.wait()
    assert (
        f"longwatch: the [supervisor] metrics_port {port} on 127.0.0.1 is in use; choose another, "
        "or stop the process that listens there\n"
    ) == run.err.text.decode()
    assert not (tmp_path / "started").exists()


def test_a_port_out_of_range_is_an_error_that_says_what_it_must_be(tmp_path: Path) -> None:
    with start_up(
        cwd=tmp_path, programs={"web": SLEEPER}, supervisor=on_port(65536), **FROM_SOURCE
    ) as run:
        assert 2 == run.wait()
    assert (
        'supervisor.metrics_port: must be a whole number from 1 to 65535 or "off", not 65536'
        in run.err.text.decode()
    )


def test_a_change_in_a_worker_is_once_and_in_order_in_log_metrics_and_health(
    tmp_path: Path,
) -> None:
    """A message fails, and later its worker stops: each is one record of the log of events, one
    count, and health follows.
    """
    write_app(tmp_path)
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        serving(
            tmp_path,
            {"web": SLEEPER},
            env={"STORE": store_url(tmp_path)},
            worker={"jobs": {"target": "app:group"}},
        ) as run,
    ):
        run.wait_for_reply("/readyz", lambda reply: reply.status == 200)
        mailbox.send({"id": "broken", "do": "fail"})
        run.wait_for_reply("/metrics", lambda reply: 'nacked_total{loop="jobs"} 1.0' in reply.body)
        run.request("stop", "jobs")
        assert 1.0 == run.metric("longwatch_mailbox_nacked_total", loop="jobs")
        assert 200 == run.get("/readyz").status  # it is not wanted any more
        run.stop_cleanly()
    names = ("loop_started", "worker_joined", "work_failed", "group_stopping", "loop_ended")
    of_worker = [each for each in run.logged_events() if each.get("program") == "jobs"]
    assert dict.fromkeys(names, 1) == {
        name: sum(each["event"] == name for each in of_worker) for name in names
    }
    relayed = [each["event"] for each in of_worker if each["event"] in {*names} - {"worker_joined"}]
    assert ["loop_started", "work_failed", "group_stopping", "loop_ended"] == relayed
    [failure] = [each for each in of_worker if each["event"] == "work_failed"]
    [started] = [each for each in of_worker if each["event"] == "program_started"]
    assert (started["pid"], "RuntimeError: broken") == (failure["pid"], failure["error"])
