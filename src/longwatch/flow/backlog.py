"""The backlog of all graphs of a store, by graph: one query, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from longwatch.engine.engine_loop import Gauge
from longwatch.flow.records import Records
from longwatch.store.database import Database


class GraphBacklog(NamedTuple):
    """The open attempts of all versions of a graph. `oldest_ready` is the age in seconds of the
    oldest one that could be claimed now; 0 if there is none.
    """

    graph: str
    ready: int
    delayed: int
    running: int
    oldest_ready: float


def read_backlog(database: Database, records: Records) -> list[GraphBacklog]:
    """Count the open attempts of every graph that the store knows. Ended ones are not read."""
    rows = database.read(lambda tx: tx.rows(records.sql["backlog"]))
    return [
        GraphBacklog(
            graph,
            int(ready),
            int(delayed),
            int(running),
            max(float(oldest_free or 0.0), float(oldest_due or 0.0), 0.0),
        )
        for graph, ready, delayed, running, oldest_free, oldest_due in rows
    ]


def backlog_gauges(backlog: GraphBacklog) -> list[Gauge]:
    """The gauges of one graph."""
    shown = {
        "ready": float(backlog.ready),
        "delayed": float(backlog.delayed),
        "running": float(backlog.running),
        "oldest_ready_seconds": backlog.oldest_ready,
    }
    return [(f"longwatch_flow_{name}", (backlog.graph,), value) for name, value in shown.items()]
