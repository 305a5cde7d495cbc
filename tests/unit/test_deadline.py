from __future__ import annotations

import dataclasses
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.deadline import Deadline
from longwatch.core.fake_clock import FakeClock

seconds = st.floats(0, 1e6)


def test_what_remains_shrinks_with_time_and_stops_at_zero() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10, clock)
    left = [deadline.remaining()]
    for _ in range(3):
        clock.advance(4)
        left.append(deadline.remaining())

    assert [10, 6, 2, 0] == left


def test_a_deadline_has_expired_at_exactly_its_moment() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10, clock)
    clock.advance(9.5)
    before = deadline.expired
    clock.advance(0.5)

    assert (False, True) == (before, deadline.expired)


@pytest.mark.parametrize(
    "never",
    [
        Deadline.never(FakeClock()),
        Deadline.after(None, FakeClock()),
        Deadline.after(inf, FakeClock()),
    ],
)
def test_never_neither_expires_nor_counts_down(never: Deadline) -> None:
    assert (False, None) == (never.expired, never.remaining())


@pytest.mark.parametrize("late", [0, -1])
def test_no_time_at_all_has_passed_already(late: float) -> None:
    deadline = Deadline.after(late, FakeClock())

    assert (True, 0.0) == (deadline.expired, deadline.remaining())


def test_a_cap_counts_from_now_and_not_from_the_start() -> None:
    clock = FakeClock()
    deadline = Deadline.after(10, clock)
    clock.advance(7)

    assert [2, 3, 3] == [
        deadline.capped(2).remaining(),
        deadline.capped(5).remaining(),
        deadline.capped(None).remaining(),
    ]


def test_never_can_be_capped() -> None:
    assert 5 == Deadline.never(FakeClock()).capped(5).remaining()


@given(a=seconds, b=seconds)
def test_the_earlier_of_two_is_the_same_whichever_is_asked(a: float, b: float) -> None:
    clock = FakeClock()
    one, other = Deadline.after(a, clock), Deadline.after(b, clock)

    assert Deadline.after(min(a, b), clock) == one.earlier(other) == other.earlier(one)


@given(total=seconds, cap=seconds, passed=seconds)
def test_a_cap_never_gives_more_time(total: float, cap: float, passed: float) -> None:
    clock = FakeClock()
    deadline = Deadline.after(total, clock)
    clock.advance(passed)

    assert deadline.capped(cap).at <= deadline.at
    assert (deadline.remaining() == 0) == deadline.expired


def test_a_deadline_cannot_be_moved() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Deadline.after(1, FakeClock()).at = 5  # type: ignore[misc]


def test_a_moment_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="must be a number"):
        Deadline.after(nan, FakeClock())
