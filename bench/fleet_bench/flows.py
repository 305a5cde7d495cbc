"""Flow workers of a fleet, over a graph of three steps."""

from __future__ import annotations

from collections.abc import Callable

from fleet_bench.fleet import Fleet, StartMember, run_in_fork, run_in_thread
from longwatch.flow import Flow, Graph

TIMEOUT = 20.0


def three_steps() -> Graph:
    graph = Graph("three", version="1")
    graph.input("number")
    graph.compute(after="number", name="a")(lambda number: number + 1)
    graph.compute(after="a", name="b")(lambda a: a + 1)
    graph.compute(after="b", name="c")(lambda b: b + 1)
    return graph


def prepare(url: str) -> None:
    def make() -> None:
        with Flow(url, [three_steps()], auto_migrate=True) as flow:
            flow.start("three", number=0)

    run_in_fork(make)


def flow_member(url: str) -> StartMember:
    def start(fleet: Fleet, number: int) -> Callable[[], bool]:
        del fleet
        flow = Flow(url, [three_steps()])
        return run_in_thread(flow.worker(concurrency=1, name=f"f{number}"))

    return start


def run_executions(url: str, count: int) -> None:
    """One after the other, from a process that computes nothing."""

    def run() -> None:
        with Flow(url, [three_steps()]) as flow:
            for number in range(count):
                assert flow.start("three", number=number).get("c", timeout=TIMEOUT) == number + 3

    run_in_fork(run)
