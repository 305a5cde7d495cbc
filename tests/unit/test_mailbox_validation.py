from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import InvalidParameterError, LongwatchError
from longwatch.mailbox import MailboxLimits, validation

LIMITS: list[tuple[str, Callable[[Any], float | None], float, float]] = [
    ("visibility_timeout", validation.validate_visibility, 0.0, 43_200.0),
    ("wait_time_seconds", validation.validate_wait, 0.0, inf),
    ("delay_seconds", validation.validate_delay, 0.0, 366 * 86_400.0),
    ("expires_in", validation.validate_expiry, 0.001, 366 * 86_400.0),
]
every_duration = pytest.mark.parametrize(
    ("name", "check", "least", "most"), LIMITS, ids=[limit[0] for limit in LIMITS]
)
NAMES = st.from_regex(r"[A-Za-z0-9._:/-]{1,200}", fullmatch=True).filter(
    lambda name: not name.endswith(".dead")
)


@every_duration
def test_a_duration_at_its_bounds_is_taken(
    name: str, check: Callable[[Any], float], least: float, most: float
) -> None:
    assert [least, most, 1.0] == [check(least), check(most), check(1)]


@every_duration
@pytest.mark.parametrize("value", [-1, -0.001, -inf, nan, True, False, "5", None, [], 5j])
def test_what_is_no_duration_is_refused_by_name(
    name: str, check: Callable[[Any], float | None], least: float, most: float, value: Any
) -> None:
    if value is None and name == "expires_in":
        assert check(None) is None
        return
    with pytest.raises(InvalidParameterError, match=name) as refused:
        check(value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(
    ("name", "check", "most"),
    [(name, check, most) for name, check, _, most in LIMITS if most < inf],
)
def test_a_duration_above_its_bound_is_refused_with_the_bound(
    name: str, check: Callable[[Any], float], most: float
) -> None:
    for value in (most + 0.001, 10**400, inf):
        with pytest.raises(InvalidParameterError, match=f"{name} must be 0 to {most:.0f} seconds"):
            check(value)


def test_any_wait_is_taken_also_for_ever() -> None:
    assert [inf, inf] == [validation.validate_wait(inf), validation.validate_wait(10**400)]


def test_something_that_expires_at_once_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="more than 0"):
        validation.validate_expiry(0)


@given(count=st.integers(1, 1000))
def test_a_count_within_its_bounds_is_taken(count: int) -> None:
    assert count == validation.validate_max_messages(count)


@pytest.mark.parametrize("count", [0, -1, 1001, 1.0, True, "1", None])
def test_a_count_outside_its_bounds_is_refused_with_them(count: Any) -> None:
    with pytest.raises(
        InvalidParameterError, match="max_messages must be a whole number from 1 to 1000"
    ):
        validation.validate_max_messages(count)


@given(name=NAMES)
def test_a_plain_name_is_taken(name: str) -> None:
    assert name == validation.validate_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "a\n",
        "grün",
        "jobs.dead",
        ".dead",
        "x" * 201,
        "a\\b",
        "a%",
        "٣",
        None,
        5,
        b"jobs",
    ],
)
def test_any_other_name_is_refused(name: Any) -> None:
    with pytest.raises(InvalidParameterError, match="a mailbox name has 1 to 200"):
        validation.validate_name(name)


@given(name=st.text())
def test_whatever_text_is_given_is_a_name_or_refused(name: str) -> None:
    try:
        assert name == validation.validate_name(name)
    except InvalidParameterError:
        return


@given(key=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_any_text_that_can_be_stored_is_a_key_and_an_id(key: str) -> None:
    assert [[key, None], key] == [
        validation.validate_dedupe_keys((key, None), count=2),
        validation.validate_message_id(key),
    ]


NO_KEYS = ["", "x" * 1001, "\ud800", "a\0b", b"x", 5, True, object(), [], {}]
unfit = pytest.mark.parametrize("value", NO_KEYS, ids=lambda value: repr(value)[:12])


@unfit
def test_what_is_no_key_or_id_is_refused_with_the_bound(value: Any) -> None:
    with pytest.raises(
        InvalidParameterError, match=r"^dedupe_key must be text of 1 to 1000 characters"
    ):
        validation.validate_dedupe_keys([value], count=1)
    with pytest.raises(
        InvalidParameterError, match=r"^message_id must be text of 1 to 1000 characters"
    ):
        validation.validate_message_id(value)


@pytest.mark.parametrize(
    ("keys", "told"),
    [(["a"], "not 1"), ("ab", "not 'ab'"), (5, "not 5"), ({"a", "b", "c"}, "not 3")],
    ids=["few", "text", "number", "many"],
)
def test_keys_are_one_for_each_body(keys: Any, told: str) -> None:
    with pytest.raises(
        InvalidParameterError, match=f"^dedupe_keys must be one for each of the 2 bodies, {told}$"
    ):
        validation.validate_dedupe_keys(keys, count=2)


@given(reason=st.text(st.characters(codec=None)))
def test_any_text_is_a_reason_in_a_form_that_every_store_takes(reason: str) -> None:
    kept = validation.validate_reason(reason)
    assert "\0" not in kept
    assert kept == kept.encode().decode()


def test_a_long_reason_is_cut() -> None:
    assert ["z" * 10_000, "short"] == [
        validation.validate_reason("z" * 10**6),
        validation.validate_reason("short"),
    ]


@pytest.mark.parametrize("reason", [b"x", 5, ValueError("x"), None])
def test_a_reason_that_is_no_text_is_refused_with_the_bound(reason: Any) -> None:
    with pytest.raises(
        InvalidParameterError,
        match=r"^reason must be text, of which 10000 characters are kept, not ",
    ):
        validation.validate_reason(reason)


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    "value", [10**5000, "x" * 10**6, Unspeakable()], ids=["digits", "letters", "unspeakable"]
)
def test_a_refusal_stays_short_whatever_was_given(value: Any) -> None:
    for check in (
        validation.validate_visibility,
        validation.validate_max_messages,
        validation.validate_name,
        validation.validate_message_id,
    ):
        with pytest.raises(InvalidParameterError) as refused:
            check(value)
        assert len(str(refused.value)) < 300


def test_a_refusal_is_a_value_error_and_of_our_tree() -> None:
    with pytest.raises(ValueError, match="max_messages") as refused:
        validation.validate_max_messages(0)
    assert isinstance(refused.value, LongwatchError)


@pytest.mark.parametrize(
    "limits",
    [{"max_failures": 0}, {"max_failures": None}, {"max_crashes": -1}, {"max_crashes": True},
     {"max_size": 0}, {"max_size": 1.5}, {"dead_retention": -1}, {"dead_retention": float("nan")}],
    ids=str,
)  # fmt: skip
def test_limits_outside_their_bounds_are_refused_where_they_are_made(
    limits: dict[str, Any],
) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{next(iter(limits))} must be "):
        MailboxLimits(**limits)
