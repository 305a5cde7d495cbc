from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flow_stores import opened_store
from longwatch.core.events.runner import (
    AgentRunEnded,
    AgentRunInterrupted,
    AgentRunStarted,
    AgentRunTimedOut,
)
from longwatch.runner.run_store import RunRecord
from longwatch.store.database import Database
from polling import eventually
from runner_rig import HOME, POLICY, REPORT, DispatchRig, dispatching

ONCE = replace(POLICY, max_attempts=1)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with opened_store("sqlite", tmp_path) as opened:
        yield opened


def run_once(
    database: Database, folder: Path, do: str, *, policy: Any = ONCE, **agent: Any
) -> tuple[RunRecord, DispatchRig]:
    """The one run of an event whose agent runs these lines."""
    with dispatching(database, folder, policy=policy, agent=agent) as rig:
        event = rig.queue.put(do)
        assert eventually(lambda: rig.queue.outcome(event)[0] is not None)
    [run] = rig.queue.of(event)
    return run, rig


def test_a_run_that_ends_well_is_a_success(database: Database, tmp_path: Path) -> None:
    """Its record has output, artifacts and use of resources, and its event the outcome `run`."""
    do = "say('hello'); say('oops', 2); Path('output/report.md').write_text('found it')"
    run, rig = run_once(database, tmp_path, do, success=REPORT)
    assert ("success", "exit 0", "") == (run.status, run.cause, run.error)
    assert "--- stdout\nhello\n--- stderr\noops\n" == run.output
    assert [("output/report.md", 8)] == list(run.artifacts)
    assert run.cpu_seconds
    assert run.max_rss
    assert run.pid
    assert ("run", "") == rig.queue.outcome(run.event)
    workspace = Path(run.workspace)
    assert "alpha" == json.loads((workspace / "event.json").read_text())["cluster"]
    assert "hello\n" == (workspace / "stdout.log").read_text()
    assert "oops\n" == (workspace / "stderr.log").read_text()
    [started] = rig.observer.of(AgentRunStarted)
    assert (run.id, run.event, "alpha", 1, run.pid) == (
        started.run_id,
        started.event_id,
        started.cluster,
        started.attempt,
        started.pid,
    )


@pytest.mark.parametrize(
    ("do", "cause", "error"),
    [
        ("say('no luck', 2); sys.exit(3)", "exit 3", "exit 3; it last wrote: no luck"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11", "SIGSEGV"),
        ("pass", "invalid_output", "expected output/report.md of at least 5 bytes, found none"),
        (
            "Path('output/report.md').write_text('abc')",
            "invalid_output",
            "expected output/report.md of at least 5 bytes, found 3 bytes",
        ),
    ],
)
def test_a_run_that_ends_badly_is_a_failure(
    database: Database, tmp_path: Path, do: str, cause: str, error: str
) -> None:
    """By its exit code, by a signal, or without the output that it promised."""
    run, rig = run_once(database, tmp_path, do, success=REPORT)
    assert ("failure", cause) == (run.status, run.cause)
    assert run.error is not None
    assert error in run.error
    assert ("dead-lettered", "failed") == rig.queue.outcome(run.event)
    [letter] = rig.queue.dead_letters()
    assert letter.error == f"{cause}: {run.error}"


def test_an_agent_that_hangs_is_ended_at_its_timeout(database: Database, tmp_path: Path) -> None:
    """It ignores SIGTERM, and so does its grandchild: both are killed, and the record says so."""
    do = "deaf(); say('stuck in a loop'); os.fork(); rest()"
    policy = replace(ONCE, agent_timeout=1.0)
    run, rig = run_once(database, tmp_path, do, policy=policy, stop_grace=0.2)
    assert ("timeout", "timeout") == (run.status, run.cause)
    assert run.error is not None
    assert "longer than 1 s" in run.error
    assert "2 of its processes had to be killed" in run.error
    assert "stuck in a loop" in run.error
    assert [] == rig.processes()
    [timed_out] = rig.observer.of(AgentRunTimedOut)
    assert (run.id, 1.0) == (timed_out.run_id, timed_out.timeout)
    assert timed_out.duration >= 1.0
    [ended] = rig.observer.of(AgentRunEnded)
    assert ("timeout", 0) == (ended.status, ended.survivors)


def test_an_agent_that_is_silent_for_too_long_has_stalled(
    database: Database, tmp_path: Path
) -> None:
    """With a progress deadline, an agent that writes goes on and one that is silent is ended."""
    do = "[(say('working'), time.sleep(0.1)) for _ in range(15)]; rest()"
    policy = replace(ONCE, progress_timeout=1.0)
    run, _ = run_once(database, tmp_path, do, policy=policy)
    assert ("failure", "stalled") == (run.status, run.cause)
    assert run.output is not None
    assert 15 == run.output.count("working")


def test_a_grandchild_that_holds_the_pipes_delays_nothing(
    database: Database, tmp_path: Path
) -> None:
    """When the agent ends, what it left in a session of its own is killed, and the run has ended
    well.
    """
    do = "os.fork() or (os.setsid(), deaf(), rest())"
    run, rig = run_once(database, tmp_path, do)
    assert ("success", "exit 0") == (run.status, run.cause)
    assert [] == rig.processes()


def test_a_flood_of_output_is_bounded(database: Database, tmp_path: Path) -> None:
    """The end of the output is kept, in the file and in the record."""
    do = "[os.write(1, (b'%09d' % n + b'x' * 90 + b'\\n') * 100) for n in range(5000)]; say('end')"
    run, _ = run_once(database, tmp_path, do, max_output_bytes=1 << 20)
    assert "success" == run.status
    log = Path(run.workspace, "stdout.log").read_bytes()
    assert len(log) <= 1 << 20
    assert log.endswith(b"end\n")
    assert run.output is not None
    assert len(run.output) < 20_000
    assert run.output.endswith("end\n")


@pytest.mark.parametrize("kind", ["missing", "not executable", "a directory"])
def test_a_command_that_cannot_be_started_is_a_spawn_error(
    database: Database, tmp_path: Path, kind: str
) -> None:
    """It counts as started and as ended, and the error names the command."""
    command = tmp_path / "agent"
    if kind == "not executable":
        command.write_text("#!/bin/sh\n")
    elif kind == "a directory":
        command.mkdir()
    run, rig = run_once(database, tmp_path, "pass", command=(str(command),))
    assert ("failure", "spawn_error") == (run.status, run.cause)
    assert run.error is not None
    assert str(command) in run.error
    [started] = rig.observer.of(AgentRunStarted)
    assert started.pid is None


def test_a_workspace_that_cannot_be_made_is_a_spawn_error(
    database: Database, tmp_path: Path
) -> None:
    """The record says which path, and why."""
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "runs"
    run, _ = run_once(database, tmp_path, "pass", workspace=root)
    assert ("failure", "spawn_error") == (run.status, run.cause)
    assert run.error is not None
    assert "cannot prepare its workspace" in run.error
    assert "file" in run.error


def test_a_prompt_that_cannot_be_read_is_a_spawn_error(database: Database, tmp_path: Path) -> None:
    """No agent runs without its prompt."""
    run, _ = run_once(database, tmp_path, "pass", prompt=tmp_path / "missing.md")
    assert "spawn_error" == run.cause
    assert run.error is not None
    assert "missing.md: no such file or directory" in run.error


def test_the_environment_is_an_allow_list(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent gets the names that are allowed, its own settings, and where its event is."""
    monkeypatch.setenv("SECRET_OF_THE_RUNNER", "hidden")
    do = "say(json.dumps(dict(os.environ))); say(os.getcwd()); say(sys.stdin.read())"
    run, _ = run_once(
        database, tmp_path, do, env={"MODEL": "small"}, env_names=("HOME", "NOT_SET_ANYWHERE")
    )
    first, cwd, *rest = Path(run.workspace, "stdout.log").read_text().splitlines()
    environment = json.loads(first)
    deadline = datetime.fromisoformat(environment.pop("LONGWATCH_DEADLINE"))
    assert timedelta(0) < deadline - datetime.now(UTC) < timedelta(seconds=60)
    environment = {
        name: value
        for name, value in environment.items()
        if not name.startswith("LONGWATCH_") or name in _PROMISED
    }
    assert environment == {
        "HOME": HOME,
        "MODEL": "small",
        "LONGWATCH_RUN_ID": run.id,
        "LONGWATCH_SOURCE": "alpha",
        "LONGWATCH_EVENT": f"{run.workspace}/event.json",
    } | {name: environment[name] for name in ("LC_CTYPE",) if name in environment}
    assert run.workspace == cwd
    event = json.loads("\n".join(rest))
    assert (do, "pod/a") == (event["do"], event["resource"])
    assert (run.id, run.event, "alpha", 1) == tuple(
        event["longwatch"][key] for key in ("run", "event", "source", "attempt")
    )


_PROMISED = {"LONGWATCH_RUN_ID", "LONGWATCH_SOURCE", "LONGWATCH_EVENT"}


def test_a_prompt_and_its_event_are_the_standard_input(database: Database, tmp_path: Path) -> None:
    """The exact input is kept as prompt.md; no value of the event ends the block that quotes
    it.
    """
    prompt = tmp_path / "prompt.md"
    prompt.write_text("Find the cause.\n")
    do = "text = sys.stdin.read(); assert text == Path('prompt.md').read_text(); say(text) # ``` x"
    run, _ = run_once(database, tmp_path, do, prompt=prompt)
    assert "success" == run.status, run.error
    text = Path(run.workspace, "prompt.md").read_text()
    head, _, block = text.partition("```json\n")
    assert "Find the cause.\n\n" == head
    assert block.endswith("\n```\n")
    assert do == json.loads(block.removesuffix("\n```\n"))["do"]


def test_values_of_an_event_enter_no_argument(database: Database, tmp_path: Path) -> None:
    """The command line of every run is the agent's own."""
    do = "say(Path('/proc/self/cmdline').read_text().replace(chr(0), ' '))"
    run, rig = run_once(database, tmp_path, do)
    line = Path(run.workspace, "stdout.log").read_text()
    assert rig.token in line
    assert "pod/a" not in line


def test_an_event_runs_where_it_finds_a_relative_command(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command with a slash is relative to the directory of the runner, not to the workspace."""
    script = tmp_path / "bin" / "agent"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\npwd\n")
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    run, _ = run_once(
        database, tmp_path, "pass", command=("bin/agent",), workspace=Path("relative")
    )
    assert "success" == run.status, run.error
    assert f"--- stdout\n{os.path.realpath(tmp_path)}/relative/{run.id}\n" == run.output


def test_a_run_that_a_shutdown_ends_is_interrupted(database: Database, tmp_path: Path) -> None:
    """The warning names run, source and pid; the event is queued as before."""
    with dispatching(database, tmp_path) as rig:
        event = rig.queue.put("rest()")
        [run_id] = rig.wait_in_flight()
        [info] = rig.dispatcher.in_flight()
        assert rig.dispatcher.stop(timeout=5.0)
    [interrupted] = rig.observer.of(AgentRunInterrupted)
    assert (run_id, "alpha", info.pid) == (
        interrupted.run_id,
        interrupted.cluster,
        interrupted.pid,
    )
    assert [("cancelled", "shutdown")] == rig.queue.causes(event)
    assert 1 == rig.dispatcher.interrupted
