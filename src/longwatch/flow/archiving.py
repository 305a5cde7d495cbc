"""Archive nodes: they archive their execution in the transaction in which their gate is met.

An archived execution has no open attempts, changes no more until `unarchive`, and lists leave it
out. A fresh archive node archives once: after `unarchive` it does so again only when one of its
inputs has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from longwatch.errors import GraphError, UsageError
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.gates import GateLike, to_gate
from longwatch.flow.nodes import Node, NodeKind, validate_name


def archive(name: str, after: GateLike | Iterable[GateLike]) -> Node:
    """Define a node that archives its execution once its gate is met; its value is the wall time
    of that.
    """
    gate = to_gate(after)
    if not gate.nodes:
        raise GraphError(
            f"archive node {validate_name(name)!r} has no upstream nodes; name in after= the "
            f"nodes that the execution has to finish first"
        )
    return Node(validate_name(name), NodeKind.ARCHIVE, gate)


def archive_by_node(node: Node, state: ExecutionState, inputs: str, now: float) -> None:
    """Archive an execution because the gate of this node is met."""
    state.archived = True
    state.set_value(node.name, repr(float(now)))
    state.node(node.name).computed_with = inputs
    state.changed_nodes.add(node.name)


def archived_error(execution_id: str) -> UsageError:
    """The error about a change of an archived execution."""
    return UsageError(
        f"execution {execution_id} is archived and does not change; continue it with unarchive() "
        f"or `longwatch flow unarchive`"
    )
