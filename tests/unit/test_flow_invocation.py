"""What the function of a node is called with, and what becomes of its result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from longwatch.errors import PermanentError
from longwatch.flow import compute, or_
from longwatch.flow.invocation import MAX_VALUE_BYTES, arguments, encode_result

if TYPE_CHECKING:
    from decimal import Decimal

CONTEXT = object()


@dataclass
class Site:
    name: str
    size: int = 0


def arguments_of(function: Any, after: Any = ("a", "b"), /, **values: Any) -> dict[str, Any]:
    """The arguments of a function after these nodes, with these values set."""
    node = compute("x", or_(*after), function)
    return arguments(
        node, json.dumps({name: json.dumps(value) for name, value in values.items()}), CONTEXT
    )


class TestArguments:
    def test_are_the_nodes_that_it_names(self) -> None:
        assert {"a": 1} == arguments_of(lambda a: a, a=1, b=2)
        assert {"a": 1, "b": 2} == arguments_of(lambda a, b: (a, b), a=1, b=2)
        assert {} == arguments_of(lambda: 0, a=1, b=2)

    def test_are_all_nodes_for_one_that_takes_all(self) -> None:
        assert {"a": 1, "b": 2} == arguments_of(lambda **rest: rest, a=1, b=2)

    def test_a_node_that_is_not_set_is_none_or_the_default_of_its_parameter(self) -> None:
        assert {"a": None, "b": 2} == arguments_of(lambda a, b: (a, b), b=2)
        assert {"b": 2} == arguments_of(lambda b, a=5: (a, b), b=2)
        assert {"b": 2} == arguments_of(lambda **rest: rest, b=2)

    def test_a_value_that_is_none_is_given_as_none(self) -> None:
        assert {"a": None} == arguments_of(lambda a=5: a, a=None)

    def test_the_context_comes_only_to_who_names_it(self) -> None:
        assert {"a": 1, "context": CONTEXT} == arguments_of(lambda a, context: (a, context), a=1)
        assert {"a": 1, "context": CONTEXT} == arguments_of(
            lambda a, context=None: (a, context), a=1
        )
        assert {"a": 1} == arguments_of(lambda **rest: rest, a=1)

    def test_are_of_the_types_that_it_says(self) -> None:
        def typed(a: Site, b: set[int]) -> None: ...

        assert {"a": Site("x", 3), "b": {1, 2}} == arguments_of(
            typed, a={"name": "x", "size": 3}, b=[1, 2]
        )

    def test_are_as_they_come_where_a_type_is_only_known_to_a_checker(self) -> None:
        def typed(a: Decimal) -> None: ...

        assert {"a": "1.5"} == arguments_of(typed, a="1.5")

    @pytest.mark.parametrize("value", ["text", None, {"size": 3}])
    def test_one_that_is_not_of_its_type_never_will_be(self, value: Any) -> None:
        def typed(a: Site) -> None: ...

        with pytest.raises(
            PermanentError, match="the value of 'a' does not fit the function of node 'x': "
        ):
            arguments_of(typed, a=value)

    def test_a_type_that_nothing_can_be_read_as_says_so(self) -> None:
        def typed(a: Any, b: _Foreign) -> None: ...

        with pytest.raises(
            PermanentError, match="the value of 'b' does not fit the function of node 'x': "
        ):
            arguments_of(typed, a=1, b={})


class _Foreign:
    pass


class TestResults:
    @pytest.mark.parametrize("result", [None, 0, "", [], {}, {"a": [1, None]}, "€", True, 2**70])
    def test_come_back_as_they_were(self, result: Any) -> None:
        assert result == json.loads(encode_result(compute("x", "a", lambda a: a), result))

    def test_of_data_classes_are_kept_as_their_fields(self) -> None:
        assert {"name": "x", "size": 0} == json.loads(
            encode_result(compute("x", "a", lambda a: a), Site("x"))
        )

    @pytest.mark.parametrize(
        "result",
        [
            object(),
            float("nan"),
            [float("inf")],
            {1, object()},
            "\ud800",
            lambda: 0,
            (each for each in "x"),
        ],
    )
    def test_that_cannot_be_kept_never_will_be(self, result: Any) -> None:
        with pytest.raises(
            PermanentError, match="the result of node 'x' cannot be kept: a value of type "
        ):
            encode_result(compute("x", "a", lambda a: a), result)

    def test_that_are_too_large_say_what_to_do(self) -> None:
        with pytest.raises(
            PermanentError,
            match="is larger than 16777216; store it elsewhere and let the value say where",
        ):
            encode_result(compute("x", "a", lambda a: a), "x" * MAX_VALUE_BYTES)

    def test_that_refer_to_themselves_never_will_be(self) -> None:
        loop: list[Any] = []
        loop.append(loop)
        with pytest.raises(PermanentError, match="the result of node 'x' cannot be kept: "):
            encode_result(compute("x", "a", lambda a: a), loop)
