"""Refuses graphs whose nodes would be computed again and again: a node that writes another node
must not be computed again because of what it has written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from longwatch.errors import GraphError
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
        for changed in _changed_by(node):
            causes[changed].add(node.name)
    try:
        TopologicalSorter(causes).prepare()
    except CycleError as error:
        path = error.args[1]
        culprit = next(node for node in mutations if node.name in path)
        raise GraphError(_describe(graph, culprit, path)) from None


def _changed_by(node: MutateNode) -> Iterator[str]:
    """The nodes that get a new revision when this node is computed."""
    if node.new_revision:
        yield node.writes


def _describe(graph: str, node: MutateNode, path: list[str]) -> str:
    return (
        f"graph {graph!r} would never come to rest: {' → '.join(path)}, where {node.name!r} "
        f"writes {node.writes!r} and comes after it; write it with new_revision=False, or let "
        f"{node.name!r} come after other nodes"
    )
