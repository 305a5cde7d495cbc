"""A graph that survives the death of its workers: a list of shops, one figure for each, a total.

A worker that is killed computes again only the figures that it had not stored.
"""

from __future__ import annotations

import time

from longwatch.flow import Flow, FlowContext, Graph

SECONDS_A_SHOP = 1.5

graph = Graph("report", version="1")
graph.input("shops")


@graph.map(over="shops", max_in_flight=4)
def revenue(shop: str, context: FlowContext) -> int:
    context.logger.info("asking %s", shop)
    time.sleep(SECONDS_A_SHOP)
    return 100 * len(shop)


@graph.compute(after=["revenue"])
def total(revenue: list[int]) -> int:
    return sum(revenue)


flow = Flow("sqlite:///demo.db", graphs=[graph])
