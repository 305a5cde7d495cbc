"""`longwatch runner` and its commands: real processes, a real event stream, real agents."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from event_server import EventServer, serving_events
from polling import complete_lines, eventually
from postgres_server import shared_server
from run_process import run_longwatch
from runner_process import (
    LONGWATCH,
    WITHIN,
    Facts,
    RunnerProcess,
    agent,
    runner_command,
    runner_json,
    start_runner,
    wait_for_runs,
    write_runner,
)
from up_process import start_up, unused_port

REPORT = "echo to stdout; echo to stderr >&2; echo done > output/report.md"
HANGS = 'echo "$$" >> ../../pids; trap "" TERM; while :; do sleep 0.1; done'
"""An agent that ignores SIGTERM."""


@pytest.fixture
def stream() -> Iterator[EventServer]:
    with serving_events() as server:
        yield server


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as response:
            return response.status, response.read().decode().removesuffix("\n")
    except HTTPError as error:
        return error.code, error.read().decode().removesuffix("\n")


def agents_alive(cwd: Path) -> list[int]:
    pids = [int(line) for line in complete_lines(cwd / "pids")]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def _signalled_again(runner: RunnerProcess) -> bool:
    """Send one more signal, unless one has been taken for the second: a third would end it."""
    if not runner.matching_events("signal_received", action="escalate"):
        runner.signal(signal.SIGTERM)
    return True


# --- from an event to a run ---


def test_an_event_becomes_a_run_and_all_of_it_can_be_looked_at(
    stream: EventServer, tmp_path: Path
) -> None:
    write_runner(
        tmp_path, {"prod": stream.url}, agent(REPORT, success={"file": "output/report.md"})
    )
    with start_runner(tmp_path) as runner:
        stream.send(faultId="f1", note="first")
        stream.send(faultId="f2", severity="debug")
        runner.wait_for_event("agent_run_ended", status="success")
        [source] = runner_json(tmp_path, "sources")
        [run] = wait_for_runs(tmp_path, 1, status="success")
        runner.signal(signal.SIGTERM)
        assert 0 == runner.wait()

    assert ("prod", "connected", 0, 0) == tuple(
        source[key] for key in ("source", "state", "queue_depth", "reconnects")
    )
    assert "2" == source["last_event_id"]
    shown = runner_json(tmp_path, "runs", "show", run["run"])
    assert ("exit 0", 1) == (shown["cause"], shown["attempt"])
    assert "first" == json.loads(shown["data"])["note"]
    assert [{"path": "output/report.md", "bytes": 5}] == shown["artifacts"]
    logs = runner_command(tmp_path, "runs", "logs", run["run"]).stdout
    assert "to stdout\nto stderr\n" == logs
    assert "to stderr\n" == runner_command(tmp_path, "runs", "logs", run["run"], "--stderr").stdout
    tail = runner_command(tmp_path, "events", "tail", "--json").stdout.splitlines()
    assert ["run", "filtered"] == [json.loads(line)["outcome"] for line in tail]
    assert "stopped" == runner_json(tmp_path, "sources")[0]["state"]
    stopped = runner.events("runner_stopped")[0]
    assert (2.0, 1.0) == (
        stopped["metrics"]["events_received_total"],
        stopped["metrics"]["agents_completed_total"],
    )


def test_a_runner_works_on_postgresql_once_its_schema_is_there(
    stream: EventServer, tmp_path: Path
) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT))
    with shared_server().database() as url:
        env = {"LONGWATCH_RUNNER_STORE_URL": url}
        unready = runner_command(tmp_path, env=env)
        assert 2 == unready.returncode
        assert "longwatch db migrate" in unready.stderr
        migrated = run_longwatch(
            LONGWATCH, tmp_path, "db", "migrate", "--store", url, within=WITHIN
        )
        assert 0 == migrated.returncode, migrated.stderr
        with start_runner(tmp_path, env=env) as runner:
            stream.send()
            runner.wait_for_event("agent_run_ended", status="success")
            runner.signal(signal.SIGTERM)
            assert 0 == runner.wait()
        listed = runner_command(tmp_path, "runs", "ls", "--store", url, "--json")
        assert ["success"] == [run["status"] for run in json.loads(listed.stdout)]
    assert not (tmp_path / "longwatch.db").exists()


def test_a_malformed_event_and_one_whose_runs_fail_are_given_up_and_listed(
    stream: EventServer, tmp_path: Path
) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent("exit 3"), max_attempts=1)
    with start_runner(tmp_path) as runner:
        stream.send(faultId="f1")
        stream.send_text("not json")
        runner.wait_for_event("agent_run_ended", status="failure", cause="exit 3")

        def reasons() -> set[str]:
            return {event["reason"] for event in runner_json(tmp_path, "events", "dead")}

        assert eventually(lambda: "malformed" in reasons() and len(reasons()) == 2)
        [run] = runner_json(tmp_path, "runs", "ls", "--status", "failure")
        retried = runner_json(tmp_path, "runs", "retry", run["run"])
        runner.wait_for_event("agent_run_ended", event_id=retried["event"], times=2)
        assert 2 == len(runner_json(tmp_path, "runs", "ls", "--event", retried["event"]))


def test_a_run_is_cancelled_from_another_process(stream: EventServer, tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(HANGS, stop_grace=0.2))
    with start_runner(tmp_path) as runner:
        stream.send()
        started = runner.wait_for_event("agent_run_started")
        runner_json(tmp_path, "runs", "cancel", started["run_id"])
        ended = runner.wait_for_event("agent_run_ended")

        assert ("cancelled", "cancelled") == (ended["status"], ended["cause"])
        again = runner_command(tmp_path, "runs", "cancel", started["run_id"])
        assert 2 == again.returncode
        assert "has ended" in again.stderr
        assert [] == agents_alive(tmp_path)


def test_a_source_that_is_down_does_not_stop_another(stream: EventServer, tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{unused_port()}/events"
    write_runner(tmp_path, {"a-down": down, "prod": stream.url}, agent(REPORT))
    with start_runner(tmp_path) as runner:
        stream.send()
        runner.wait_for_event("sse_connection_failed", cluster="a-down")
        runner.wait_for_event("agent_run_ended", cluster="prod", status="success")

        def states() -> dict[str, str]:
            return {
                source["source"]: source["state"] for source in runner_json(tmp_path, "sources")
            }

        assert eventually(lambda: states()["a-down"] in {"waiting", "connecting"})
        assert "connected" == states()["prod"]


# --- the stop ---


def test_a_stop_waits_for_runs_within_its_budget(stream: EventServer, tmp_path: Path) -> None:
    write_runner(
        tmp_path, {"prod": stream.url}, agent("while [ ! -e ../../go ]; do sleep 0.05; done")
    )
    with start_runner(tmp_path) as runner:
        stream.send()
        runner.wait_for_event("agent_run_started")
        runner.signal(signal.SIGINT)
        stopping = runner.wait_for_event("runner_stopping")
        runner.wait_for_event("sse_connection_closed")
        (tmp_path / "go").touch()
        assert 0 == runner.wait()

    assert ("SIGINT", 1) == (stopping["signal"], stopping["in_flight"])
    stopped = runner.events("runner_stopped")[0]
    assert (1, 0) == (stopped["completed"], stopped["interrupted"])
    assert "success" == runner.events("agent_run_ended")[0]["status"]


def test_a_run_that_does_not_end_in_time_is_ended_and_its_event_runs_again(
    stream: EventServer, tmp_path: Path
) -> None:
    """An interruption spends no attempt: with one attempt the event still runs after a restart."""
    fast = agent(HANGS, stop_grace=0.2)
    write_runner(tmp_path, {"prod": stream.url}, fast, max_attempts=1)
    with start_runner(tmp_path, "--shutdown-timeout", "8") as runner:
        stream.send()
        started = runner.wait_for_event("agent_run_started")
        runner.signal(signal.SIGTERM)
        assert 0 == runner.wait()
    assert (0, 1) == tuple(
        runner.events("runner_stopped")[0][key] for key in ("completed", "interrupted")
    )
    [interrupted] = runner.events("agent_run_interrupted")
    assert started["run_id"] == interrupted["run_id"]
    assert [] == agents_alive(tmp_path)

    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT), max_attempts=1)
    with start_runner(tmp_path) as runner:
        runner.wait_for_event("agent_run_ended", event_id=started["event_id"], status="success")


def test_a_second_signal_kills_now(stream: EventServer, tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(HANGS, stop_grace=600), shutdown_timeout=900)
    with start_runner(tmp_path) as runner:
        stream.send()
        runner.wait_for_event("agent_run_started")
        assert eventually(lambda: bool(agents_alive(tmp_path)))
        runner.signal(signal.SIGTERM)
        runner.wait_for_event("sse_connection_closed")
        # a signal right after the first is taken for the same one said twice
        assert eventually(lambda: _signalled_again(runner) and not agents_alive(tmp_path))
        code = runner.wait()
    assert 1 == len(runner.events("runner_stopping"))
    # on a busy machine the rest may take longer than it has
    assert len(runner.events("runner_stop_forced")) == code


def test_a_runner_that_is_killed_leaves_no_agent_and_loses_no_event(
    stream: EventServer, tmp_path: Path
) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(HANGS))
    with start_runner(tmp_path) as runner:
        stream.send()
        started = runner.wait_for_event("agent_run_started")
        assert eventually(lambda: bool(agents_alive(tmp_path)))
        runner.signal(signal.SIGKILL)
        runner.wait()
    assert eventually(lambda: not agents_alive(tmp_path))

    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT))
    with start_runner(tmp_path) as runner:
        runner.wait_for_event("agent_run_ended", event_id=started["event_id"], status="success")
        assert {"success", "cancelled"} == {
            run["status"] for run in runner_json(tmp_path, "runs", "ls")
        }


# --- health, metrics, settings ---


def test_health_and_metrics_are_served_on_their_ports(stream: EventServer, tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent("sleep 1000"), health_port=0)
    with start_runner(tmp_path, env={"METRICS_PORT": "0"}) as runner:
        health, metrics = runner.port("health_port"), runner.port("metrics_port")
        runner.wait_for_event("sse_connection_established")
        assert eventually(lambda: get(health, "/readyz") == (200, "Ready"))
        assert (200, "OK") == get(health, "/healthz")
        stream.send()
        runner.wait_for_event("agent_run_started")
        status, page = get(metrics, "/metrics")
        assert 200 == status
        assert 'longwatch_runner_agents_active{cluster="prod"} 1.0' in page
        assert 404 == get(health, "/metrics")[0]
        runner.signal(signal.SIGTERM)
        runner.wait_for_event("runner_stopping")
        assert (200, "Shutting down") == get(health, "/healthz")
        status, text = get(health, "/readyz")
        assert 503 == status
        assert "draining" in text


def test_without_a_connection_it_is_not_ready(tmp_path: Path) -> None:
    down = f"http://127.0.0.1:{unused_port()}/events"
    write_runner(tmp_path, {"prod": down}, agent(REPORT), health_port=0)
    with start_runner(tmp_path) as runner:
        port = runner.port("health_port")
        runner.wait_for_event("sse_connection_failed")

        assert (503, "sse_connections: no active SSE connections") == get(port, "/readyz")
        assert (200, "OK") == get(port, "/healthz")


def test_secrets_are_sent_and_never_shown(stream: EventServer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    sources: dict[str, str | Facts] = {
        "a": {
            "url": stream.url,
            "headers": {"X-Api-Key": {"env": "API_KEY"}, "X-Plain": "hunter3"},
        },
        "b": {"url": stream.url, "token_file": "token"},
    }
    write_runner(tmp_path, sources, agent(REPORT))
    with start_runner(tmp_path, env={"API_KEY": "hunter4"}) as runner:
        for name in sources:
            runner.wait_for_event("sse_connection_established", cluster=name)
        runner.signal(signal.SIGTERM)
        assert 0 == runner.wait()
    sent = [dict(request) for request in stream.requests]
    assert {"hunter4"} == {request["X-Api-Key"] for request in sent if "X-Api-Key" in request}
    assert "Bearer hunter2" in {request.get("Authorization") for request in sent}
    assert b"hunter" not in runner.err.text


# --- bad input ---


def test_everything_that_this_machine_lacks_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    sources: dict[str, str | Facts] = {
        "prod": {
            "url": "http://127.0.0.1:1/",
            "headers": {"X-Api-Key": {"env": "API_KEY"}},
            "ca_file": "none.pem",
        }
    }
    facts = {"command": ["./plain"], "workspace": "plain/runs", "prompt": "none.md"}
    write_runner(tmp_path, sources, facts)

    refused = runner_command(tmp_path)

    assert 2 == refused.returncode
    expected = {
        "source.prod.headers.X-Api-Key": "takes its value from the variable API_KEY, which is not",
        "source.prod.ca_file": f"'{tmp_path}/none.pem' does not exist; name a file that is there",
        "agent.command": f"'{tmp_path}/plain' is not executable; make it so with chmod +x, or",
        "agent.prompt": f"'{tmp_path}/none.md' does not exist; name a file that is there",
        "agent.workspace": f"'{tmp_path}/plain/runs' is below '{tmp_path}/plain', a file; name",
    }
    lines = refused.stderr.splitlines()
    assert len(expected) == len(lines)
    for line, (key, words) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"longwatch: longwatch.toml: runner.{key}: {words}")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--agent-timeout", "0"), "--agent-timeout takes off or a duration"),
        (("--store-url", "redis://localhost"), "--store-url takes a SQL store"),
        (("--severity-threshold", "loud"), "--severity-threshold takes critical, debug"),
        (
            ("--max-concurrent-agents", "0"),
            "--max-concurrent-agents takes a whole number from 1",
        ),
        (("--store-url", "sqlite:///missing/dir/x.db"), "missing/dir"),
        (("--agent-timout", "3"), "has no option --agent-timout; did you mean --agent-timeout?"),
    ],
)
def test_flags_that_cannot_be_are_refused(
    tmp_path: Path, words: tuple[str, ...], expected: str
) -> None:
    write_runner(tmp_path, {"prod": "http://127.0.0.1:1/"}, agent(REPORT))
    refused = runner_command(tmp_path, *words)
    assert (2, "") == (refused.returncode, refused.stdout)
    assert expected in refused.stderr


def test_a_file_without_a_runner_is_refused_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "longwatch.toml").write_text('[program.web]\ncommand = "sleep 1"\n')
    refused = runner_command(tmp_path)
    assert 2 == refused.returncode
    assert "declares no event source; add one: [runner.source.NAME]" in refused.stderr


def test_without_the_extra_it_is_refused_with_the_command_that_installs_it(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_runner(tmp_path, {"prod": "http://127.0.0.1:1/"}, agent(REPORT))
    refused = run_longwatch(longwatch_bin, tmp_path, "runner")
    assert 2 == refused.returncode
    assert "needs aiohttp, which is not installed; run: pip install 'aiohttp>=3.11'" in (
        refused.stderr
    )


def test_a_health_port_that_somebody_else_has_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_runner(
            tmp_path,
            {"prod": "http://127.0.0.1:1/"},
            agent(REPORT),
            health_port=port,
            health_host="127.0.0.1",
        )
        refused = runner_command(tmp_path)
    assert 2 == refused.returncode
    assert str(port) in refused.stderr


@pytest.mark.parametrize("words", [("sources",), ("runs", "ls"), ("events", "tail")])
def test_a_command_that_only_looks_makes_no_store(tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = runner_command(tmp_path, *words)
    assert 2 == refused.returncode
    assert "no store at sqlite:///longwatch.db" in refused.stderr
    assert [] == list(tmp_path.iterdir())


def test_ids_and_names_that_nobody_has_are_refused(stream: EventServer, tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT))
    with start_runner(tmp_path) as runner:
        runner.wait_for_event("sse_connection_established")
    for words in (("show", "x"), ("logs", "x"), ("retry", "x"), ("cancel", "x")):
        refused = runner_command(tmp_path, "runs", *words)
        assert 2 == refused.returncode
        assert "there is no run 'x'" in refused.stderr
    unknown = runner_command(tmp_path, "events", "tail", "--source", "prd")
    assert 2 == unknown.returncode
    assert "did you mean prod?" in unknown.stderr


# --- as a program of `longwatch up` ---


def test_longwatch_up_keeps_the_runner_up_as_a_program(stream: EventServer, tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT))
    config = tmp_path / "longwatch.toml"
    text = config.read_text().replace('health_port = "off"\nmetrics_port = "off"\n', "")
    config.write_text(text)
    with start_up(LONGWATCH, tmp_path, within=WITHIN) as up:
        facts = up.wait_for_status("runner", ready=True)
        assert eventually(lambda: "1 of 1 sources connected" in json.dumps(up.status("runner")))
        stream.send()
        wait_for_runs(tmp_path, 1, status="success")
        os.kill(facts["pid"], signal.SIGKILL)
        assert eventually(lambda: up.status("runner")["pid"] not in {None, facts["pid"]})
        up.wait_for_status("runner", ready=True)
        stream.send(resource="pod/b")
        wait_for_runs(tmp_path, 2, status="success")
        up.request("stop", "runner")
        up.wait_for_status("runner", state="stopped")
        log = (tmp_path / ".longwatch" / "logs" / "runner.log").read_text()
        up.stop_cleanly()

    started = [json.loads(line) for line in log.splitlines() if '"runner_started"' in line]
    assert 2 == len(started)
    assert ("off", "off") == tuple(
        started[0]["settings"][key] for key in ("health_port", "metrics_port")
    )
    assert '"runner_stopped"' in log


def test_a_reload_restarts_the_runner_when_its_settings_changed(
    stream: EventServer, tmp_path: Path
) -> None:
    write_runner(tmp_path, {"prod": stream.url}, agent(REPORT))
    with start_up(LONGWATCH, tmp_path, within=WITHIN) as up:
        first = up.wait_for_status("runner", ready=True)["pid"]
        up.request("reload")
        assert first == up.status("runner")["pid"]
        write_runner(tmp_path, {"prod": stream.url}, agent(REPORT), max_attempts=7)
        up.request("reload")
        assert eventually(lambda: up.status("runner")["pid"] not in {None, first})
        up.wait_for_status("runner", ready=True)
        up.stop_cleanly()


def test_longwatch_check_shows_the_runner_among_the_programs(tmp_path: Path) -> None:
    write_runner(tmp_path, {"prod": "http://127.0.0.1:1/"}, agent(REPORT))
    checked = run_longwatch(LONGWATCH, tmp_path, "check", "--json", within=WITHIN)
    assert 0 == checked.returncode, checked.stderr
    [program] = json.loads(checked.stdout)["programs"]
    assert ("runner", "notify") == (program["name"], program["ready"])
