"""Graphs that are rebuilt from their definitions in the store."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.flow import Graph, and_, not_, or_, when
from longwatch.flow.attempt import Attempt
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.explanation import explain
from longwatch.flow.gates import Gate
from longwatch.flow.propagation import propagate
from longwatch.flow.stored_graph import OPAQUE_TEXT, rebuild_graph

NAMES = ("a", "b", "c", "d")


def letters() -> Graph:
    """One node of every kind."""
    graph = Graph("letters", version="3")
    for name in NAMES:
        graph.input(name)
    graph.tick_recurring("hourly", after=["a"], every=3600.0)
    graph.tick_once("later", after=["hourly"], delay=5.0)
    graph.compute(after=["a", or_("b", not_("c"))], name="draft")(lambda a: a)
    graph.map("each", over="d", function=lambda item: item, after=["a"])
    graph.mutate(after=["draft"], writes="d", new_revision=True, name="correct")(lambda draft: 1)
    graph.historian("past", of=["b", "draft"])
    graph.archive("shelve", after=["each", when("draft", bool, text="is final")])
    return graph


def state_of(graph: Graph, **values: str) -> ExecutionState:
    """An execution with these inputs, as JSON, after a propagation."""
    state = ExecutionState(1, "e1", GraphId(graph.name, graph.version))
    for name, text in values.items():
        state.set_value(name, text)
    propagate(graph, state, dict.fromkeys(graph.nodes, 1), now=1000.0)
    state.open_attempts |= {name: _attempt(name, state) for name in state.new_attempts}
    return state


def definitions(graph: Graph) -> dict[str, str]:
    return {name: node.definition for name, node in graph.nodes.items()}


def test_every_kind_of_node_comes_back_with_its_definition() -> None:
    graph = letters()
    rebuilt = rebuild_graph(definitions(graph), state_of(graph))
    assert definitions(graph) == definitions(rebuilt.graph)
    assert (True, True) == (rebuilt.has_tests, rebuilt.is_defined)


@pytest.mark.parametrize("values", [{}, {"a": "1"}, {"a": "1", "b": "2"}, {"a": "1", "c": "2"}])
def test_an_explanation_without_tests_is_that_of_the_code(values: dict[str, str]) -> None:
    graph = Graph("plain", version="1")
    for name in NAMES:
        graph.input(name)
    graph.compute(after=["a", or_("b", not_("c"))], name="draft")(lambda a: a)
    graph.compute(after=["d", "draft"], name="final")(lambda draft: draft)
    state = state_of(graph, **values)
    rebuilt = rebuild_graph(definitions(graph), state)
    assert _explained(graph, state) == _explained(rebuilt.graph, state)


@pytest.mark.parametrize("text", ["1", "0"])
def test_the_outcome_of_a_test_follows_from_the_state(text: str) -> None:
    graph = Graph("tests", version="1")
    graph.input("a")
    graph.compute(after=[when("a", bool, text="is true")], name="yes")(lambda: 1)
    graph.compute(after=[not_(when("a", bool, text="is true"))], name="no")(lambda: 1)
    state = state_of(graph, a=text)
    rebuilt = rebuild_graph(definitions(graph), state)
    assert _met(graph, state) == _met(rebuilt.graph, state)


@pytest.mark.parametrize(("text", "expected"), [("1", [True, True]), ("0", [False, False])])
def test_of_several_tests_all_are_assumed_to_agree_with_the_state(
    text: str, expected: list[bool]
) -> None:
    graph = Graph("tests", version="1")
    graph.input("a")
    both = [when("a", bool, text="is_true"), when("a", bool, text="is_large")]
    combine = or_ if text == "1" else and_
    graph.compute(after=[combine(*both)], name="node")(lambda: 1)
    state = state_of(graph, a=text)
    gate = rebuild_graph(definitions(graph), state).graph.nodes["node"].gate
    assert expected == [part.met for part in gate.evaluate(state).parts]


def test_a_test_whose_name_cannot_be_read_becomes_a_condition_of_the_code() -> None:
    graph = Graph("odd", version="1")
    graph.input("a")
    graph.compute(after=[when("a", bool, text="is :) or and")], name="yes")(lambda: 1)
    rebuilt = rebuild_graph(definitions(graph), state_of(graph))
    assert ("a",) == rebuilt.graph.nodes["yes"].upstream
    assert OPAQUE_TEXT in rebuilt.graph.nodes["yes"].relation


def test_a_graph_without_a_definition_has_the_nodes_that_were_used() -> None:
    graph = letters()
    state = state_of(graph, a="1", b="2")
    rebuilt = rebuild_graph({}, state)
    assert not rebuilt.is_defined
    assert {"a", "b", "c"} == set(rebuilt.graph.nodes["draft"].upstream)


def _gates() -> st.SearchStrategy[Gate | str]:
    leaves: st.SearchStrategy[Any] = st.sampled_from(NAMES)

    def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        several = st.lists(inner, min_size=1, max_size=3)
        return (
            inner.map(not_)
            | several.map(lambda parts: and_(*parts))
            | several.map(lambda parts: or_(*parts))
        )

    return st.recursive(leaves, combined, max_leaves=8)


@given(gates=st.lists(_gates(), min_size=1, max_size=2))
def test_any_gate_comes_back_with_the_same_truth_table(gates: Iterable[Gate | str]) -> None:
    graph = Graph("any", version="1")
    for name in NAMES:
        graph.input(name)
    graph.compute(after=gates, name="node")(lambda: 1)
    rebuilt = rebuild_graph(definitions(graph), state_of(graph)).graph
    assert graph.nodes["node"].upstream == rebuilt.nodes["node"].upstream
    for chosen in product((False, True), repeat=len(NAMES)):
        values = {name: "1" for name, is_set in zip(NAMES, chosen, strict=True) if is_set}
        state = ExecutionState(1, "e1", GraphId("any", "1"))
        for name, text in values.items():
            state.set_value(name, text)
        assert _met(graph, state) == _met(rebuilt, state)


def _explained(graph: Graph, state: ExecutionState) -> tuple[dict[str, str], list[str]]:
    """The state of every node, and all lines; the stored order of conditions is another one."""
    found = explain(graph, state)
    return {each.node: each.state for each in found.nodes}, sorted(str(found).splitlines())


def _met(graph: Graph, state: ExecutionState) -> dict[str, bool]:
    return {node.name: node.gate.is_met(state) for node in graph.computed_nodes}


def _attempt(name: str, state: ExecutionState) -> Attempt:
    new = state.new_attempts[name]
    return Attempt(1, name, 0, new.computed_with, new.number, new.spec)
