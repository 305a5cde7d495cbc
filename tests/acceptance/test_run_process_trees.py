"""No survivors: whatever a program has started is gone when it is, when we are, and when the
guardian is.
"""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from run_process import (
    PYTHON,
    TIMEOUT,
    RunProcess,
    kill_all,
    pids_with_token,
    start_run,
    wait_for_exit,
    wait_until_gone,
)

STUBBORN_TREE = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
clean, token = sys.argv[1:]
environment = {} if clean == "clean" else None
sleeper = ["/bin/sh", "-c", "trap '' TERM HUP INT; while :; do sleep " + token + "; done"]
subprocess.Popen(sleeper, env=environment)    # a child
if os.fork() == 0:                            # an orphan in a session of its own
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        done = subprocess.Popen(sleeper, env=environment, start_new_session=True)
        print("ready", flush=True)
        if clean == "clean":
            os.execve("/bin/sh", sleeper, environment)
    else:
        os._exit(0)
while True:
    signal.pause()
"""
"""Ignores SIGTERM, has a child, double-forks and setsids; what it starts ignores SIGTERM too and
sleeps for a token of seconds.
"""

ENVIRONMENTS = pytest.mark.parametrize("environment", ["inherited", "clean"])


@pytest.fixture
def token() -> Iterator[str]:
    """A word that no other process has in its command line; whoever bears it after the test is
    killed.
    """
    word = f"98765.{secrets.randbits(60)}"
    yield word
    kill_all(pids_with_token(word))


def wait_for_tree(run: RunProcess, token: str) -> None:
    """Wait until the tree has grown: leader, child, orphan and the orphan's child."""
    assert "ready" == run.next_line()
    assert 4 <= len(pids_with_token(token))


def guardian_of(run: RunProcess) -> int:
    [guardian] = psutil.Process(run.pid).children()
    return guardian.pid


@ENVIRONMENTS
def test_sigterm_leaves_no_survivor(
    longwatch_bin: Path, tmp_path: Path, token: str, environment: str
) -> None:
    command = [*PYTHON, STUBBORN_TREE, environment, token]
    with start_run(longwatch_bin, tmp_path, command, options=("--stop-grace", "0.2")) as run:
        wait_for_tree(run, token)
        run.signal(signal.SIGTERM)
        assert 137 == run.wait()
        assert [] == pids_with_token(token)
    [end] = run.logged_events("shutdown_complete")
    assert 4 <= end["killed"]
    assert 0 == end["survivors"]


@ENVIRONMENTS
def test_kill_9_of_longwatch_itself_leaves_no_survivor(
    longwatch_bin: Path, tmp_path: Path, token: str, environment: str
) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, STUBBORN_TREE, environment, token]) as run:
        wait_for_tree(run, token)
        guardian = guardian_of(run)
        run.signal(signal.SIGKILL)
        assert -signal.SIGKILL == run.process.wait(TIMEOUT)
        wait_until_gone(token)
        assert wait_for_exit(guardian, time.monotonic() + TIMEOUT)


@ENVIRONMENTS
def test_kill_9_of_the_guardian_leaves_no_survivor_and_ends_with_75(
    longwatch_bin: Path, tmp_path: Path, token: str, environment: str
) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, STUBBORN_TREE, environment, token]) as run:
        wait_for_tree(run, token)
        os.kill(guardian_of(run), signal.SIGKILL)
        assert 75 == run.wait()
        assert [] == pids_with_token(token)
    assert 1 == len(run.logged_events("guardian_lost"))
    assert [75] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]
    assert ["longwatch: the guardian died"] == [
        line.decode().partition(";")[0] for line in run.err.lines if not line.startswith(b"{")
    ]


@ENVIRONMENTS
def test_a_leader_that_ends_takes_its_orphans_along(
    longwatch_bin: Path, tmp_path: Path, token: str, environment: str
) -> None:
    with start_run(
        longwatch_bin,
        tmp_path,
        [*PYTHON, STUBBORN_TREE, environment, token],
        options=("--restart", "never"),
    ) as run:
        wait_for_tree(run, token)
        os.kill(run.next_event("program_started")["pid"], signal.SIGKILL)
        assert 137 == run.wait()
        assert [] == pids_with_token(token)


def test_a_bystander_is_spared(longwatch_bin: Path, tmp_path: Path, token: str) -> None:
    """Processes of the same name, session and user that the program did not start are none of
    our business.
    """
    with psutil.Popen(["sleep", token]) as bystander:
        with start_run(longwatch_bin, tmp_path, ["sleep", token]) as run:
            run.next_event("program_started")
            run.signal(signal.SIGTERM)
            assert 143 == run.wait()
        assert bystander.is_running()
        assert [bystander.pid] == pids_with_token(token)
        bystander.kill()
