"""`longwatch up` as PID 1 of a container: programs kept up, orphans reaped, signals heard,
nothing left.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

import parts
from awaiting import eventually
from upheld import AT_ONCE, SLEEPER, Upheld, py, sh, upheld, write_config

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
    parts.require("unshare")


def init_of(run: Upheld) -> psutil.Process:
    """The `longwatch` inside, as seen from outside."""
    [init] = psutil.Process(run.pid).children()
    return init


def zombies(init: psutil.Process) -> list[psutil.Process]:
    return [
        process
        for process in init.children(recursive=True)
        if process.status() == psutil.STATUS_ZOMBIE
    ]


@within
def test_programs_are_kept_up_and_orphans_reaped_and_nothing_is_left(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    programs = {
        "a": {**SLEEPER, **AT_ONCE},
        "orphans": py(LEAVES_ORPHANS),
        "crash": sh("exit 1", **AT_ONCE, breaker={"restarts": 3}),
    }
    with upheld(longwatch_bin, tmp_path, programs, within=namespace) as run:
        run.says("orphans | left")
        run.heard("circuit_breaker_tripped", program="crash")
        init = init_of(run)
        [sleeper] = [
            process for process in init.children(recursive=True) if process.name() == "sleep"
        ]
        sleeper.kill()
        run.heard("program_started", program="a", times=2)
        assert eventually(lambda: zombies(init) == [])
        assert {"sleep", "python"} <= {
            process.name().rstrip("3.1") for process in init.children(recursive=True)
        }
        write_config(tmp_path, {"a": {**SLEEPER, **AT_ONCE}})
        os.kill(init.pid, signal.SIGHUP)
        assert ["orphans", "crash"] == run.heard("plan_reloaded")["removed"]
        os.kill(init.pid, signal.SIGTERM)
        assert 0 == run.end()
    assert {1} == {record["managerPid"] for record in run.logged()}


@within
def test_kill_9_of_the_guardian_ends_all_with_75(
    longwatch_bin: Path, tmp_path: Path, namespace: tuple[str, ...]
) -> None:
    with upheld(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}, within=namespace) as run:
        run.heard("program_started", program="a")
        run.heard("program_started", program="b")
        [guardian] = init_of(run).children()
        os.kill(guardian.pid, signal.SIGKILL)
        assert 75 == run.end()
