"""As PID 1 of a container: reap what others leave behind, pass signals on, exit with the
program's code.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

import requires
from polling import eventually
from process_facts import command_line
from run_process import NO_BACKOFF_OPTIONS, PYTHON, RunProcess, start_run

NAMESPACES = {
    "own /proc": ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    "foreign /proc": ("unshare", "--pid", "--fork", "--kill-child"),
}
within = pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=list(NAMESPACES))

LEAVES_AN_ORPHAN = """
import os, select, sys, time
told, tell = os.pipe()
if os.fork() == 0:
    orphan = os.fork()
    if orphan != 0:
        os.write(tell, str(orphan).encode())
    os._exit(0)
os.wait()
orphan = int(os.read(told, 20))
deadline = time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        os.kill(orphan, 0)
    except ProcessLookupError:
        print("the orphan was reaped")
        sys.exit(101)
    select.select([], [], [], 0.01)
print("the orphan is a zombie still")
"""
"""Double-forks a process that exits, and looks whether somebody reaps it: a zombie can still be
signalled.
"""


@pytest.fixture(autouse=True)
def _namespaces_work() -> None:
    requires.require_tool("unshare")


def init_of(run: RunProcess) -> psutil.Process:
    """The `longwatch` inside, as seen from outside."""
    [init] = psutil.Process(run.pid).children()
    return init


@within
def test_an_orphan_that_ends_is_reaped_and_the_code_passed_on(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LEAVES_AN_ORPHAN], within=namespace) as run:
        assert "the orphan was reaped" == run.next_line()
        assert 101 == run.wait()
    assert {1} == {record["managerPid"] for record in run.logged_events()}


@within
def test_sigterm_to_pid_1_stops_the_program(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    with start_run(longwatch_bin, tmp_path, ["sleep", "1000"], within=namespace) as run:
        run.next_event("program_started")
        os.kill(init_of(run).pid, signal.SIGTERM)
        assert 143 == run.wait()
    assert ["signal 15"] == [end["cause"] for end in run.logged_events("shutdown_complete")]


@within
def test_a_killed_program_comes_back(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    script = "echo >> starts; [ $(wc -l < starts) -eq 1 ] && kill -9 $$; exit 5"
    options = (*NO_BACKOFF_OPTIONS, "--breaker-restarts", "1")
    with start_run(
        longwatch_bin, tmp_path, ["sh", "-c", script], options=options, within=namespace
    ) as run:
        assert 100 == run.wait()
    assert ["signal 9", "exit 5"] == [end["cause"] for end in run.logged_events("unexpected_exit")]


@within
def test_kill_9_of_the_guardian_ends_all_with_75(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    with start_run(longwatch_bin, tmp_path, ["sleep", "1000"], within=namespace) as run:
        run.next_event("program_started")
        [guardian] = init_of(run).children()
        os.kill(guardian.pid, signal.SIGKILL)
        assert 75 == run.wait()


def strangers_below(init: psutil.Process) -> list[psutil.Process]:
    return [child for child in init.children() if "stranger" in command_line(child)]


def test_a_stranger_that_only_pid_1_can_reap_is_reaped(longwatch_bin: Path, tmp_path: Path) -> None:
    """What enters the namespace beside us (as `docker exec` does) and is orphaned falls to PID
    1, not to the guardian.
    """
    if shutil.which("nsenter") is None:
        pytest.skip("nsenter is not here (Debian package util-linux)")
    with start_run(
        longwatch_bin, tmp_path, ["sleep", "1000"], within=NAMESPACES["own /proc"]
    ) as run:
        run.next_event("program_started")
        init = init_of(run)
        ours, theirs = os.pipe()
        script = 'exec 3<&0; sh -c "read _ <&3" stranger &'
        subprocess.run(
            ["nsenter", "--target", str(init.pid), "--pid", "sh", "-c", script],
            check=True,
            stdin=ours,
        )
        os.close(ours)
        assert eventually(lambda: len(strangers_below(init)) == 1), (
            "it shows its name once it has been executed"
        )
        [stranger] = strangers_below(init)
        os.close(theirs)
        assert eventually(lambda: stranger not in init.children())
        os.kill(init.pid, signal.SIGTERM)
        assert 143 == run.wait()
