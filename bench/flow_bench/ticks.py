"""Firing many ticks that became due while no worker ran."""

from __future__ import annotations

import time
from typing import NamedTuple

from longwatch.flow import Flow, Graph

TICKS = 10_000
_POLL = 0.1
_MAKE_DUE = "UPDATE longwatch_computations SET ready_at = 1, due_at = 1 WHERE lease_state = 1"
_ENDED = (
    "SELECT count(*) FROM longwatch_computations WHERE lease_state = 3 AND state = 'success' "
    "AND node = :node"
)


class FiringTimes(NamedTuple):
    """Seconds until all ticks had fired, and until the node after each was computed."""

    fired: float
    computed: float


def firing(url: str) -> FiringTimes:
    """Time one worker with 10,000 executions, each with a recurring tick that is due, and a node
    after it.
    """
    graph = Graph("hourly", version="1")
    graph.tick_recurring("tick", every=3600)
    graph.compute(after="tick", name="after")(lambda tick: tick)
    with Flow(url, [graph], auto_migrate=True) as flow:
        for _ in range(TICKS):
            flow.start("hourly")
        flow.database.write(lambda tx: tx.execute(_MAKE_DUE), timeout=600.0)
        began = time.perf_counter()
        with flow.worker(concurrency=8):
            return FiringTimes(*(_wait_for(flow, node) - began for node in ("tick", "after")))


def _wait_for(flow: Flow, node: str) -> float:
    """Wait until this node has as many successful attempts as there are ticks; returns when."""
    while flow.database.read(lambda tx: tx.rows(_ENDED, {"node": node}))[0][0] < TICKS:
        time.sleep(_POLL)
    return time.perf_counter()
