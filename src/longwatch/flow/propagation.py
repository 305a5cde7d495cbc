"""Propagates changes through an execution: decides which nodes are computed, cleared or cancelled.

One pass looks at the computed nodes in topological order. For each node the first rule that holds
decides:

    its gate is not met       Its value is cleared and its attempt cancelled. Nodes after it see
                              that in the same pass.
    an upstream node that     It waits. Otherwise it would be computed from old and new values, and
    has a value may change    again afterwards. The upstream value may also turn out to be equal.
    its value is fresh        It was computed with the present revisions of all its upstream nodes:
                              nothing to do.
    its attempt is open       With the present inputs: nothing to do. With other inputs: the attempt
                              is cancelled and another one opened.
    its attempts are spent    With the present inputs: nothing to do until a `retry` or a change of
                              an input.
    otherwise                 An attempt is opened.

A historian has no attempts: it records the changes of the nodes before it (`histories`). An archive
node has none either: it archives the execution, whose attempts are then cancelled (`archiving`).

A value that is not fresh stays until another one replaces it, and counts as set meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from longwatch.flow.archiving import archive_by_node
from longwatch.flow.attempt import AttemptEndCause, AttemptSpec
from longwatch.flow.execution_state import ExecutionState, ExecutionStatus, Progress
from longwatch.flow.graph import Graph
from longwatch.flow.histories import HistorianNode, record_changes
from longwatch.flow.node_status import NodeStatus, is_unsettled
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.ticks import drop_outdated_end, has_ended, open_tick, tick_status


def propagate(
    graph: Graph,
    state: ExecutionState,
    queue_by_node: Mapping[str, int],
    *,
    now: float,
) -> None:
    """Open, cancel and clear what follows from the present values of an execution. Idempotent.

    `queue_by_node` has the queue of each node. `now` is wall time.
    """
    has_failed = not state.has_ended and _propagate_nodes(graph, state, queue_by_node, now=now)
    if state.has_ended:
        _end_attempts(graph, state)
    else:
        state.progress = _progress(graph, state, has_failed=has_failed)


def _end_attempts(graph: Graph, state: ExecutionState) -> None:
    """Cancel all attempts of an execution that was cancelled or archived."""
    for attempt in list(state.open_attempts.values()):
        state.cancel_attempt(attempt, AttemptEndCause.EXECUTION)
    state.new_attempts.clear()
    ended = ExecutionStatus.ARCHIVED if state.archived else ExecutionStatus.CANCELLED
    known = len(graph.computed_nodes)
    state.progress = Progress(known, known, ended)


def _propagate_nodes(
    graph: Graph, state: ExecutionState, queue_by_node: Mapping[str, int], *, now: float
) -> bool:
    """Propagate through all computed nodes; returns whether one of them was given up."""
    unsettled: set[str] = set()
    has_failed = False
    for node in graph.computed_nodes:
        if isinstance(node, HistorianNode):
            record_changes(node, state, now)
            continue
        status = _propagate_node(node, state, unsettled, queue_by_node, now=now)
        has_failed = has_failed or status is NodeStatus.FAILED
        if is_unsettled(node, status, state):
            unsettled.add(node.name)
    return has_failed


def _progress(graph: Graph, state: ExecutionState, *, has_failed: bool) -> Progress:
    known = len(graph.computed_nodes)
    if state.open_attempts or state.new_attempts:
        return Progress(known)
    if has_failed:
        return Progress(known, known, ExecutionStatus.FAILED)
    is_waiting = bool(awaiting_nodes(graph, state))
    return Progress(known, known, ExecutionStatus.IDLE if is_waiting else ExecutionStatus.DONE)


def awaiting_nodes(graph: Graph, state: ExecutionState) -> set[str]:
    """The paused ticks, and the blocked nodes whose gate a new value could meet, or whose gate
    raises. The others are decided by the present values: their branch was not taken.
    """
    awaiting: set[str] = set()
    decided = {name for name in graph.nodes if state.is_set(name)}
    for node in graph.computed_nodes:
        if node.gate.is_met(state):
            if has_ended(node, state, input_revisions(node, state)):
                decided.add(node.name)
            elif node.is_tick and state.node(node.name).paused:
                awaiting.add(node.name)
            continue
        if node.gate.may_be_met(state, decided) or node.gate.evaluate(state).has_error:
            awaiting.add(node.name)
        else:
            decided.add(node.name)
    return awaiting


def _propagate_node(
    node: Node,
    state: ExecutionState,
    unsettled: set[str],
    queue_by_node: Mapping[str, int],
    *,
    now: float,
) -> NodeStatus:
    inputs = input_revisions(node, state)
    state.drop_outdated(node.name, inputs)
    drop_outdated_end(node, state, inputs)
    status = status_of(node, state, unsettled, inputs)
    attempt = state.open_attempts.get(node.name)
    if attempt is not None and (status is NodeStatus.BLOCKED or attempt.computed_with != inputs):
        state.cancel_attempt(
            attempt,
            AttemptEndCause.GATE if status is NodeStatus.BLOCKED else AttemptEndCause.SUPERSEDED,
        )
    if status is NodeStatus.BLOCKED:
        state.new_attempts.pop(node.name, None)
        state.unset_value(node.name)
    elif status is NodeStatus.READY and node.is_tick:
        open_tick(node, state, inputs, attempt_spec(node, queue_by_node), now=now)
    elif status is NodeStatus.READY and node.kind is NodeKind.ARCHIVE:
        archive_by_node(node, state, inputs, now)
        return NodeStatus.FRESH
    elif status is NodeStatus.READY:
        state.open_attempt(node.name, inputs, attempt_spec(node, queue_by_node))
    return status


def status_of(node: Node, state: ExecutionState, unsettled: set[str], inputs: str) -> NodeStatus:
    """The status of one node. `unsettled` are the upstream nodes whose value may change."""
    if node.kind is NodeKind.HISTORIAN:
        return NodeStatus.FRESH
    if not node.gate.is_met(state):
        return NodeStatus.BLOCKED
    if any(name in unsettled for name in node.upstream):
        return NodeStatus.STALE
    if node.is_tick:
        return tick_status(node, state, inputs)
    return _compute_status(node, state, inputs)


def _compute_status(node: Node, state: ExecutionState, inputs: str) -> NodeStatus:
    record = state.nodes.get(node.name)
    if record is not None and record.is_set and record.computed_with == inputs:
        return NodeStatus.FRESH
    if state.has_attempt(node.name, inputs):
        return NodeStatus.ATTEMPT_OPEN
    if record is not None and record.failed and record.attempted_with == inputs:
        return NodeStatus.FAILED
    return NodeStatus.READY


def input_revisions(node: Node, state: ExecutionState, *, without: str | None = None) -> str:
    """The revisions of all upstream nodes of a node, as JSON, or of all but one. Node names need no
    escapes.
    """
    parts = ",".join(
        f'"{name}":{state.revision_of(name)}' for name in node.upstream if name != without
    )
    return f"{{{parts}}}"


def attempt_spec(node: Node, queue_by_node: Mapping[str, int]) -> AttemptSpec:
    options = node.options
    return AttemptSpec(
        queue_by_node[node.name],
        options.heartbeat_timeout_seconds,
        options.abandon_after_seconds,
        options.max_attempts,
    )
