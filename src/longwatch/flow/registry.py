"""Registers graphs in a store: each has a queue of attempts, and one more for every node with a cap
of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.suggest import did_you_mean
from longwatch.errors import UnknownGraphError, UsageError
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.graph import Graph
from longwatch.flow.graph_evolution import (
    Definitions,
    load_definitions,
    missing_definitions,
    save_definitions,
)
from longwatch.flow.indexing import NodeIndexes
from longwatch.flow.map_opener import prepare_maps
from longwatch.flow.propagation import propagate
from longwatch.flow.records import Records
from longwatch.store.database import Database, Transaction

SHARED_QUEUE = ""
"""The name of the queue of all nodes without a queue of their own. Its cap is that of the graph."""


_NO_NODES: frozenset[str] = frozenset()
_NEGLIGIBLE_OFFSET = 1.0
"""Seconds by which the clock of the store may differ from that of this machine unnoticed."""


class GraphQueue(NamedTuple):
    """One queue of attempts. Each cap is a group of queues with how many of their attempts may run
    at the same time.
    """

    number: int
    graph_id: GraphId
    caps: tuple[tuple[tuple[int, ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class RegisteredGraph:
    """A graph with its queues. `queue_by_node` has the number of each node's queue."""

    graph: Graph
    graph_id: GraphId
    queues: tuple[GraphQueue, ...]
    queue_by_node: Mapping[str, int]

    @property
    def is_capped(self) -> bool:
        """Whether an ended attempt makes room under a cap."""
        return any(queue.caps for queue in self.queues)


class Registry:
    """The graphs of one Flow with their queues in the store. Thread-safe: registering twice gives
    the same result.
    """

    def __init__(
        self,
        database: Database,
        records: Records,
        graphs: Iterable[Graph] = (),
        *,
        clock: Clock | None = None,
    ) -> None:
        self.graphs: dict[GraphId, Graph] = {}
        self._database = database
        self._records = records
        self.clock = clock or SystemClock()
        if isinstance(graphs, Graph):
            raise UsageError(f"graphs= takes a list of graphs; write graphs=[{graphs.name}]")
        self._cached: tuple[int, dict[GraphId, RegisteredGraph]] | None = None
        self._indexed_nodes: dict[str, frozenset[str]] = {}
        self._stored_indexes: dict[str, frozenset[str]] = {}
        self._clock_offset = 0.0
        """Seconds by which the clock of the store is ahead of that of this machine."""
        for graph in graphs:
            self._add(graph)

    def registered(self) -> dict[GraphId, RegisteredGraph]:
        """The registered graphs. Reads the store once, and again after the store was replaced or
        the process was forked.
        """
        if self._cached is None or self._cached[0] != self._database.generation:
            found = {
                graph_id: register(self._database, self._records, graph)
                for graph_id, graph in self.graphs.items()
            }
            self._database.read(self._read_store)
            self._cached = self._database.generation, found
        return self._cached[1]

    def propagate(self, tx: Transaction, state: ExecutionState) -> None:
        """Open, cancel and clear what follows from a change of an execution, in the transaction
        that has locked it. Leaves an execution of an unknown graph as it is.
        """
        registered = self.registered().get(state.graph_id)
        if registered is None:
            return
        state.indexed_nodes = self.indexed_nodes(state.graph_id.graph)
        graph, queue_by_node = registered.graph, registered.queue_by_node
        propagate(graph, state, queue_by_node, now=self.wall())
        while graph.map_nodes and prepare_maps(tx, self._records.maps, graph, state):
            propagate(graph, state, queue_by_node, now=self.wall())

    def indexed_nodes(self, graph: str) -> frozenset[str]:
        """The nodes of a graph, in any version, whose values are added to an index."""
        return self._indexed_nodes.get(graph, _NO_NODES) | self._stored_indexes.get(
            graph, _NO_NODES
        )

    def wall(self) -> float:
        """The wall time of the store, by its clock as it was last read: machines whose clocks
        differ have to agree when a tick is due.
        """
        return self.clock.wall() + self._clock_offset

    def _read_store(self, tx: Transaction) -> None:
        """Read what processes share: the clock, and which indexes were begun."""
        asked = self.clock.wall()
        [(wall,)] = tx.rows(self._records.sql["wall_time"])
        offset = wall - (asked + self.clock.wall()) / 2
        self._clock_offset = offset if abs(offset) > _NEGLIGIBLE_OFFSET else 0.0
        self._stored_indexes = self._read_indexes(tx)

    def _read_indexes(self, tx: Transaction) -> dict[str, frozenset[str]]:
        """The nodes whose index was begun, by any process, by graph."""
        indexes = NodeIndexes(self._database)
        names = {graph_id.graph for graph_id in self.graphs}
        return {name: found for name in names if (found := indexes.begun(tx, name))}

    def refresh(self) -> None:
        """Read the queues, the indexes and the clock again: another process may have given a node a
        queue of its own, begun an index, or emptied the store.
        """
        known = self._database.read(self._read_queues)
        self._cached = (
            self._database.generation,
            {
                graph_id: _make_registered(graph, graph_id, known[graph_id])
                if SHARED_QUEUE in known[graph_id]
                else register(self._database, self._records, graph)
                for graph_id, graph in self.graphs.items()
            },
        )

    def _read_queues(self, tx: Transaction) -> dict[GraphId, _StoredQueues]:
        self._read_store(tx)
        return {graph_id: _stored_queues(tx, self._records, graph_id) for graph_id in self.graphs}

    def find(self, name: str, version: str | None = None) -> GraphId:
        """Find a graph by its name; without a version, the version that was given last.

        Raises UnknownGraphError, which suggests a name.
        """
        versions = [
            graph_id
            for graph_id in self.graphs
            if graph_id.graph == name and version in {None, graph_id.version}
        ]
        if versions:
            return versions[-1]
        known = sorted({graph_id.graph for graph_id in self.graphs})
        if name in known:
            others = ", ".join(
                graph_id.version for graph_id in self.graphs if graph_id.graph == name
            )
            raise UnknownGraphError(
                f"graph {name!r} of version {version!r} was not given to this Flow, which has "
                f"{others}"
            )
        hint = did_you_mean(str(name), known, default=f"it has {', '.join(known) or 'none'}")
        raise UnknownGraphError(
            f"graph {name!r} was not given to this Flow: Flow(store, graphs=[...]); {hint}"
        )

    def _add(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise UsageError(f"graphs= takes Graph objects, not {graph!r}")
        graph_id = GraphId(graph.name, graph.version)
        if graph_id in self.graphs:
            raise UsageError(
                f"graph {graph.name!r} is given twice in version {graph.version!r}; give one "
                f"of them another version"
            )
        graph.seal()
        self.graphs[graph_id] = graph
        indexed = {node.name for node in graph.nodes.values() if node.options.indexed}
        if indexed:
            self._indexed_nodes[graph.name] = (
                self._indexed_nodes.get(graph.name, _NO_NODES) | indexed
            )


def register(database: Database, records: Records, graph: Graph) -> RegisteredGraph:
    """Write the queues and the nodes of a graph to the store; only a read if they are up to date.
    Idempotent. Raises GraphError if the graph has changed in a way that needs a new version.
    """
    graph_id = GraphId(graph.name, graph.version)

    def read(tx: Transaction) -> tuple[_StoredQueues, Definitions]:
        return _stored_queues(tx, records, graph_id), load_definitions(tx, records, graph_id)

    def write(tx: Transaction) -> _StoredQueues:
        known = _write_queues(tx, records, graph, graph_id)
        save_definitions(tx, records, graph, graph_id)
        return known

    known, definitions = database.read(read)
    if missing_definitions(graph, definitions) or not _is_up_to_date(graph, known):
        known = database.write(write)
    return _make_registered(graph, graph_id, known)


_StoredQueues = Mapping[str, tuple[int, int | None]]
"""Number and cap of each queue, by the name of its node."""


def _stored_queues(tx: Transaction, records: Records, graph_id: GraphId) -> _StoredQueues:
    return {
        node: (number, max_running)
        for number, node, max_running in tx.rows(records.sql["queues_of_graph"], graph_id._asdict())
    }


def _wanted_queues(graph: Graph, known: _StoredQueues) -> dict[str, int | None]:
    """The queues that a graph needs, with their caps. A node keeps a queue that it once had."""
    own = {
        node.name: node.options.max_running
        for node in graph.computed_nodes
        if node.options.max_running or node.name in known
    }
    return {SHARED_QUEUE: graph.max_running, **own}


def _is_up_to_date(graph: Graph, known: _StoredQueues) -> bool:
    wanted = _wanted_queues(graph, known)
    return all(
        name in known and known[name][1] == max_running for name, max_running in wanted.items()
    )


def _write_queues(
    tx: Transaction, records: Records, graph: Graph, graph_id: GraphId
) -> _StoredQueues:
    before = _stored_queues(tx, records, graph_id)
    for node, max_running in _wanted_queues(graph, before).items():
        [(number,)] = tx.rows(
            records.sql["upsert_queue"],
            {**graph_id._asdict(), "node": node, "max_running": max_running},
        )
        if node not in before and SHARED_QUEUE in before:
            tx.execute(
                records.sql["move_attempts"],
                {"queue": before[SHARED_QUEUE][0], "node": node, "new_queue": number},
            )
    return _stored_queues(tx, records, graph_id)


def _make_registered(graph: Graph, graph_id: GraphId, known: _StoredQueues) -> RegisteredGraph:
    shared = known[SHARED_QUEUE][0]
    queue_by_node = {
        node.name: known.get(node.name, (shared, None))[0] for node in graph.computed_nodes
    }
    all_numbers = tuple(sorted({number for number, _ in known.values()}))
    graph_caps = () if graph.max_running is None else ((all_numbers, graph.max_running),)
    queues = [
        GraphQueue(
            number,
            graph_id,
            graph_caps
            + (() if node == SHARED_QUEUE or max_running is None else (((number,), max_running),)),
        )
        for node, (number, max_running) in known.items()
    ]
    return RegisteredGraph(graph, graph_id, tuple(sorted(queues)), queue_by_node)
