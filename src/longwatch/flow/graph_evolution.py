"""Compares a graph with the definition of its version that the store has.

A version may get more nodes. A graph with fewer nodes is an older release, which may run beside
newer ones. Anything else would leave executions with values that no node explains, so it is
refused: it needs a new version.

The store has the union of all nodes that a version was given. The transaction that changes it holds
the queue of the graph, so of several processes each sees what the one before has written.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from longwatch.errors import GraphError
from longwatch.flow.execution_state import GraphId
from longwatch.flow.graph import Graph
from longwatch.flow.records import Records
from longwatch.store.database import Transaction

Definitions = Mapping[str, str]
"""The definition of each node of a graph, by its name."""


def load_definitions(tx: Transaction, records: Records, graph_id: GraphId) -> Definitions:
    """The stored definitions of a graph; empty for a graph that the store does not know. Raises
    GraphError if the row of the graph is damaged.
    """
    rows = tx.rows(records.sql["graph_definitions"], graph_id._asdict())
    try:
        return msgspec.json.decode(rows[0][0], type=dict[str, str]) if rows else {}
    except msgspec.DecodeError as error:
        raise GraphError(
            f"the store has a damaged definition of graph {graph_id.graph!r} version "
            f"{graph_id.version!r} ({error}); restore its row of longwatch_graphs, or delete it: "
            f"the next process that registers the graph writes it again"
        ) from None


def save_definitions(tx: Transaction, records: Records, graph: Graph, graph_id: GraphId) -> None:
    """Add the nodes of a graph to the stored ones; raises GraphError for another change."""
    stored = load_definitions(tx, records, graph_id)
    added = missing_definitions(graph, stored)
    if added:
        nodes = msgspec.json.encode({**stored, **added}, order="sorted").decode()
        tx.execute(records.sql["upsert_graph"], {**graph_id._asdict(), "nodes": nodes})


def missing_definitions(graph: Graph, stored: Definitions) -> Definitions:
    """The nodes of a graph that the store does not have.

    Raises GraphError if a node was changed, or removed while others were added.
    """
    own = {name: node.definition for name, node in graph.nodes.items()}
    added = {name: text for name, text in own.items() if name not in stored}
    changes = [
        f"node {name!r} was `{stored[name]}` and is `{text}`"
        for name, text in own.items()
        if stored.get(name, text) != text
    ]
    if added:
        changes += [
            f"node {name!r}, which was `{text}`, is gone"
            for name, text in stored.items()
            if name not in own
        ]
    if changes:
        raise GraphError(
            f"graph {graph.name!r} differs from version {graph.version!r} in the store: "
            f"{'; '.join(changes)}. Give the graph a new version, or undo the change; a version "
            f"may only get more nodes"
        )
    return added
