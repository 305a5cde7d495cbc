"""Rebuilds a graph from what the store has of it, for processes without its code.

The store has the kind and the gate of every node as text (`Node.definition`), so a picture and an
explanation need no code. It does not have the tests of `when()`: their outcome is inferred from the
state of the execution. A node that is set, has an open attempt or was given up has met its gate;
any other has not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import msgspec

from longwatch.errors import GraphError
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.gates import AllOf, AnyOf, Gate, IsSet, Not, When
from longwatch.flow.graph import Graph
from longwatch.flow.graph_evolution import Definitions
from longwatch.flow.histories import HistorianNode
from longwatch.flow.mutations import MutateNode
from longwatch.flow.nodes import Node, NodeKind

OPAQUE_TEXT = "a condition of the code"
"""The name of a test in a gate that cannot be read back from its text."""
_MAX_TESTS = 6
"""Tests of a gate whose outcomes are tried in all combinations; more are assumed to be equal."""
_NAME = re.compile(r"\w+")
_NEW_REVISION = " with a new revision"


class StoredGraph(NamedTuple):
    """A graph without functions. `has_tests`: it has tests whose outcome is inferred. `is_defined`:
    the store has its definition; otherwise it has the nodes that the execution has used.
    """

    graph: Graph
    has_tests: bool
    is_defined: bool


@dataclass(slots=True)
class _Tests:
    """The tests of one node, with the outcomes that are assumed."""

    outcomes: list[bool] = field(default_factory=list)

    def add(self, node: str, text: str) -> When:
        number = len(self.outcomes)
        self.outcomes.append(False)
        return When(node, self._predicate(number), text)

    def _predicate(self, number: int) -> Callable[[Any], bool]:
        return lambda _: self.outcomes[number]


def rebuild_graph(definitions: Definitions, state: ExecutionState) -> StoredGraph:
    """Rebuild the graph of an execution. Without definitions it has the nodes that the execution
    has used. Raises GraphError for definitions that make no graph.
    """
    known = definitions or dict(_used_definitions(state))
    tests: dict[str, _Tests] = {}
    nodes = [
        _rebuild_node(name, text, known, tests.setdefault(name, _Tests()))
        for name, text in known.items()
    ]
    try:
        graph = Graph(state.graph_id.graph, version=state.graph_id.version, nodes=nodes)
    except RecursionError:  # a damaged definition
        raise GraphError(f"the definition of graph {state.graph_id.graph!r} is too deep") from None
    for node in graph.computed_nodes:
        _infer_outcomes(node, tests[node.name], state)
    return StoredGraph(
        graph,
        has_tests=any(each.outcomes for each in tests.values()),
        is_defined=bool(definitions),
    )


def input_names(computed_with: str | None) -> list[str]:
    """The upstream nodes in the `computed_with` of an attempt or of a value."""
    try:
        return list(msgspec.json.decode(computed_with or "{}", type=dict[str, int]))
    except msgspec.DecodeError:
        return []


def _used_definitions(state: ExecutionState) -> Iterator[tuple[str, str]]:
    """Definitions of the nodes that an execution has used."""
    found: dict[str, str] = {}
    for name, record in state.nodes.items():
        upstream = input_names(record.computed_with) or input_names(record.attempted_with)
        found |= {each: str(NodeKind.INPUT) for each in upstream if each not in found}
        is_input = record.computed_with is None and record.attempted_with is None
        kind = NodeKind.INPUT if is_input else NodeKind.COMPUTE
        found[name] = f"{kind} after {' and '.join(upstream)}" if upstream else str(kind)
    for name, attempt in state.open_attempts.items():
        upstream = input_names(attempt.computed_with)
        found |= {each: str(NodeKind.INPUT) for each in upstream if each not in found}
        found[name] = f"{NodeKind.COMPUTE} after {' and '.join(upstream)}"
    yield from found.items()


# --- nodes ---


def _rebuild_node(name: str, text: str, known: Mapping[str, str], tests: _Tests) -> Node:
    head, _, rest = text.partition(" ")
    try:
        kind = NodeKind(head)
    except ValueError:
        kind = NodeKind.COMPUTE
    if kind is NodeKind.HISTORIAN:
        names = tuple(each for each in _NAME.findall(rest.removeprefix("of ")) if each in known)
        return HistorianNode(name, kind, of=names)
    over, rest = _split_over(rest) if kind is NodeKind.MAP else (None, rest)
    writes = ""
    if kind is NodeKind.MUTATE:
        rest, _, writes = rest.rpartition(", writes ")
    gate = _parse_gate(rest.removeprefix("after "), known, tests) if rest else AllOf(())
    if kind is NodeKind.MUTATE:
        is_new = writes.endswith(_NEW_REVISION)
        target = writes.removesuffix(_NEW_REVISION)
        return MutateNode(name, kind, gate, writes=target, new_revision=is_new)
    return Node(name, kind, gate, over=over)


def _split_over(rest: str) -> tuple[str, str]:
    over, _, gate = rest.removeprefix("over ").partition(" after ")
    return over, f"after {gate}"


# --- gates ---


def _parse_gate(text: str, known: Collection[str], tests: _Tests) -> Gate:
    """The gate that `normal_gate_text` has written. A gate that cannot be read, because the name of
    a test has words of its own, becomes an opaque condition on the nodes that it names.
    """
    try:
        return _parse(text, known, tests)
    except (ValueError, RecursionError):
        tests.outcomes.clear()
        names = dict.fromkeys(each for each in _NAME.findall(text) if each in known)
        return AllOf(tuple(tests.add(each, OPAQUE_TEXT) for each in names))


def _parse(text: str, known: Collection[str], tests: _Tests) -> Gate:
    for word, combine in ((" or ", AnyOf), (" and ", AllOf)):
        parts = _split_outside(text, word)
        if len(parts) > 1:
            return combine(tuple(_parse(each, known, tests) for each in parts))
    if text in known:
        return IsSet(text)
    if text.startswith("not "):
        return Not(_parse(text.removeprefix("not "), known, tests))
    if text.startswith("(") and text.endswith(")"):
        return _parse(text[1:-1], known, tests)
    name, _, node = text.removesuffix(")").rpartition("(")
    if text.endswith(")") and node in known:
        return tests.add(node, name)
    raise ValueError(text)


def _split_outside(text: str, word: str) -> list[str]:
    """The parts of a text between a word that is in no parentheses."""
    parts, depth, begin, place = [], 0, 0, 0
    while place < len(text):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth < 0:
            raise ValueError(text)
        if depth == 0 and text.startswith(word, place):
            parts.append(text[begin:place])
            begin = place + len(word)
        place += 1
    return [*parts, text[begin:]]


# --- outcomes of tests ---


def _infer_outcomes(node: Node, tests: _Tests, state: ExecutionState) -> None:
    """Assume outcomes of the tests of a node with which its gate is as the state shows it."""
    count = len(tests.outcomes)
    if not count:
        return
    is_met = _has_met_gate(node, state)
    likely = (is_met, not is_met)
    combinations = (
        product(likely, repeat=count)
        if count <= _MAX_TESTS
        else ((outcome,) * count for outcome in likely)
    )
    for outcomes in combinations:
        tests.outcomes[:] = outcomes
        if node.gate.is_met(state) is is_met:
            return


def _has_met_gate(node: Node, state: ExecutionState) -> bool:
    record = state.nodes.get(node.name)
    return (
        node.name in state.open_attempts
        or state.is_set(node.name)
        or (record is not None and record.failed)
    )
