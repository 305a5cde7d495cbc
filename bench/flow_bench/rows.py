"""Renewing many running attempts, and sweeping beside many that have ended."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from longwatch.flow import Flow, Graph
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.host.incarnation import Incarnation
from longwatch.store.database import Transaction

RUNNING = 10_000
FEW, MANY = 1_000, 1_000_000
_ENDED = {
    "sqlite": """
        WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
        INSERT INTO longwatch_computations
            (queue, lease_state, execution, node, state, attempt, computed_with, abandon_after,
             max_attempts, created_at)
        SELECT 1, 3, -n, 'c', 'success', 1, '{}', 1, 3, 0 FROM number""",
    "postgresql": """
        INSERT INTO longwatch_computations
            (queue, lease_state, execution, node, state, attempt, computed_with, abandon_after,
             max_attempts, created_at)
        SELECT 1, 3, -n, 'c', 'success', 1, '{}', 1, 3, 0
        FROM generate_series(1, :count::int8) AS n""",
}


def renewal(url: str) -> float:
    """Milliseconds for renewing 10,000 running attempts, in one statement; the median of five."""
    graph = Graph("wide", version="1")
    graph.input("x")
    graph.compute(after="x", name="y")(lambda x: x)
    with Flow(url, [graph], auto_migrate=True) as flow:
        flow.start("wide", x=0)
        flow.database.write(lambda tx: _copied(tx, RUNNING - 1))
        source = FlowClaimSource(flow.database, flow.registry)
        owner = source.register_owner(Incarnation.current())
        held = 0
        while held < RUNNING:
            held += len(source.exchange((), owner=owner, limit=500, lease_seconds=0.0).claimed)
        return _median(lambda: source.renew(owner=owner, lease_seconds=0.0)) * 1e3


def sweeps(url: str) -> tuple[float, float]:
    """Milliseconds of a sweep beside 1,000 attempts that have ended, and beside 1,000,000."""
    with Flow(url, [], auto_migrate=True) as flow:
        found = []
        for count in (FEW, MANY):
            ended = {"count": count}
            flow.database.write(
                lambda tx, ended=ended: tx.execute(_ENDED[flow.database.dialect], ended),  # type: ignore[misc]
                timeout=600.0,
            )
            if flow.database.dialect == "postgresql":
                flow.database.write(
                    lambda tx: tx.execute("ANALYZE longwatch_computations"), timeout=600.0
                )
            found.append(_median(flow.sweep) * 1e3)
        return found[0], found[1]


def _copied(tx: Transaction, count: int) -> None:
    """The one attempt that waits, many times."""
    columns = (
        "queue, execution, node, attempt, computed_with, heartbeat_timeout, abandon_after, "
        "max_attempts, created_at"
    )
    numbers = (
        "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < "
        ":count)"
    )
    tx.execute(
        f"{numbers} INSERT INTO longwatch_computations ({columns}) SELECT {columns} FROM "  # noqa: S608 - constants
        f"longwatch_computations, number",
        {"count": count},
    )


def _median(call: Callable[[], object]) -> float:
    return statistics.median(_seconds(call) for _ in range(5))


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
