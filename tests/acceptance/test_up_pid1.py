"""`longwatch up` as PID 1 of a container: programs kept up, orphans reaped, signals heard,
nothing left.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

import requires
from polling import eventually
from process_facts import is_zombie, process_name
from up_process import NO_BACKOFF, SLEEPER, UpProcess, py, sh, start_up, write_config

NAMESPACES = {
    "own /proc": ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
    "foreign /proc": ("unshare", "--pid", "--fork", "--kill-child"),
}
within = pytest.mark.parametrize("namespace", NAMESPACES.values(), ids=list(NAMESPACES))

LEAVES_ORPHANS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os._exit(0)
        os._exit(0)
    os.wait()
print("left")
time.sleep(1000)
"""
"""Double-forks processes that exit after their parents: somebody else has to reap them."""


@pytest.fixture(autouse=True)
def _namespaces_work() -> None:
    requires.require_tool("unshare")


def init_of(run: UpProcess) -> psutil.Process:
    """The `longwatch` inside, as seen from outside."""
    [init] = psutil.Process(run.pid).children()
    return init


def zombies(init: psutil.Process) -> list[psutil.Process]:
    return [process for process in init.children(recursive=True) if is_zombie(process)]


@within
def test_programs_are_kept_up_and_orphans_reaped_and_nothing_is_left(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    programs = {
        "a": {**SLEEPER, **NO_BACKOFF},
        "orphans": py(LEAVES_ORPHANS),
        "crash": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 3}),
    }
    with start_up(longwatch_bin, tmp_path, programs, within=namespace) as run:
        run.wait_for_output("orphans | left")
        run.wait_for_event("circuit_breaker_tripped", program="crash")
        init = init_of(run)
        [sleeper] = [
            process for process in init.children(recursive=True) if process_name(process) == "sleep"
        ]
        sleeper.kill()
        run.wait_for_event("program_started", program="a", times=2)
        assert eventually(lambda: zombies(init) == [])
        assert {"sleep", "python"} <= {
            process_name(process).rstrip("3.1") for process in init.children(recursive=True)
        }
        write_config(tmp_path, {"a": {**SLEEPER, **NO_BACKOFF}})
        os.kill(init.pid, signal.SIGHUP)
        assert ["orphans", "crash"] == run.wait_for_event("config_reloaded")["removed"]
        os.kill(init.pid, signal.SIGTERM)
        assert 0 == run.wait()
    assert {1} == {record["managerPid"] for record in run.logged_events()}


@within
def test_kill_9_of_the_guardian_ends_all_with_75(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}, within=namespace) as run:
        run.wait_for_event("program_started", program="a")
        run.wait_for_event("program_started", program="b")
        [guardian] = init_of(run).children()
        os.kill(guardian.pid, signal.SIGKILL)
        assert 75 == run.wait()
