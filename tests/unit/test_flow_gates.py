"""Conditions on the nodes before a node: when they are met, and what they say about it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.flow import GraphError, and_, not_, or_, when
from longwatch.flow.gates import AllOf, AnyOf, Gate, GateResult, IsSet, Not, When, to_gate

NAMES = ("a", "b", "c")


class CountingValues:
    """A view over plain values; it counts what it was asked for."""

    def __init__(self, values: dict[str, Any] | None = None) -> None:
        self.values = values or {}

    def is_set(self, node: str) -> bool:
        return node in self.values

    def value(self, node: str) -> Any:
        return self.values[node]


def positive(value: Any) -> bool:
    return bool(value > 0)


GATES = st.recursive(
    st.sampled_from([*map(IsSet, NAMES), *(When(name, positive, "positive") for name in NAMES)]),
    lambda inner: st.one_of(
        st.builds(lambda parts: and_(*parts), st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: or_(*parts), st.lists(inner, min_size=1, max_size=3)),
        st.builds(not_, inner),
    ),
    max_leaves=8,
)
VALUES = st.dictionaries(st.sampled_from(NAMES), st.sampled_from([-1, 0, 1, None, "text"]))


def reference(gate: Gate, values: dict[str, Any]) -> bool:
    """What a gate means, said again."""
    match gate:
        case IsSet(node):
            return node in values
        case When(node):
            return isinstance(values.get(node), int) and values[node] > 0
        case AllOf(parts):
            return all(reference(part, values) for part in parts)
        case AnyOf(parts):
            return any(reference(part, values) for part in parts)
        case Not(part):
            return not reference(part, values) and not raises(part, values)
    raise AssertionError(gate)


def raises(gate: Gate, values: dict[str, Any]) -> bool:
    """Whether a test in it does."""
    match gate:
        case When(node):
            return node in values and not isinstance(values[node], int)
        case AllOf(parts) | AnyOf(parts):
            return any(raises(part, values) for part in parts)
        case Not(part):
            return raises(part, values)
    return False


@given(GATES, VALUES)
def test_a_gate_is_met_exactly_when_its_words_say_so(gate: Gate, values: dict[str, Any]) -> None:
    assert reference(gate, values) == gate.is_met(CountingValues(values))


@given(GATES, VALUES)
def test_what_it_says_is_what_it_came_to(gate: Gate, values: dict[str, Any]) -> None:
    assert gate.is_met(CountingValues(values)) == gate.evaluate(CountingValues(values)).met


@given(GATES)
def test_it_names_every_node_it_looks_at_once(gate: Gate) -> None:
    asked: set[str] = set()

    class Noting(CountingValues):
        def is_set(self, node: str) -> bool:
            asked.add(node)
            return True

        def value(self, node: str) -> Any:
            return 1

    gate.evaluate(Noting())
    assert asked == set(gate.nodes)
    assert len(asked) == len(gate.nodes)


class TestFindings:
    def test_a_name_is_set_or_not(self) -> None:
        assert GateResult("a is set", met=True) == to_gate("a").evaluate(
            CountingValues({"a": None})
        )
        assert GateResult("a is not set", met=False) == to_gate("a").evaluate(CountingValues())

    def test_a_test_is_true_or_false_of_a_value(self) -> None:
        gate = when("a", positive)
        assert GateResult("positive of a is true", met=True) == gate.evaluate(
            CountingValues({"a": 1})
        )
        assert GateResult("positive of a is false", met=False) == gate.evaluate(
            CountingValues({"a": 0})
        )
        assert GateResult("a is not set", met=False) == gate.evaluate(CountingValues())

    def test_a_test_is_called_as_its_text_says(self) -> None:
        assert (
            "big of a is true"
            == when("a", positive, text="big").evaluate(CountingValues({"a": 1})).text
        )
        assert (
            "the test of a is true"
            == when("a", lambda value: value).evaluate(CountingValues({"a": 1})).text
        )
        assert (
            "the test of a is true"
            == when("a", _Callable()).evaluate(CountingValues({"a": 1})).text
        )

    def test_a_tree_comes_as_a_tree(self) -> None:
        found = to_gate(["a", or_("b", not_("c"))]).evaluate(CountingValues({"a": 1, "c": 1}))
        parts = (
            GateResult("b is not set", met=False),
            GateResult("not", met=False, parts=(GateResult("c is set", met=True),)),
        )
        assert (
            GateResult(
                "all of",
                met=False,
                parts=(
                    GateResult("a is set", met=True),
                    GateResult("any of", met=False, parts=parts),
                ),
            )
            == found
        )


class _Callable:
    def __call__(self, value: Any) -> bool:
        return bool(value)


class TestAPredicateThatRaises:
    def test_is_not_met_and_says_so(self) -> None:
        found = when("a", positive).evaluate(CountingValues({"a": "text"}))
        assert not found.met
        assert "positive of a raised an error" == found.text
        assert found.error.startswith("TypeError: ")

    def test_whose_error_cannot_be_shown_is_not_met_all_the_same(self) -> None:
        class Unspeakable(Exception):  # noqa: N818 - an error by its nature
            def __str__(self) -> str:
                raise ValueError("no words")

        def raising(_: Any) -> bool:
            raise Unspeakable

        found = when("a", raising).evaluate(CountingValues({"a": 1}))
        assert not found.met
        assert found.error.startswith("Unspeakable")

    def test_whose_answer_has_no_truth_is_not_met(self) -> None:
        class Neither:
            def __bool__(self) -> bool:
                raise ValueError("neither")

        found = when("a", lambda _: Neither()).evaluate(CountingValues({"a": 1}))
        assert "ValueError: neither" == found.error


class TestMaking:
    def test_after_takes_one_condition_or_several(self) -> None:
        gate = when("b", positive)
        assert IsSet("a") == to_gate("a")
        assert gate is to_gate(gate)
        parts: list[str | Gate] = ["a", gate]
        assert (
            AllOf((IsSet("a"), gate))
            == to_gate(parts)
            == to_gate(tuple(parts))
            == to_gate(iter(parts))
        )

    @pytest.mark.parametrize("wrong", [3, None, [3], ["a", None], b"a"])
    def test_after_takes_nothing_else(self, wrong: Any) -> None:
        with pytest.raises(GraphError, match="names of nodes"):
            to_gate(wrong)

    @pytest.mark.parametrize("word", [and_, or_])
    def test_a_condition_of_nothing_is_refused(self, word: Any) -> None:
        with pytest.raises(GraphError, match=rf"{word.__name__}\(\) needs at least one condition"):
            word()

    @pytest.mark.parametrize("word", [and_, or_, not_])
    def test_a_part_that_is_no_condition_is_refused(self, word: Any) -> None:
        with pytest.raises(GraphError, match="3 is neither"):
            word(3)

    @pytest.mark.parametrize(
        "arguments", [("a", 3), (3, positive), (when("a", positive), positive)]
    )
    def test_when_takes_a_name_and_a_function(self, arguments: Any) -> None:
        with pytest.raises(GraphError, match=r"when\(\) takes the name of a node and a function"):
            when(*arguments)
