from __future__ import annotations

import pytest

from longwatch.engine.poll_budget import PollBudget
from longwatch.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def poll_budget(clock: FakeClock, polls: int, *, wait: float = 20.0, slots: int = 4) -> PollBudget:
    return PollBudget(polls, poll_wait=wait, slots=slots, clock=clock)


def test_a_poll_that_gave_rows_counts_at_once(clock: FakeClock) -> None:
    some = poll_budget(clock, 2)
    some.record(3)
    assert not some.is_spent
    some.record(1)
    assert some.is_spent


def test_a_poll_that_gave_nothing_counts_when_its_wait_is_over(clock: FakeClock) -> None:
    some = poll_budget(clock, 1)
    some.record(0)
    clock.advance(19.5)
    some.record(0)
    assert (False, 0.5) == (some.is_spent, some.time_left())
    clock.advance(0.5)
    some.record(0)
    assert some.is_spent


def test_the_wait_of_each_poll_begins_with_it(clock: FakeClock) -> None:
    some = poll_budget(clock, 3)
    clock.advance(15.0)
    assert 5.0 == some.time_left()
    some.record(1)
    assert 20.0 == some.time_left()
    clock.advance(25.0)
    assert 0.0 == some.time_left()
    some.record(0)
    assert 20.0 == some.time_left()


def test_without_a_wait_every_look_counts(clock: FakeClock) -> None:
    some = poll_budget(clock, 2, wait=0.0)
    some.record(0)
    some.record(0)
    assert some.is_spent


def test_one_that_counts_takes_no_more_than_its_slots_can_run(clock: FakeClock) -> None:
    some = poll_budget(clock, 2)
    assert [4, 1, 0, 2] == [
        some.cap(70, held=0),
        some.cap(70, held=3),
        some.cap(70, held=9),
        some.cap(2, held=0),
    ]


def test_one_that_is_over_takes_nothing_more(clock: FakeClock) -> None:
    some = poll_budget(clock, 1)
    some.record(1)
    assert 0 == some.cap(70, held=0)


def test_one_that_may_not_poll_at_all_is_over_at_once(clock: FakeClock) -> None:
    assert poll_budget(clock, 0).is_spent
