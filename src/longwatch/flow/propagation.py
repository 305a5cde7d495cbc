"""What follows in an execution from how its nodes stand: which are computed now, which are cleared,
what is called off.

Nodes are looked at in an order in which each comes after those that it depends on, so one pass
does. For each:

    its gate is not met      its value is cleared, its attempt called off; what comes after it sees
                             that in the same pass
    something before it is   that has a value and may get another: wait for that, or it would be
                             computed from old and new at once,
    unsettled                and again when the rest is new; it may turn out to be the same value,
                             and all is well as it is
    its value is fresh       it was computed with the present revisions of everything it depends on:
                             nothing
    its attempt is under     with the present inputs: nothing; with others: called off, and begun
                             anew
    way
    its attempts are spent   for the present inputs: nothing, until somebody says retry, or the
                             inputs change
    else                     an attempt is opened

A value that is not fresh stays until another replaces it, and counts as set meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum, auto

from longwatch.flow.execution_state import AttemptEndCause, AttemptSpec, ExecutionState, Progress
from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node


class NodeStatus(StrEnum):
    """What is up with a node that is computed."""

    BLOCKED = auto()  # its gate is not met
    FRESH = auto()  # it has the value of its present inputs
    STALE = auto()  # something before it is about to change
    ATTEMPT_OPEN = auto()  # an attempt is open
    FAILED = auto()  # its attempts are
    READY = auto()  # an attempt is to be opened


def propagate(graph: Graph, state: ExecutionState, queue_by_node: Mapping[str, int]) -> None:
    """Bring an execution up to date with its values. `queue_by_node` has the queue of each node."""
    if state.cancelled:
        for attempt in list(state.open_attempts.values()):
            state.cancel_attempt(attempt, AttemptEndCause.EXECUTION)
        return
    unsettled: set[str] = set()
    has_failed = False
    for node in graph.computed_nodes:
        status = _propagate_node(node, state, unsettled, queue_by_node)
        has_failed = has_failed or status is NodeStatus.FAILED
        if status not in {NodeStatus.BLOCKED, NodeStatus.FRESH} and state.is_set(node.name):
            unsettled.add(node.name)
    state.progress = _progress(graph, state, has_failed=has_failed)


def _progress(graph: Graph, state: ExecutionState, *, has_failed: bool) -> Progress:
    known = len(graph.computed_nodes)
    if state.open_attempts or state.new_attempts:
        return Progress(known)
    return Progress(known, known, is_done=not (has_failed or awaiting_nodes(graph, state)))


def awaiting_nodes(graph: Graph, state: ExecutionState) -> set[str]:
    """The blocked nodes whose gate a new value could meet, or whose gate raises. The others are
    decided by the present values: their branch was not taken.
    """
    awaiting: set[str] = set()
    decided = {name for name in graph.nodes if state.is_set(name)}
    for node in graph.computed_nodes:
        if node.gate.is_met(state):
            continue
        if node.gate.may_be_met(state, decided) or node.gate.evaluate(state).has_error:
            awaiting.add(node.name)
        else:
            decided.add(node.name)
    return awaiting


def _propagate_node(
    node: Node, state: ExecutionState, unsettled: set[str], queue_by_node: Mapping[str, int]
) -> NodeStatus:
    inputs = input_revisions(node, state)
    state.drop_outdated(node.name, inputs)
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
    elif status is NodeStatus.READY:
        state.open_attempt(node.name, inputs, attempt_spec(node, queue_by_node))
    return status


def status_of(node: Node, state: ExecutionState, unsettled: set[str], inputs: str) -> NodeStatus:
    """What is up with it."""
    record = state.nodes.get(node.name)
    attempt, new_attempt = state.open_attempts.get(node.name), state.new_attempts.get(node.name)
    if not node.gate.is_met(state):
        return NodeStatus.BLOCKED
    if any(name in unsettled for name in node.upstream):
        return NodeStatus.STALE
    if record is not None and record.is_set and record.computed_with == inputs:
        return NodeStatus.FRESH
    if (attempt is not None and attempt.computed_with == inputs) or (
        new_attempt is not None and new_attempt.computed_with == inputs
    ):
        return NodeStatus.ATTEMPT_OPEN
    if record is not None and record.failed and record.attempted_with == inputs:
        return NodeStatus.FAILED
    return NodeStatus.READY


def input_revisions(node: Node, state: ExecutionState) -> str:
    """The revisions of everything that a node depends on; names need no quoting in JSON."""
    parts = ",".join(f'"{name}":{state.revision_of(name)}' for name in node.upstream)
    return f"{{{parts}}}"


def attempt_spec(node: Node, queue_by_node: Mapping[str, int]) -> AttemptSpec:
    options = node.options
    return AttemptSpec(
        queue_by_node[node.name],
        options.heartbeat_timeout_seconds,
        options.abandon_after_seconds,
        options.max_attempts,
    )
