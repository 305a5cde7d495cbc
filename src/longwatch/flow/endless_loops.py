"""Refuses graphs whose nodes would be computed again and again: a node that writes another node
must not be computed again because of what it has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from longwatch.errors import GraphError
from longwatch.flow.histories import HistorianNode
from longwatch.flow.mutations import MutateNode
from longwatch.flow.nodes import Node


def refuse_endless_loops(graph: str, nodes: Mapping[str, Node]) -> None:
    """Raise GraphError, with the path and the cure, if a change of a node causes another change of
    the same node.
    """
    mutations = [node for node in nodes.values() if isinstance(node, MutateNode)]
    if not mutations:
        return
    from graphlib import CycleError, TopologicalSorter  # noqa: PLC0415 - processes without a graph need not load it

    causes: dict[str, set[str]] = {name: set(node.upstream) for name, node in nodes.items()}
    for node in mutations:
        for changed in _changed_by(node, nodes):
            causes[changed].add(node.name)
    try:
        TopologicalSorter(causes).prepare()
    except CycleError as error:
        path = error.args[1]
        culprit = next(node for node in mutations if node.name in path)
        raise GraphError(_describe(graph, culprit, path)) from None


def _changed_by(node: MutateNode, nodes: Mapping[str, Node]) -> Iterator[str]:
    """The nodes that get a new revision when this node is computed. Historians record a change
    that keeps the revision, too.
    """
    if node.new_revision:
        yield node.writes
    for other in nodes.values():
        if isinstance(other, HistorianNode) and node.writes in other.of:
            yield other.name


def _describe(graph: str, node: MutateNode, path: list[str]) -> str:
    cure = "write it with new_revision=False, or " if node.new_revision else ""
    return (
        f"graph {graph!r} would never come to rest: {' → '.join(path)}, where {node.name!r} "
        f"writes {node.writes!r} and comes after what that changes; {cure}let {node.name!r} come "
        f"after other nodes"
    )
