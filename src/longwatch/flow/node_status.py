"""The status of a computed node, as a propagation decides it."""

from __future__ import annotations

from enum import StrEnum, auto

from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.nodes import Node, NodeKind


class NodeStatus(StrEnum):
    """The status of a computed node."""

    BLOCKED = auto()  # its gate is not met
    FRESH = auto()  # its value was computed from the present inputs
    STALE = auto()  # an upstream node may change
    ATTEMPT_OPEN = auto()  # an attempt is open
    FAILED = auto()  # its attempts are spent
    READY = auto()  # an attempt has to be opened
    PAUSED = auto()  # a recurring tick that fires no more until it is resumed
    ENDED = auto()  # a tick whose schedule says that it never fires with the present inputs


FRESH_STATUSES = frozenset({NodeStatus.FRESH, NodeStatus.PAUSED, NodeStatus.ENDED})
"""The value of a node of such a status is that of the present inputs."""
SETTLED_STATUSES = FRESH_STATUSES | {NodeStatus.BLOCKED}
"""The value of a node of such a status stays as it is."""


def is_unsettled(node: Node, status: NodeStatus, state: ExecutionState) -> bool:
    """Whether a node has a value that is about to be replaced, so that nodes after it wait. They do
    not wait for the next firing of a recurring tick: its value is its last firing.
    """
    if status in SETTLED_STATUSES or not state.is_set(node.name):
        return False
    return node.kind is not NodeKind.TICK_RECURRING or status is NodeStatus.STALE
