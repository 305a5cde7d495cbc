"""The control command `workers`: what each kind of supervisor answers, and the answers as one."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from event_server import serving_events
from longwatch.app import control
from longwatch.supervisor.plan import ProgramPlan
from longwatch.supervisor.supervisor import Supervisor
from longwatch.supervisor.supervisor_lock import NotRunningError
from polling import eventually
from runner_process import agent, start_runner, write_runner
from up_process import FROM_SOURCE, SLEEPER, start_up
from worker_process import start_worker, store_url, write_app

FROM_TREE: dict[str, Any] = {"within": FROM_SOURCE["within"]}


def test_up_names_its_workers_their_loops_and_every_store_once(tmp_path: Path) -> None:
    write_app(tmp_path)
    with start_up(
        cwd=tmp_path,
        programs={"web": SLEEPER},
        env={"STORE": store_url(tmp_path)},
        worker={"jobs": {"target": "app:group", "processes": 2}},
        runner={
            "store_url": "sqlite:///runs.db",
            "agent": {"command": ["true"]},
            "source": {"prod": {"url": "http://127.0.0.1:9/"}},
        },
        **FROM_SOURCE,
    ) as run:
        run.wait_for_status("jobs-1", ready=True)
        run.wait_for_status("jobs-2", ready=True)
        state = run.state_dir
        assert eventually(lambda: [each["ready"] for each in workers(state)] == [True, True])
        found = control.workers(state)
        pids = [run.status(f"jobs-{number}")["pid"] for number in (1, 2)]
        run.stop_cleanly()
    url = store_url(tmp_path)
    assert [("jobs-1", pids[0]), ("jobs-2", pids[1])] == [
        (each["program"], each["pid"]) for each in found["workers"]
    ]
    first = found["workers"][0]
    assert [{"url": url, "name": "jobs", "kind": "mailbox"}] == first["stores"]
    assert ("ok", [], 60.0, 1, True) == tuple(
        first[key] for key in ("reason", "failing", "threshold", "slots", "joined")
    )
    assert str(state.absolute() / "crashes") == str(Path(first["crash_file"]).parent)
    [loop] = first["loops"]
    assert ("jobs", 0, True) == (loop["name"], loop["holding"], 0 <= loop["age"] < 60)
    assert loop["max_age"] >= loop["age"]
    assert [
        {"url": url, "kind": "mailbox"},
        {"url": f"sqlite:///{tmp_path / 'runs.db'}", "kind": "runner"},
    ] == found["stores"]


QUICK_FLOW = """
from longwatch.flow import Flow, Graph
from longwatch.runtime import LoopGroup

graph = Graph("quick", version="1")
graph.input("n")


@graph.compute(after=["n"], heartbeat_interval_seconds=1, heartbeat_timeout_seconds=5)
def doubled(n):
    return 2 * n


group = LoopGroup([Flow("sqlite:///quick.db", graphs=[graph]).worker()])
"""
"""A flow whose leases are too short for a parent: its worker renews them itself."""


def test_the_store_of_a_worker_that_renews_its_leases_itself_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "quick.py").write_text(QUICK_FLOW)
    with start_worker(
        FROM_SOURCE["longwatch"], tmp_path, target="quick:group", **FROM_TREE
    ) as worker:
        worker.joined_pids("worker")
        found = control.workers(tmp_path / ".longwatch")
        worker.signal(signal.SIGTERM)
        assert 0 == worker.wait()
    url = f"sqlite:///{tmp_path / 'quick.db'}"
    assert [{"url": url, "kind": "flow"}] == found["stores"]
    [stores] = [each["stores"] for each in found["workers"]]
    assert [{"url": url, "name": "quick", "kind": "flow"}] == stores


def workers(state: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = control.workers(state)["workers"]
    return found


def test_the_answers_of_all_supervisors_of_a_directory_are_one_and_one_that_refuses_is_empty(
    tmp_path: Path,
) -> None:
    """`longwatch worker` and `longwatch runner` share the directory with a supervisor of another
    program, which does not know the command.
    """
    state = tmp_path / ".longwatch"
    older = Supervisor(
        [ProgramPlan.of("sleeper", ["sleep", "1000"])], state_dir=state, shares_state_dir=True
    )
    write_app(tmp_path)
    with serving_events() as stream, older:
        write_runner(tmp_path, {"prod": stream.url}, agent("true"))
        with (
            start_worker(FROM_SOURCE["longwatch"], tmp_path, **FROM_TREE) as worker,
            start_runner(tmp_path) as runner,
        ):
            worker.joined_pids("worker")
            runner.wait_for_event("runner_started")
            assert eventually(lambda: len(control.workers(state)["stores"]) == 2)
            assert eventually(lambda: [bool(each["loops"]) for each in workers(state)] == [True])
            found = control.workers(state)
            for run in (worker, runner):
                run.signal(signal.SIGTERM)
                assert 0 == run.wait()
    assert [True, ["jobs"]] == [
        found["ok"],
        [loop["name"] for each in found["workers"] for loop in each["loops"]],
    ]
    assert {
        (store_url(tmp_path), "mailbox"),
        (f"sqlite:///{tmp_path / 'longwatch.db'}", "runner"),
    } == {(each["url"], each["kind"]) for each in found["stores"]}


def test_without_a_supervisor_there_is_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError):
        control.workers(tmp_path)
