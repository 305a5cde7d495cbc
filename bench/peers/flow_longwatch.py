"""A graph of an input and three nodes that do nothing, in one worker. `flow_longwatch.py N`
prints executions a second, as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from client import warm_up
from longwatch.flow import Flow, Graph

IN_FLIGHT = 50
TIMEOUT = 120.0
IDLE_SECONDS = 5.0

chain = Graph("chain", version="1")
chain.input("number")
began: dict[str, float] = {}


@chain.compute(after="number")
def a(number: int) -> int:
    began["a"] = time.perf_counter()
    return number + 1


@chain.compute(after="a")
def b(a: int) -> int:
    return a + 1


@chain.compute(after="b")
def c(b: int) -> int:
    return b + 1


def one(flow: Flow, number: int) -> None:
    assert flow.start("chain", number=number).get("c", timeout=TIMEOUT) == number + 3


def sequential(flow: Flow, count: int) -> None:
    for number in range(count):
        one(flow, number)


def in_flight(flow: Flow, count: int) -> None:
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(lambda number: one(flow, number), range(count)))


def rate(run: Callable[[Flow, int], None], flow: Flow, count: int) -> float:
    started = time.perf_counter()
    run(flow, count)
    return count / (time.perf_counter() - started)


def latency(flow: Flow, count: int) -> float:
    """Milliseconds from `set` to the first line of the first node, the median."""
    execution = flow.start("chain", number=-1)
    execution.get("c", timeout=TIMEOUT)
    return statistics.median(_one_latency(flow, number) for number in range(count)) * 1e3


def _one_latency(flow: Flow, number: int) -> float:
    execution = flow.start("chain")
    started = time.perf_counter()
    execution.set(number=number)
    execution.get("c", timeout=TIMEOUT)
    return began["a"] - started


def idle() -> float:
    """Percent of a core that the process takes with nothing to do."""
    before, started = _cpu(), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    return (_cpu() - before) / (time.perf_counter() - started) * 100


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(count: int, parts: list[str]) -> None:
    with (
        Flow(os.environ["BENCH_URL"], [chain], auto_migrate=True) as flow,
        flow.worker(concurrency=8),
    ):
        warm_up(lambda: one(flow, 0))
        found: dict[str, float] = {}
        if "sequential" in parts:
            found["sequential"] = rate(sequential, flow, count)
        if "in_flight" in parts:
            found["in_flight"] = rate(in_flight, flow, count * 3)
        if "closer" in parts:
            found |= {"latency": latency(flow, 200), "idle": idle()}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or ["sequential", "in_flight"])
