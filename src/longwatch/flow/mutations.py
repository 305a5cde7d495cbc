"""Nodes that write another node: their function computes the value of an input or a compute node.

The transaction that settles the attempt writes both values. The written node stays fresh. Without
`new_revision` it keeps its revision, so nodes after it are not computed again; waiting callers and
historians see the change. A written node without a value always gets a new revision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from longwatch.core.suggest import did_you_mean
from longwatch.errors import GraphError
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.gates import GateLike
from longwatch.flow.nodes import Node, NodeKind, compute

_WRITABLE = frozenset({NodeKind.INPUT, NodeKind.COMPUTE})


@dataclass(frozen=True, slots=True)
class MutateNode(Node):
    """A node whose result is written to the node `writes` as well."""

    writes: str = ""
    new_revision: bool = False

    @property
    def definition(self) -> str:
        revision = " with a new revision" if self.new_revision else ""
        return f"{super(MutateNode, self).definition}, writes {self.writes}{revision}"

    @property
    def relation(self) -> str:
        return f"{super(MutateNode, self).relation}, writes {self.writes}"

    def validate_in(self, graph: str, nodes: Mapping[str, Node]) -> None:
        target = nodes.get(self.writes)
        if target is None:
            hint = did_you_mean(
                self.writes,
                [name for name, node in nodes.items() if node.kind in _WRITABLE],
                default="define it first: writes= names a node that exists",
            )
            raise GraphError(
                f"node {self.name!r} of graph {graph!r} writes {self.writes!r}, which does not "
                f"exist; {hint}"
            )
        if target.kind not in _WRITABLE:
            raise GraphError(
                f"node {self.name!r} of graph {graph!r} writes {self.writes!r}, which is of "
                f"kind {target.kind}; name an input or a compute node"
            )


def mutate(
    name: str,
    after: GateLike | Iterable[GateLike],
    function: Callable[..., Any],
    *,
    writes: str,
    new_revision: bool = False,
    **options: Any,
) -> Node:
    """Define a node whose function computes the value of the node `writes`, an input or a compute
    node.

    Its own value is the value that it wrote. Without `new_revision`, the written node keeps its
    revision, so nothing that comes after it is computed again. `options` are those of `compute`.
    """
    if not isinstance(writes, str):
        raise GraphError(f"writes= of node {name!r} takes the name of a node, not {writes!r}")
    if not isinstance(new_revision, bool):
        raise GraphError(f"new_revision= of node {name!r} is True or False, not {new_revision!r}")
    base = compute(name, after, function, **options)
    return MutateNode(
        base.name,
        NodeKind.MUTATE,
        base.gate,
        base.function,
        base.options,
        writes=writes,
        new_revision=new_revision,
    )


def write_target(node: MutateNode, state: ExecutionState, value: str) -> None:
    """Write the new value of a mutate node to its target."""
    if node.new_revision:
        state.set_value(node.writes, value)
    else:
        state.replace_value(node.writes, value)
