"""DBOS: a durable workflow of three steps that do nothing. `flow_dbos.py N` prints how many of N
ran in a second, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from dbos import DBOS

from client import warm_up

IN_FLIGHT = 50


@DBOS.step()
def step(number: int) -> int:
    return number + 1


@DBOS.workflow()
def three_steps(number: int) -> int:
    last: int = step(step(step(number)))
    return last


def sequential(count: int) -> None:
    for _ in range(count):
        three_steps(1)


def by_threads(count: int) -> None:
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        list(pool.map(three_steps, range(count)))


def by_handles(count: int) -> None:
    """All of them in its own threads."""
    for handle in [DBOS.start_workflow(three_steps, 1) for _ in range(count)]:
        handle.get_result()


def rate(run: Callable[[int], None], count: int) -> float:
    began = time.perf_counter()
    run(count)
    return count / (time.perf_counter() - began)


def main(count: int) -> None:
    names = {"name": "bench", "application_version": "1", "executor_id": "one"}
    DBOS(config={**names, "system_database_url": os.environ["BENCH_URL"], "log_level": "ERROR"})
    DBOS.launch()
    warm_up(lambda: three_steps(1))
    rates = {
        "sequential": rate(sequential, count),
        "in_flight": max(rate(by_threads, count), rate(by_handles, count)),
    }
    print(json.dumps(rates), flush=True)
    os._exit(0)  # its threads would go on for a while


if __name__ == "__main__":
    main(int(sys.argv[1]))
