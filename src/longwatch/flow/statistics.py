"""Statistics of a graph: how far its executions get, and how long its nodes take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from longwatch.core.suggest import did_you_mean
from longwatch.errors import UnknownGraphError
from longwatch.flow.execution_state import ExecutionStatus
from longwatch.flow.graph import Graph
from longwatch.flow.records import Records
from longwatch.store.database import Transaction

MAX_SAMPLES = 1000
"""The newest successful attempts of a node whose durations are read."""
PAGE_ATTEMPTS = 100_000
MAX_PAGES = 10
"""Durations are read from the newest attempts of the store, in pages, so that the cost is bounded:
at most `MAX_PAGES` pages of `PAGE_ATTEMPTS`, and none after every node has its samples.
"""
STATES = ("running", "waiting", "idle", "failed", "done", "cancelled", "archived")
"""The states of executions, as `ExecutionSummary.state` names them."""


@dataclass(frozen=True, slots=True)
class DurationStatistics:
    """Seconds that the newest successful attempts of a node took, at most 1,000 of them."""

    count: int
    mean: float
    p50: float
    p95: float
    max: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Self | None:
        """The statistics of these durations; None if there are none."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        return cls(
            len(ordered),
            math.fsum(ordered) / len(ordered),
            _percentile(ordered, 50),
            _percentile(ordered, 95),
            ordered[-1],
        )


@dataclass(frozen=True, slots=True)
class NodeStatistics:
    """The number of executions in which a node is set, was given up, runs, and waits for a worker
    or for its time; and the durations of its attempts, None if none has succeeded.
    """

    node: str
    set: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    durations: DurationStatistics | None = None


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """The executions of all versions of a graph, by state, and its nodes."""

    graph: str
    executions: Mapping[str, int]
    """The number of executions in each state; all of `STATES`."""
    nodes: tuple[NodeStatistics, ...]

    @property
    def total(self) -> int:
        """The number of executions."""
        return sum(self.executions.values())


def read_statistics(
    tx: Transaction, records: Records, name: str, graphs: Iterable[Graph]
) -> GraphStatistics:
    """Read the statistics of a graph. `graphs` are the registered ones: their nodes are listed in
    topological order, also those without values. Raises UnknownGraphError for a graph that is
    neither registered nor stored.

    Counting reads every execution of the graph. Durations are read from a bounded number of rows.
    """
    versions = [graph for graph in graphs if graph.name == name]
    if not versions:
        require_stored(tx, records, name)
    of_graph = {"graph": name}
    values = {row[0]: _ValueCounts(*row) for row in tx.rows(records.sql["count_values"], of_graph)}
    attempts = {
        node: (int(running), int(waiting))
        for node, running, waiting in tx.rows(records.sql["count_open_attempts"], of_graph)
    }
    durations = _read_durations(
        tx, records, name, {each.node for each in values.values() if each.is_computed}
    )
    names = _ordered_names(versions, {*values, *attempts, *durations}, values)
    nodes = (_node_statistics(node, values, attempts, durations) for node in names)
    return GraphStatistics(name, count_executions(tx, records, name), tuple(nodes))


def stored_graphs(tx: Transaction, records: Records) -> list[str]:
    """The names of all graphs that the store knows, sorted."""
    return [name for (name,) in tx.rows(records.sql["stored_graphs"])]


class _ValueCounts(NamedTuple):
    """The number of executions in which a node is set, and in which it was given up."""

    node: str
    set: int
    failed: int
    is_computed: int
    """1 if an attempt at the node has ended in one of them."""


def require_stored(tx: Transaction, records: Records, name: str) -> None:
    """Raise UnknownGraphError, which suggests a name, if the store does not know this graph."""
    known = stored_graphs(tx, records)
    if name not in known:
        hint = did_you_mean(str(name), known, default=f"it has {', '.join(known) or 'none'}")
        raise UnknownGraphError(f"there is no graph {name!r} in the store; {hint}")


def count_executions(tx: Transaction, records: Records, name: str) -> dict[str, int]:
    """How many executions of a graph are in each of `STATES`. Reads every one of them."""
    counts = dict.fromkeys(STATES, 0)
    for status, is_running, count in tx.rows(records.sql["count_executions"], {"graph": name}):
        counts[_state_word(ExecutionStatus(status), is_running=bool(is_running))] += count
    return counts


def _state_word(status: ExecutionStatus, *, is_running: bool) -> str:
    if status is ExecutionStatus.ACTIVE:
        return "running" if is_running else "waiting"
    return status.name.lower()


def _read_durations(
    tx: Transaction, records: Records, name: str, computed: set[str]
) -> dict[str, list[float]]:
    """The durations of the newest successful attempts, by node; `computed` are the nodes that have
    some.
    """
    found: dict[str, list[float]] = defaultdict(list)
    [(newest,)] = tx.rows(records.sql["newest_attempt"])
    for page in range(MAX_PAGES):
        upto = (newest or 0) - page * PAGE_ATTEMPTS
        if upto <= 0 or all(len(found[node]) >= MAX_SAMPLES for node in computed):
            break
        rows = tx.rows(
            records.sql["attempt_durations"],
            {"graph": name, "after": upto - PAGE_ATTEMPTS, "upto": upto, "limit": MAX_SAMPLES},
        )
        for node, seconds in rows:
            found[node].append(max(seconds, 0.0))
    return {node: seconds[:MAX_SAMPLES] for node, seconds in found.items()}


def _ordered_names(
    versions: Sequence[Graph], stored: Iterable[str], values: Mapping[str, _ValueCounts]
) -> list[str]:
    """The nodes of the registered versions, the last one first, in topological order; then all
    others, those that most executions have set first.
    """
    defined = [
        node.name
        for graph in reversed(versions)
        for node in (
            *(node for node in graph.nodes.values() if node.is_input),
            *graph.computed_nodes,
        )
    ]
    others = sorted(stored, key=lambda node: (-values[node].set if node in values else 0, node))
    return list(dict.fromkeys([*defined, *others]))


def _node_statistics(
    node: str,
    values: Mapping[str, _ValueCounts],
    attempts: Mapping[str, tuple[int, int]],
    durations: Mapping[str, Sequence[float]],
) -> NodeStatistics:
    counts = values.get(node, _ValueCounts(node, 0, 0, 0))
    running, waiting = attempts.get(node, (0, 0))
    return NodeStatistics(
        node,
        int(counts.set),
        int(counts.failed),
        running,
        waiting,
        DurationStatistics.of(durations.get(node, ())),
    )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest of these values that at least `percent` of them do not exceed."""
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
