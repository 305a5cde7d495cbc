"""Why is nothing happening? For every node of an execution: how it stands, and what it waits
for, as a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from longwatch.flow.execution_state import LEASED, Attempt, ExecutionState, NodeRecord
from longwatch.flow.gates import NOT_TEXT, GateResult
from longwatch.flow.graph import Graph
from longwatch.flow.nodes import Node
from longwatch.flow.propagation import NodeStatus, input_revisions, status_of
from longwatch.store.blame import DEFAULT_BUDGET


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The state of one node. `state` is one word: set, unset, fresh, stale, waiting, running,
    failed, blocked or cancelled.
    """

    node: str
    state: str
    text: str
    gate: GateResult | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All nodes of an execution, those that are set from outside first; `str` draws the tree."""

    execution: str
    nodes: tuple[NodeExplanation, ...]

    def describe(self, node: str) -> str:
        """One sentence about one node."""
        return next(f"{facts.node} {facts.text}" for facts in self.nodes if facts.node == node)

    def __str__(self) -> str:
        return "\n".join(_tree_lines(self))


def node_statuses(graph: Graph, state: ExecutionState) -> dict[str, NodeStatus]:
    """What is up with every node that is computed; changes nothing."""
    found: dict[str, NodeStatus] = {}
    unsettled: set[str] = set()
    for node in graph.computed_nodes:
        status = found[node.name] = status_of(node, state, unsettled, input_revisions(node, state))
        if status not in {NodeStatus.BLOCKED, NodeStatus.FRESH} and state.is_set(node.name):
            unsettled.add(node.name)
    return found


def unreachable_nodes(graph: Graph, state: ExecutionState) -> dict[str, str]:
    """The nodes that will get no value of the present inputs, each with the node that was given
    up and is to blame for it.
    """
    found: dict[str, str] = {}
    for name, status in node_statuses(graph, state).items():
        node = graph.nodes[name]
        unreachable_upstream = [each for each in node.upstream if each in found]
        if status is NodeStatus.FAILED:
            found[name] = name
        elif status is NodeStatus.STALE and any(map(state.is_set, unreachable_upstream)):
            found[name] = found[next(filter(state.is_set, unreachable_upstream))]
        elif (
            unreachable_upstream
            and status is NodeStatus.BLOCKED
            and not node.gate.may_be_met(state, found)
        ):
            found[name] = found[unreachable_upstream[0]]
    return found


def explain(graph: Graph, state: ExecutionState) -> Explanation:
    statuses = node_statuses(graph, state)
    inputs = [_explain_input(node, state) for node in graph.nodes.values() if node.is_input]
    return Explanation(
        state.id,
        (*inputs, *(_explain_computed(node, state, statuses) for node in graph.computed_nodes)),
    )


def _explain_input(node: Node, state: ExecutionState) -> NodeExplanation:
    if state.is_set(node.name):
        return NodeExplanation(
            node.name, "set", f"is set, at revision {state.revision_of(node.name)}"
        )
    return NodeExplanation(node.name, "unset", "waits for somebody to set it")


def _explain_computed(
    node: Node, state: ExecutionState, statuses: dict[str, NodeStatus]
) -> NodeExplanation:
    label, text = _EXPLAINERS[statuses[node.name]](node, state, statuses)
    if state.cancelled and label not in {"fresh", "stale"}:
        label, text = "cancelled", "is not computed any more: the execution was cancelled"
    return NodeExplanation(node.name, label, text, node.gate.evaluate(state))


def _explain_blocked(
    node: Node,
    state: ExecutionState,
    statuses: dict[str, NodeStatus],  # noqa: ARG001 - as its neighbours
) -> tuple[str, str]:
    return (
        "blocked",
        f"waits for its gate: {', '.join(dict.fromkeys(_unmet(node.gate.evaluate(state))))}",
    )


def _unmet(result: GateResult, *, wanted: bool = True) -> Iterator[str]:
    """The conditions that are to blame for it."""
    if result.met is wanted:
        return
    if not result.parts:
        yield result.text
    for part in result.parts:
        yield from _unmet(part, wanted=wanted is not (result.text == NOT_TEXT))


def _explain_fresh(
    node: Node,
    state: ExecutionState,
    statuses: dict[str, NodeStatus],  # noqa: ARG001
) -> tuple[str, str]:
    return "fresh", f"is computed, at revision {state.revision_of(node.name)}"


def _explain_stale(
    node: Node,
    state: ExecutionState,  # noqa: ARG001
    statuses: dict[str, NodeStatus],
) -> tuple[str, str]:
    changing = [
        name
        for name in node.upstream
        if statuses.get(name, NodeStatus.FRESH) not in {NodeStatus.BLOCKED, NodeStatus.FRESH}
    ]
    return "stale", f"waits for {', '.join(changing)} to be computed anew"


def _explain_open(
    node: Node,
    state: ExecutionState,
    statuses: dict[str, NodeStatus],  # noqa: ARG001
) -> tuple[str, str]:
    attempt = state.open_attempts[node.name]
    number = _attempt_text(attempt, state.node(node.name))
    if attempt.lease_state == LEASED:
        return "running", f"is being computed, {number}"
    error = state.node(node.name).error
    after = f" after: {error}" if error and attempt.number > 1 else ""
    return "waiting", f"is ready and waits for a worker, {number}{after}"


def _attempt_text(attempt: Attempt, record: NodeRecord) -> str:
    """Which attempt it is; crashes and losses have budgets of their own and are said apart."""
    if record.attempted_with != attempt.computed_with or not (record.crashes or record.lost):
        return f"attempt {attempt.number} of {attempt.spec.max_attempts}"
    return (
        f"attempt {attempt.number}: {record.failed_attempts} of {attempt.spec.max_attempts} failed,"
        f" {record.crashes} of {DEFAULT_BUDGET.max_crashes} crashed,"
        f" {record.lost} of {DEFAULT_BUDGET.max_lost} lost"
    )


def _explain_failed(
    node: Node,
    state: ExecutionState,
    statuses: dict[str, NodeStatus],  # noqa: ARG001
) -> tuple[str, str]:
    record = state.node(node.name)
    return (
        "failed",
        (
            f"was given up after {record.spent_attempts} attempts: {record.error}; retry it, "
            f"or change "
            f"what it comes after"
        ),
    )


def _explain_ready(
    node: Node,  # noqa: ARG001
    state: ExecutionState,  # noqa: ARG001
    statuses: dict[str, NodeStatus],  # noqa: ARG001
) -> tuple[str, str]:
    return (
        "waiting",
        "could be computed, and is not in line yet: the next change or sweep puts it there",
    )


_EXPLAINERS = {
    NodeStatus.BLOCKED: _explain_blocked,
    NodeStatus.FRESH: _explain_fresh,
    NodeStatus.STALE: _explain_stale,
    NodeStatus.ATTEMPT_OPEN: _explain_open,
    NodeStatus.FAILED: _explain_failed,
    NodeStatus.READY: _explain_ready,
}
_MARKS = {True: "✓", False: "✗"}


def _tree_lines(explanation: Explanation) -> Iterator[str]:
    yield f"execution {explanation.execution}"
    for facts in explanation.nodes:
        yield f"{facts.node}: {facts.state}; it {facts.text}"
        if facts.gate is not None:
            yield from _gate_lines(facts.gate, depth=1)


def _gate_lines(result: GateResult, *, depth: int) -> Iterator[str]:
    yield f"{'   ' * depth}{_MARKS[result.met]} {result.text}"
    for part in result.parts:
        yield from _gate_lines(part, depth=depth + 1)
