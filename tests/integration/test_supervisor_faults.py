"""kill -9 of the supervisor and of its guardian, at every transition of a program; and programs
that fork faster than they die.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from guardian_fixture import LineSink, require_cgroups
from longwatch.core.events.base import Events
from longwatch.core.events.programs import ProgramEnded
from longwatch.errors import TryAgainError
from longwatch.host.process import StopPolicy
from longwatch.supervisor import ProgramPlan, Streams, Supervisor
from longwatch.testing import RecordingObserver
from polling import eventually
from run_process import TIMEOUT, kill_all, wait_for_exit
from up_process import (
    FROM_SOURCE,
    IGNORES_SIGTERM,
    NO_BACKOFF,
    SLEEPER,
    Facts,
    UpProcess,
    pids_by_mark,
    py,
    sh,
    start_up,
    write_config,
)

TREE = "setsid sh -c 'setsid sleep 1000 & exec sleep 1000' & sleep 1000 & echo planted; wait"
"""Orphans in sessions of their own, and a child."""
FORKS = """
import os, signal, sys, time
end = time.monotonic() + 20
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        while time.monotonic() < end:
            if sys.argv[1] == "setsid":
                os.setsid()
            if os.fork():
                os._exit(0)
        open("by-itself", "w")
        os._exit(0)
print("forking", flush=True)
while True:
    time.sleep(0.1)
"""
"""Twenty processes, each of which is another one all the time: they fork and exit, for twenty
seconds and never more at a time.
"""


@pytest.fixture
def token() -> Iterator[str]:
    """A word for the environment of all that a test starts; whoever bears it after the test is
    killed.
    """
    word = f"token-{secrets.token_hex(8)}"
    yield word
    kill_all([pid for pids in pids_by_mark(word).values() for pid in pids])


def marked_programs(programs: Mapping[str, Facts], token: str) -> dict[str, Facts]:
    return {
        name: {**settings, "env": {"MARK": f"{token}-{name}"}}
        for name, settings in programs.items()
    }


Trigger = Callable[[UpProcess, str], object]
"""Brings a moment about, with the token, and returns when it has come."""


class Moment(NamedTuple):
    """A point in the life of programs at which somebody is killed."""

    programs: Mapping[str, Facts]
    trigger: Trigger
    after: Mapping[str, tuple[str, ...]] = {}
    """The states in which a new supervisor may have programs; those that are not named are up."""


def ask_soon(run: UpProcess, do: str, *programs: str) -> None:
    """Without waiting for the answer, which will not come."""

    def asked() -> None:
        with suppress(
            Exception
        ):  # the supervisor is killed meanwhile, and whatever comes of that is right
            run.request(do, *programs)

    threading.Thread(target=asked, daemon=True).start()


OTHERS = {"tree": sh(TREE), "other": SLEEPER}
MANY = {f"p{number}": SLEEPER for number in range(12)}
DEAF_ONE = {"deaf": sh(IGNORES_SIGTERM, stop_grace=1000), **OTHERS}
SICK = {"command": ["sh", "-c", "! test -e bad"], "interval": 0.05, "start_grace": 0, "failures": 1}
CRASHING = {
    "crash": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 1, "cooldown": "off"}),
    **OTHERS,
}


def on_event(event: str, **facts: object) -> Trigger:
    """An event, after all that stay up are up."""

    def comes(run: UpProcess, _: str) -> None:
        for name in OTHERS:
            run.wait_for_event("program_started", program=name)
        run.wait_for_event(event, **facts)  # type: ignore[arg-type]

    return comes


def grown(run: UpProcess, _: str) -> None:
    run.wait_for_output("tree  | planted")
    run.wait_for_event("program_started", program="other")


def stopping(act: Callable[[UpProcess, str], object]) -> Trigger:
    """The one that does not hear is being stopped, because of this."""

    def comes(run: UpProcess, token: str) -> None:
        run.wait_for_output("deaf  | ready")
        act(run, token)
        run.wait_for_event("program_stopping", program="deaf")

    return comes


def reload_without_it(run: UpProcess, token: str) -> None:
    write_config(run.cwd, marked_programs(OTHERS, token))
    run.signal(signal.SIGHUP)


MOMENTS = {
    "nothing is started": Moment(MANY, lambda run, _: run.wait_for_event("supervisor_started")),
    "some are starting": Moment(MANY, lambda run, _: run.wait_for_event("program_started")),
    "all are up": Moment(OTHERS, grown),
    "one waits for another": Moment(
        {"never": sh("sleep 1000", ready="notify"), "front": {**SLEEPER, "depends_on": ["never"]}},
        lambda run, _: run.wait_for_status("front", state="pending"),
        {"front": ("pending",)},
    ),
    "one waits for its next start": Moment(
        {"crash": sh("exit 1", backoff={"initial": 1000, "cap": 1000}), **OTHERS},
        on_event("restart_scheduled"),
        {"crash": ("waiting",)},
    ),
    "one starts again": Moment(
        CRASHING, on_event("program_started", program="crash", times=2), {"crash": ("broken",)}
    ),
    "one is broken": Moment(CRASHING, on_event("circuit_breaker_tripped"), {"crash": ("broken",)}),
    "an operator stops one": Moment(
        DEAF_ONE,
        stopping(lambda run, _: ask_soon(run, "stop", "deaf")),
        {"deaf": ("stopped", "up")},
    ),
    "an operator restarts one": Moment(
        DEAF_ONE, stopping(lambda run, _: ask_soon(run, "restart", "deaf"))
    ),
    "one is stopped for its health": Moment(
        {**DEAF_ONE, "deaf": {**DEAF_ONE["deaf"], "health": SICK}},
        stopping(lambda run, _: (run.cwd / "bad").touch()),
    ),
    "one is retired by a reload": Moment(
        DEAF_ONE, stopping(reload_without_it), {"deaf": ("gone",)}
    ),
    "everything is stopped": Moment(DEAF_ONE, stopping(lambda run, _: run.signal(signal.SIGTERM))),
    "one forks all the time": Moment(
        {"forks": py(FORKS, "setsid"), **OTHERS},
        lambda run, _: run.wait_for_output("forks | forking"),
    ),
}


def kill_the_supervisor(run: UpProcess) -> None:
    guardians = children_of(run.pid)
    run.signal(signal.SIGKILL)
    assert -signal.SIGKILL == run.process.wait(TIMEOUT)
    for guardian in guardians:
        assert wait_for_exit(guardian, time.monotonic() + TIMEOUT)


def kill_the_guardian(run: UpProcess) -> None:
    assert eventually(lambda: children_of(run.pid) != [])
    os.kill(children_of(run.pid)[0], signal.SIGKILL)
    assert 75 == run.wait()


def children_of(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children()]


@pytest.mark.parametrize("victim", ["supervisor", "guardian"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_it_leaves_no_process_and_the_next_one_has_things_as_they_are_wanted(
    tmp_path: Path, token: str, moment: str, victim: str
) -> None:
    programs, comes, after = MOMENTS[moment]
    with start_up(cwd=tmp_path, programs=marked_programs(programs, token), **FROM_SOURCE) as run:
        comes(run, token)
        if victim == "supervisor":
            kill_the_supervisor(run)
        else:
            kill_the_guardian(run)
        assert eventually(lambda: pids_by_mark(token) == {}), pids_by_mark(token)
    assert not (tmp_path / "by-itself").exists()
    (tmp_path / "bad").unlink(missing_ok=True)
    with start_up(cwd=tmp_path, **FROM_SOURCE) as run:
        for name in programs:
            wanted = after.get(name, ("up",))
            assert eventually(lambda: state_of(run, name) in wanted), (  # noqa: B023
                f"{name} is {state_of(run, name)}"
            )
        kill_the_supervisor(run)
        assert eventually(lambda: pids_by_mark(token) == {}), pids_by_mark(token)


def state_of(run: UpProcess, name: str) -> str:
    with suppress(TryAgainError):  # it is just starting
        answer = run.request("status", name)
        return str(answer["programs"][0]["state"]) if answer["ok"] else "gone"
    return "starting"


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups", "marks"])
@pytest.mark.parametrize("sessions", ["one session", "setsid"])
def test_a_program_that_forks_faster_than_it_is_killed_is_cleared(
    tmp_path: Path, token: str, sessions: str, *, cgroups: bool
) -> None:
    if cgroups:
        require_cgroups()
    observer, said = RecordingObserver(), LineSink()
    command = [sys.executable, "-I", "-S", "-c", FORKS, sessions]
    plan = ProgramPlan.of(
        "forks", command, cwd=tmp_path, env={"MARK": f"{token}-forks"}, stop=StopPolicy(grace=0.1)
    )
    supervisor = Supervisor(
        [plan],
        streams=lambda _: Streams(None, said, said),
        events=Events(observer),
        cgroups=cgroups,
    )
    with supervisor:
        said.wait_for_text("forking")
        [facts] = supervisor.stop_programs("forks")
        assert [] == [pids for _ in range(5) for pids in pids_by_mark(token).values()]
    [ended] = observer.of(ProgramEnded)
    assert ("stopped", 0) == (facts["state"], ended.survivors)
    assert not (tmp_path / "by-itself").exists()
