"""Maps with real workers: in threads, in processes that are killed, and with isolated elements."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import isolated_nodes
from flow_process import FlowProcesses, flow_processes, pause, unsuccessful_attempts
from flow_rig import TIMEOUT, url_fixture  # noqa: F401 - a fixture
from longwatch.flow import Execution, Flow, Graph, compute, input, map  # noqa: A004 - the contract's words
from polling import eventually

ELEMENTS = 300
KILLS = 4
COMPLETION_TIMEOUT = 120.0


@pytest.fixture(autouse=True)
def runtime_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the killed leave lying around: sockets and pages, in a directory of their own."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


def kill_while_elements_are_open(rig: FlowProcesses) -> None:
    """Kill workers in the middle of the map, each after it has begun an element. The elements are
    slow until then, so that some are left for each worker that follows.
    """
    dice = random.Random(7)
    for _ in range(KILLS):
        victim = dice.choice(rig.workers)
        assert eventually(lambda victim=victim: victim.records("began"), timeout=TIMEOUT)  # type: ignore[misc]
        pause(dice.uniform(0.0, 0.1))
        rig.kill(victim)
        rig.start_worker()


def test_kill_9_in_the_middle_of_a_map_loses_no_element_and_accepts_none_twice(
    url: str, tmp_path: Path
) -> None:
    """Every element has one success, whose fencing token its result bears, and only elements that
    had begun are spent.
    """
    with flow_processes(url, tmp_path, "wide", max_in_flight=50) as rig:
        slow = tmp_path / "slow"
        slow.touch()
        for _ in range(2):
            rig.start_worker()
        execution = rig.flow.start("wide", numbers=list(range(ELEMENTS)))
        kill_while_elements_are_open(rig)
        slow.unlink()
        assert eventually(lambda: rig.open_attempts() == 0, timeout=COMPLETION_TIMEOUT)
        assert_complete(rig, execution)


def assert_complete(rig: FlowProcesses, execution: Execution) -> None:
    attempts = [each for each in execution.computations() if each.element is not None]
    made = {each.element: each for each in attempts if each.state == "success"}
    assert ELEMENTS == sum(each.state == "success" for each in attempts)
    assert [
        [number, made[number].attempt, made[number].term] for number in range(ELEMENTS)
    ] == execution.get("mapped", wait=False)
    began = {(each.attempt, each.token) for each in rig.records("began")}
    assert {(each.attempt, each.term) for each in made.values()} <= began
    assert dict.fromkeys(rig.killed_attempts, "crash") == unsuccessful_attempts(attempts)


class TestAWorkerOfTheSameProcess:
    def test_computes_maps_one_after_the_other(self, url: str) -> None:
        graph = Graph(
            "wide",
            version="1",
            nodes=[
                input("numbers"),
                map("squares", "numbers", lambda number: number * number, max_in_flight=7),
                map("sums", "squares", lambda square: square + 1),
                compute("total", ["sums"], lambda sums: sum(sums)),  # noqa: PLW0108 - a parameter names a node
            ],
        )
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=4):
            for count in (0, 1, 100):
                execution = flow.start("wide", numbers=list(range(count)))
                assert sum(n * n + 1 for n in range(count)) == execution.get(
                    "total", timeout=TIMEOUT
                )

    def test_stops_elements_that_were_removed(self, url: str) -> None:
        cancelled = threading.Event()

        def wait(number: int, context) -> int:  # type: ignore[no-untyped-def] # noqa: ANN001 - of the contract
            if number == 0:
                assert eventually(lambda: context.cancelled, timeout=TIMEOUT)
                cancelled.set()
            return number

        graph = Graph("wide", version="1", nodes=[input("numbers"), map("same", "numbers", wait)])
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution = flow.start("wide", numbers=[0, 1])
            assert eventually(
                lambda: "computing" in {each.state for each in execution.computations()},
                timeout=TIMEOUT,
            )
            execution.set(numbers=[1, 2])
            assert [1, 2] == execution.get("same", timeout=TIMEOUT)
            assert cancelled.wait(TIMEOUT)

    def test_runs_isolated_elements_in_processes(self, url: str) -> None:
        graph = Graph(
            "apart",
            version="1",
            nodes=[
                input("numbers"),
                input("y"),
                map("sums", "numbers", isolated_nodes.total, ["y"], isolation="process"),
            ],
        )
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution = flow.start("apart", numbers=[1, 2], y=10)
            assert [{"sum": 11}, {"sum": 12}] == execution.get("sums", timeout=TIMEOUT)
