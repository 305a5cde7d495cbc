"""The keys of values sort like the values, and databases can store them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.flow.search_key import MAX_KEY_LENGTH, full_key, prefix_bounds, search_key

NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30),
    st.integers(-1000, 1000),
    st.floats(allow_nan=False, allow_infinity=False),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def key(value: Any) -> bytes:
    return full_key(value).encode()


@pytest.mark.parametrize(
    "values",
    [
        [-1e300, -(10**20), -12.5, -12, -1.25, -1.2, -1, -0.5, -1e-9, 0, 1e-9, 0.5, 1, 1.2, 1.25],
        [1, 9, 10, 11, 12.5, 99, 100, 2**53, 2**53 + 1, 2**53 + 2, 10**20, 1e300],
        [
            None,
            False,
            True,
            -5,
            5,
            "",
            "\0",
            "\0a",
            "\1",
            "\2",
            "10",
            "9",
            "a",
            "ab",
            "b",
            "é",
            "😀",
        ],
    ],
)
def test_keys_sort_like_values(values: list[Any]) -> None:
    for low, high in pairwise(values):
        assert key(low) < key(high), (low, high)


@pytest.mark.parametrize(("one", "same"), [(1, 1.0), (0, -0.0), (1500, 1.5e3), (10**22, 1e22)])
def test_equal_numbers_have_one_key(one: float, same: float) -> None:
    assert full_key(one) == full_key(same)


@given(NUMBERS, NUMBERS)
def test_numbers_sort_by_their_decimal_value(one: float, other: float) -> None:
    from decimal import Decimal  # noqa: PLC0415 - the reference of this test alone

    first, second = Decimal(repr(one)), Decimal(repr(other))
    assert (first < second, first == second) == (key(one) < key(other), key(one) == key(other))


@given(TEXTS, TEXTS)
def test_texts_sort_by_code_points_and_have_no_zero_byte(one: str, other: str) -> None:
    assert (one < other) == (key(one) < key(other))
    assert "\0" not in full_key(one)


@given(TEXTS, TEXTS)
def test_the_bounds_of_a_prefix_hold_exactly_the_texts_that_begin_with_it(
    prefix: str, text: str
) -> None:
    low, high = prefix_bounds(prefix)
    for each in (text, prefix + text):
        assert each.startswith(prefix) == (low.encode() <= key(each) < high.encode())


def test_the_bounds_of_a_prefix_skip_code_points_that_are_none() -> None:
    low, high = prefix_bounds("\ud7ff")
    assert low.encode() < key("\ud7ffz") < high.encode() <= key("\ue000")
    assert prefix_bounds("a\U0010ffff")[1] == full_key("b")


@pytest.mark.parametrize("value", [[], [1], {}, {"a": 1}])
def test_lists_and_objects_have_none(value: Any) -> None:
    assert search_key(json.dumps(value)) is None
    assert search_key(None) is None


def test_a_long_text_has_a_part_of_its_key() -> None:
    assert MAX_KEY_LENGTH == len(search_key(json.dumps("x" * 1000)) or "")
    assert full_key("x" * 10) == search_key(json.dumps("x" * 10))
