"""Graphs as a store knows them: by number, one line of attempts each, and one more for every
node that has a cap of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from longwatch.core.nearest import did_you_mean
from longwatch.errors import UnknownGraphError, UsageError
from longwatch.flow.graph import Graph
from longwatch.flow.records import Kind, Records
from longwatch.store.database import Database, Transaction

WHOLE = ""
"""The line of all nodes that have none of their own; its cap is that of the graph."""


class Line(NamedTuple):
    """Attempts that wait for their turn. `caps`: of these lines together, no more than so many
    run at the same time.
    """

    lane: int
    kind: Kind
    caps: tuple[tuple[tuple[int, ...], int], ...] = ()


@dataclass(frozen=True, slots=True)
class Registered:
    """A graph with its lines. `lanes`: where each node's attempts wait."""

    graph: Graph
    kind: Kind
    lines: tuple[Line, ...]
    lanes: Mapping[str, int]

    @property
    def is_capped(self) -> bool:
        """Whether what ends makes room for others."""
        return any(line.caps for line in self.lines)


class Registry:
    """The graphs of one Flow, and how a store knows them. Thread-safe: who comes twice learns
    the same twice.
    """

    def __init__(self, database: Database, records: Records, graphs: Iterable[Graph] = ()) -> None:
        self.graphs: dict[Kind, Graph] = {}
        self._database = database
        self._records = records
        if isinstance(graphs, Graph):
            raise UsageError(f"graphs= takes a list of graphs; write graphs=[{graphs.name}]")
        self._known: tuple[tuple[int, int], dict[Kind, Registered]] | None = None
        for graph in graphs:
            self._add(graph)

    def registered(self) -> dict[Kind, Registered]:
        """Looked up once a process, and again when the store was found anew."""
        here = os.getpid(), self._database.generation
        if self._known is None or self._known[0] != here:
            found = {
                kind: register(self._database, self._records, graph)
                for kind, graph in self.graphs.items()
            }
            self._known = (os.getpid(), self._database.generation), found
        return self._known[1]

    def refresh(self) -> None:
        """Look again: another process may have given a node a line of its own, or the store may
        have been emptied.
        """
        self._known = (
            (os.getpid(), self._database.generation),
            {kind: self._looked_up(kind, graph) for kind, graph in self.graphs.items()},
        )

    def _looked_up(self, kind: Kind, graph: Graph) -> Registered:
        known = self._database.read(lambda tx: _known(tx, self._records, kind))
        return (
            _registered(graph, kind, known)
            if WHOLE in known
            else register(self._database, self._records, graph)
        )

    def find(self, name: str, version: str | None = None) -> Kind:
        """The graph of that name; without a version the one that was given last.
        UnknownGraphError, with the nearest name.
        """
        versions = [
            kind for kind in self.graphs if kind.graph == name and version in {None, kind.version}
        ]
        if versions:
            return versions[-1]
        known = sorted({kind.graph for kind in self.graphs})
        if name in known:
            others = ", ".join(kind.version for kind in self.graphs if kind.graph == name)
            raise UnknownGraphError(
                f"graph {name!r} of version {version!r} was not given to this Flow, which has "
                f"{others}"
            )
        hint = did_you_mean(str(name), known, otherwise=f"it has {', '.join(known) or 'none'}")
        raise UnknownGraphError(
            f"graph {name!r} was not given to this Flow: Flow(store, graphs=[...]); {hint}"
        )

    def _add(self, graph: Graph) -> None:
        if not isinstance(graph, Graph):
            raise UsageError(f"graphs= takes Graph objects, not {graph!r}")
        kind = Kind(graph.name, graph.version)
        if kind in self.graphs:
            raise UsageError(
                f"graph {graph.name!r} is given twice in version {graph.version!r}; give one "
                f"of them another version"
            )
        graph.sealed = True
        self.graphs[kind] = graph


def register(database: Database, records: Records, graph: Graph) -> Registered:
    """Have the store know a graph; a read if it knows it as it is."""
    kind = Kind(graph.name, graph.version)
    known = database.read(lambda tx: _known(tx, records, kind))
    if not _is_up_to_date(graph, known):
        known = database.write(lambda tx: _written(tx, records, graph, kind))
    return _registered(graph, kind, known)


_Known = Mapping[str, tuple[int, int | None]]
"""By the name of the node that has a line of its own, the number of that and its cap."""


def _known(tx: Transaction, records: Records, kind: Kind) -> _Known:
    return {
        node: (lane, most) for lane, node, most in tx.rows(records.sql["lanes_of"], kind._asdict())
    }


def _wanted(graph: Graph, known: _Known) -> dict[str, int | None]:
    """A node that had a line of its own once keeps it."""
    own = {
        node.name: node.options.max_running
        for node in graph.order
        if node.options.max_running or node.name in known
    }
    return {WHOLE: graph.max_running, **own}


def _is_up_to_date(graph: Graph, known: _Known) -> bool:
    wanted = _wanted(graph, known)
    return all(name in known and known[name][1] == most for name, most in wanted.items())


def _written(tx: Transaction, records: Records, graph: Graph, kind: Kind) -> _Known:
    before = _known(tx, records, kind)
    for node, most in _wanted(graph, before).items():
        [(lane,)] = tx.rows(
            records.sql["make_lane"], {**kind._asdict(), "node": node, "most": most}
        )
        if node not in before and WHOLE in before:
            tx.execute(
                records.sql["move_attempts"],
                {"lane": before[WHOLE][0], "node": node, "target": lane},
            )
    return _known(tx, records, kind)


def _registered(graph: Graph, kind: Kind, known: _Known) -> Registered:
    whole = known[WHOLE][0]
    lanes = {node.name: known.get(node.name, (whole, None))[0] for node in graph.order}
    every = tuple(sorted({lane for lane, _ in known.values()}))
    of_graph = () if graph.max_running is None else ((every, graph.max_running),)
    lines = [
        Line(lane, kind, of_graph + (() if node == WHOLE or most is None else (((lane,), most),)))
        for node, (lane, most) in known.items()
    ]
    return Registered(graph, kind, tuple(sorted(lines)), lanes)
