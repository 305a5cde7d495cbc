"""Explaining an execution of a graph with 100 nodes, from its store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from longwatch.flow import Flow, Graph, compute, input  # noqa: A004 - the public name

NODES = 100
ROUNDS = 20


def chain_and_dense(url: str) -> tuple[float, float]:
    """Milliseconds for explaining an execution that waits for its input, as a tree: of a graph
    whose nodes come after one another, and of one whose nodes come after all nodes before them.
    """
    chain = _graph("chain", (number - 1 for number in range(NODES)))
    dense = _graph("dense", (0 for _ in range(NODES)))
    with Flow(url, [chain, dense], auto_migrate=True) as flow:
        return _explained(flow, "chain"), _explained(flow, "dense")


def _graph(name: str, first_upstream: Iterable[int]) -> Graph:
    """A graph with a node for each of these numbers: it comes after all nodes from that one on."""
    nodes = [
        compute(
            f"n{number}", [f"n{each}" for each in range(first, number)], lambda **values: values
        )
        if number
        else input("n0")
        for number, first in enumerate(first_upstream)
    ]
    return Graph(name, version="1", nodes=nodes)


def _explained(flow: Flow, graph: str) -> float:
    execution = flow.start(graph)
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        str(execution.explain())
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3
