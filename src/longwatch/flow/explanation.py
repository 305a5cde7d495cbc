"""Explains the state of every node of an execution and what the node waits for."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain

from longwatch.errors import ComputationFailedError
from longwatch.flow.attempt import DELAYED, LEASED, MAP_OPEN, Attempt
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.gates import NOT_TEXT, AllOf, AnyOf, Gate, GateResult, Not, When
from longwatch.flow.graph import Graph
from longwatch.flow.histories import HistorianNode
from longwatch.flow.map_records import MapProgress
from longwatch.flow.node_record import NodeRecord
from longwatch.flow.node_status import SETTLED_STATUSES, NodeStatus, is_unsettled
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.propagation import awaiting_nodes, input_revisions, status_of
from longwatch.flow.tick_explanation import explain_tick
from longwatch.store.blame import DEFAULT_BUDGET

MAX_SHOWN_ERROR = 120
"""Characters of an error that an explanation shows."""
MAX_SHOWN_REASONS = 10
"""Conditions that a sentence lists; the tree has all of them."""


@dataclass(frozen=True, slots=True)
class NodeExplanation:
    """The state of one node. `state` is one word: set, unset, fresh, stale, waiting, running,
    failed, blocked, cancelled or archived; of a tick also paused or ended. `text` completes "the
    node is …". `error` is the whole error of the last failed attempt, if the state follows from it.
    """

    node: str
    state: str
    text: str
    gate: GateResult | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """All nodes of an execution, the inputs first; `str` draws the tree."""

    execution: str
    nodes: tuple[NodeExplanation, ...]
    ended: str = ""
    """How the whole execution was ended, and what continues it; empty if it goes on."""

    def describe(self, node: str) -> str:
        """One sentence about one node."""
        return next(f"{facts.node} is {facts.text}" for facts in self.nodes if facts.node == node)

    def __str__(self) -> str:
        return "\n".join(_tree_lines(self))


def short_error(error: str) -> str:
    """The first line of an error, cut to a length that fits in a line."""
    first, *others = error.strip().splitlines() or [""]
    is_cut = len(first) > MAX_SHOWN_ERROR or any(map(str.strip, others))
    return f"{first[:MAX_SHOWN_ERROR]}…" if is_cut else first


def node_statuses(graph: Graph, state: ExecutionState) -> dict[str, NodeStatus]:
    """The status of every computed node; changes nothing."""
    found: dict[str, NodeStatus] = {}
    unsettled: set[str] = set()
    for node in graph.computed_nodes:
        status = found[node.name] = status_of(node, state, unsettled, input_revisions(node, state))
        if is_unsettled(node, status, state):
            unsettled.add(node.name)
    return found


def unreachable_nodes(graph: Graph, state: ExecutionState) -> dict[str, str]:
    """The nodes that will get no value from the present inputs, each with the node whose failure
    is the cause.
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


def require_attainable(graph: Graph, state: ExecutionState, node: str) -> None:
    """Raise ComputationFailedError if a node gets no value unless a caller changes something."""
    if state.has_ended:
        ended = "is archived; unarchive() continues it" if state.archived else "was cancelled"
        raise ComputationFailedError(
            f"node {node!r} of {state.id} will get no value: the execution {ended}"
        )
    failed_node = unreachable_nodes(graph, state).get(node)
    if failed_node is None:
        return
    record = state.nodes[failed_node]
    subject = "it" if failed_node == node else f"{failed_node!r}, which it waits for,"
    count = "once" if record.spent_attempts == 1 else f"{record.spent_attempts} times"
    raise ComputationFailedError(
        f"node {node!r} of {state.id} will get no value: {subject} failed {count}: "
        f"{short_error(record.error or 'no error')}; `retry` tries it again"
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the texts of all nodes need. It is computed once, so an explanation takes time in
    proportion to the nodes and conditions of the graph.
    """

    graph: Graph
    state: ExecutionState
    now: float
    """The wall time."""
    statuses: Mapping[str, NodeStatus]
    awaiting: AbstractSet[str]
    """The blocked nodes that a new value could unblock."""


def explain(
    graph: Graph,
    state: ExecutionState,
    maps: Mapping[str, MapProgress] | None = None,
    *,
    now: float | None = None,
) -> Explanation:
    """Explain every node of an execution; changes nothing. `maps` says how far its maps are,
    `now` is the wall time.
    """
    wall = time.time() if now is None else now
    facts = _Facts(graph, state, wall, node_statuses(graph, state), awaiting_nodes(graph, state))
    inputs = [_explain_input(node, state) for node in graph.nodes.values() if node.is_input]
    computed = [
        _explain_map(_explain_computed(node, facts), maps or {}) for node in graph.computed_nodes
    ]
    return Explanation(state.id, (*inputs, *computed), _ended_text(state))


def _ended_text(state: ExecutionState) -> str:
    if state.archived:
        return "archived; `longwatch flow unarchive` continues it"
    return "cancelled for good; start another one" if state.cancelled else ""


def _explain_map(facts: NodeExplanation, maps: Mapping[str, MapProgress]) -> NodeExplanation:
    """Add how far a map is, while it runs and after elements have failed."""
    progress = maps.get(facts.node)
    if progress is None or not progress.elements:
        return facts
    if facts.state == "running":
        return replace(facts, text=f"being computed, {progress}")
    if facts.state != "failed" or not progress.failed:
        return facts
    return replace(
        facts, text=f"given up, {progress}; retry computes the failed ones, or change its inputs"
    )


def _explain_input(node: Node, state: ExecutionState) -> NodeExplanation:
    if state.is_set(node.name):
        return NodeExplanation(node.name, "set", f"set at revision {state.revision_of(node.name)}")
    return NodeExplanation(node.name, "unset", "not set")


def _explain_historian(node: HistorianNode, state: ExecutionState) -> NodeExplanation:
    entries = len(state.value(node.name)) if state.is_set(node.name) else 0
    text = (
        f"recording the changes of {' and '.join(f'`{name}`' for name in node.of)}, "
        f"{entries} of at most {node.max_entries} kept"
    )
    return NodeExplanation(node.name, "set" if entries else "unset", text)


def _explain_computed(node: Node, facts: _Facts) -> NodeExplanation:
    if isinstance(node, HistorianNode):
        return _explain_historian(node, facts.state)
    state, statuses, gate = facts.state, facts.statuses, node.gate.evaluate(facts.state)
    status, error = statuses[node.name], None
    label, text = "waiting", "ready; the next get, set or sweep queues it"
    match status:
        case NodeStatus.BLOCKED:
            label, text = "blocked", _blocked_text(node, gate, facts)
        case NodeStatus.FRESH:
            label, text = "fresh", f"computed at revision {state.revision_of(node.name)}"
        case NodeStatus.STALE:
            label, text = "stale", _stale_text(node, statuses)
        case NodeStatus.ATTEMPT_OPEN:
            label, text, error = _explain_open(node, state)
        case NodeStatus.FAILED:
            record = state.node(node.name)
            label, error = "failed", record.error
            text = _given_up_text(node, record)
    if node.is_tick:
        label, text = explain_tick(node, state, status, now=facts.now) or (label, text)
    if node.kind is NodeKind.ARCHIVE and status is NodeStatus.FRESH:
        text = f"met: it archived the execution at revision {state.revision_of(node.name)}"
    if state.has_ended and label != "fresh":
        (label, text), error = _explain_ended(label, state), None
    shown = gate if node.gate.nodes else None
    return NodeExplanation(node.name, label, text, shown, error)


def _explain_ended(label: str, state: ExecutionState) -> tuple[str, str]:
    """The state and the text of a node of an execution that was cancelled or archived."""
    end = "archived" if state.archived else "cancelled"
    text = f"not computed: the execution {'is' if state.archived else 'was'} {end}"
    return (label, f"out of date and {text}") if label == "stale" else (end, text)


# --- gates ---


def _blocked_text(node: Node, result: GateResult, facts: _Facts) -> str:
    if node.name in facts.awaiting:
        return f"waiting for {_join(_needs(node.gate, result, facts)) or 'its gate'}"
    return f"not computed, because {_join(_unmet(result))}"


def _join(reasons: Iterable[str]) -> str:
    """The first of these reasons, each once, as a part of a sentence."""
    unique = list(dict.fromkeys(reasons))
    left = len(unique) - MAX_SHOWN_REASONS
    more = [f"{left} more"] if left > 0 else []
    return " and ".join([*unique[:MAX_SHOWN_REASONS], *more])


def _needs(gate: Gate, result: GateResult, facts: _Facts, *, wanted: bool = True) -> list[str]:
    """The conditions that have to change before a gate is met; before it is unmet if not `wanted`.
    Each completes "waiting for …". `result` is that of the gate.
    """
    if result.met is wanted and not result.has_error:
        return []
    if not result.parts:
        return _leaf_needs(gate, result, facts, wanted=wanted)
    match gate:
        case Not(part):
            return _needs(part, result.parts[0], facts, wanted=not wanted)
        case AllOf(parts) | AnyOf(parts):
            needs = [
                _needs(part, part_result, facts, wanted=wanted)
                for part, part_result in zip(parts, result.parts, strict=True)
            ]
            if isinstance(gate, AllOf) is wanted:
                return list(chain.from_iterable(needs))
            return [" or ".join(" and ".join(each) for each in needs if each)]
    return _leaf_needs(gate, result, facts, wanted=wanted)


def _leaf_needs(gate: Gate, result: GateResult, facts: _Facts, *, wanted: bool) -> list[str]:
    if isinstance(gate, When) and facts.state.is_set(gate.node):
        end = ", which raises an error" if result.has_error else f" to be {wanted}".lower()
        return [f"{gate.text} of `{gate.node}`{end}"]
    return [_value_need(name, facts) for name in gate.nodes]


def _value_need(node: str, facts: _Facts) -> str:
    if facts.state.is_set(node):
        return f"`{node}` to be unset"
    if facts.graph.nodes[node].is_input:
        return f"input `{node}`"
    has_failed = facts.statuses[node] is NodeStatus.FAILED
    return f"node `{node}`{', which was given up' if has_failed else ''}"


def _unmet(result: GateResult, *, wanted: bool = True) -> Iterator[str]:
    """The texts of the conditions that keep a gate from being met."""
    if result.met is wanted:
        return
    if not result.parts:
        yield result.text
    for part in result.parts:
        yield from _unmet(part, wanted=wanted is not (result.text == NOT_TEXT))


# --- attempts ---


def _stale_text(node: Node, statuses: Mapping[str, NodeStatus]) -> str:
    changing = [
        f"node `{name}`"
        for name in node.upstream
        if statuses.get(name, NodeStatus.FRESH) not in SETTLED_STATUSES
    ]
    return f"out of date, waiting for {_join(changing)}"


def _explain_open(node: Node, state: ExecutionState) -> tuple[str, str, str | None]:
    attempt, record = state.open_attempts[node.name], state.node(node.name)
    number = _attempt_text(attempt, record)
    error = record.error if attempt.number > 1 else None
    if attempt.lease_state == MAP_OPEN:
        return "running", "being computed", error
    if attempt.lease_state == LEASED:
        return "running", f"being computed, {number}", error
    if attempt.lease_state == DELAYED:
        return "waiting", f"waiting for the time of its next try, {number}", error
    return "waiting", f"waiting for a worker, {number}", error


def _attempt_text(attempt: Attempt, record: NodeRecord) -> str:
    """The number of an attempt. Crashes and losses have budgets of their own and are counted
    apart.
    """
    if record.attempted_with != attempt.computed_with or not (record.crashes or record.lost):
        return f"attempt {attempt.number} of {attempt.spec.max_attempts}"
    return (
        f"attempt {attempt.number}: {record.failed_attempts} of {attempt.spec.max_attempts} failed,"
        f" {record.crashes} of {DEFAULT_BUDGET.max_crashes} crashed,"
        f" {record.lost} of {DEFAULT_BUDGET.max_lost} lost"
    )


def _given_up_text(node: Node, record: NodeRecord) -> str:
    """A map gets here if its list, or the size of its results, was refused: no attempt failed."""
    if node.kind is NodeKind.MAP:
        return "given up; change one of its inputs, or retry it"
    attempts = _pluralize(record.spent_attempts, "attempt")
    return f"given up after {attempts}; retry it, or change one of its inputs"


def _pluralize(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


# --- the tree ---

_MARKS = {True: "✓", False: "✗"}
_INDENT = "   "


def _tree_lines(explanation: Explanation) -> Iterator[str]:
    ended = f", {explanation.ended}" if explanation.ended else ""
    yield f"execution {explanation.execution}{ended}"
    for facts in explanation.nodes:
        yield f"{facts.node}: {facts.text}"
        if facts.error:
            yield f"{_INDENT}last error: {short_error(facts.error)}"
        if facts.gate is not None:
            yield from _gate_lines(facts.gate, depth=1)
    yield from _command_lines(explanation)


def _command_lines(explanation: Explanation) -> Iterator[str]:
    """The commands that help with errors and with nodes that were given up."""
    target = f"MODULE:FLOW {explanation.execution}"
    if any(facts.error for facts in explanation.nodes):
        yield f"errors in full: longwatch flow show {target} --errors"
    failed = [facts.node for facts in explanation.nodes if facts.state == "failed"]
    if failed:
        node = failed[0] if len(failed) == 1 else "NODE"
        yield f"try again: longwatch flow retry {target} {node}"


def _gate_lines(result: GateResult, *, depth: int) -> Iterator[str]:
    result = _plain(result)
    yield f"{_INDENT * depth}{_MARKS[result.met]} {result.text}"
    if result.error:
        yield f"{_INDENT * (depth + 1)}error: {short_error(result.error)}"
    for part in result.parts:
        yield from _gate_lines(part, depth=depth + 1)


def _plain(result: GateResult) -> GateResult:
    """A condition in plain words: a group of one is that one, and a negated condition says how it
    is, met or not: "✗ stop is set" if it has to be unset.
    """
    if len(result.parts) != 1:
        return result
    part = _plain(result.parts[0])
    if result.text != NOT_TEXT:
        return part
    if part.parts and part.text in _NEGATIONS:
        return part._replace(met=result.met, text=_NEGATIONS[part.text])
    return result._replace(parts=(part,)) if part.parts else part._replace(met=result.met)


_NEGATIONS = {
    "all of": "not all of",
    "any of": "none of",
    "not all of": "all of",
    "none of": "any of",
}
