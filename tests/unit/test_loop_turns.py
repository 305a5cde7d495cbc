from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from longwatch.core.deadline import Deadline
from longwatch.errors import ServiceStateError
from longwatch.host.errand import Errand
from longwatch.testing import FakeClock
from longwatch.work import turns as turns_module
from longwatch.work.turns import Turn, Turns, look_up
from snippet import running

PATIENCE = 10.0
A_MOMENT = 0.05
"""How long a turn that may have to wait is given to begin."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def turns(clock: FakeClock) -> Turns:
    return Turns("the loop", clock)


def after(seconds: float | None, clock: FakeClock) -> Deadline:
    return Deadline.after(seconds, clock)


def test_a_turn_is_present_from_its_beginning_to_its_end(turns: Turns) -> None:
    seen = [turns.present]
    with turns.one() as turn:
        seen.append(turns.present)
        assert (False, False) == (turn.told, turn.ended.is_set())
    assert [None, turn, None] == [*seen, turns.present]
    assert turn.ended.is_set()


def test_a_turn_that_raises_has_ended_too(turns: Turns) -> None:
    with pytest.raises(ValueError, match="broken"), turns.one() as turn:
        raise ValueError("broken")
    assert (None, True) == (turns.present, turn.ended.is_set())


def test_there_is_one_turn_at_a_time(turns: Turns) -> None:
    with turns.one() as turn:
        with pytest.raises(ServiceStateError, match="the loop is running already"), turns.one():
            pass
        assert turn is turns.present
        assert not turn.ended.is_set()


def test_the_present_turn_is_told_to_end_and_until_when(turns: Turns, clock: FakeClock) -> None:
    with turns.one() as turn:
        assert turn.deadline.remaining() is None
        assert turn is turns.tell(after(30.0, clock))
        assert (True, 30.0) == (turn.told, turn.deadline.remaining())


def test_of_two_who_say_when_the_earlier_counts(clock: FakeClock) -> None:
    turn = Turn(clock)
    for seconds in (30.0, 5.0, 20.0, None):
        turn.end(after(seconds, clock))
    assert 5.0 == turn.deadline.remaining()


def test_told_before_the_first_turn_that_one_is_over_when_it_begins_and_the_next_is_not(
    turns: Turns, clock: FakeClock
) -> None:
    assert turns.tell(after(30.0, clock)) is None
    with turns.one() as first:
        assert first.told
    with turns.one() as second:
        assert not second.told


def test_told_between_two_turns_the_next_is_not_concerned(turns: Turns, clock: FakeClock) -> None:
    with turns.one():
        pass
    assert turns.tell(after(30.0, clock)) is None
    with turns.one() as turn:
        assert not turn.told


@pytest.mark.parametrize("line", range(8))
def test_a_first_turn_that_begins_while_it_is_being_told_hears_of_it(
    turns: Turns, clock: FakeClock, line: int
) -> None:
    """Between any two lines of the telling: it begins there, or waits for its end."""
    begun: list[Turn] = []
    one = turns.one()
    beginning = Errand(lambda: begun.append(one.__enter__()), name="beginning")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal line
        if frame.f_code.co_filename == turns_module.__file__ and event == "line":
            line -= 1
            if line == 0:
                beginning.start()
                beginning.over.block(A_MOMENT)
        return trace

    def tell() -> None:
        sys.settrace(trace)
        turns.tell(after(30.0, clock))
        sys.settrace(None)

    telling = Errand(tell, name="telling")
    telling.start()
    assert telling.over.block(PATIENCE)
    beginning.start()
    assert beginning.over.block(PATIENCE)
    assert [True] == [turn.told for turn in begun]


def test_a_forked_child_has_turns_of_its_own() -> None:
    with running(
        """
        import os, sys
        from longwatch.core.deadline import Deadline
        from longwatch.work.turns import Turns
        from longwatch.testing import FakeClock

        turns = Turns("the loop", FakeClock())
        with turns.one() as parents:
            turns._lock.acquire()
            child = os.fork()
            if child == 0:
                seen = [turns.present, turns.tell(Deadline.after(1.0, FakeClock()))]
                with turns.one() as turn:
                    print(seen, turn.told, turns.present is turn, parents.told)
                sys.exit()
            os.waitpid(child, 0)
            turns._lock.release()
            print(turns.present is parents)
        """
    ) as snippet:
        assert ["[None, None] False True False", "True"] == [snippet.line(), snippet.line()]
        assert (0, "") == snippet.end()


def test_only_the_main_thread_looks_up_from_waiting() -> None:
    """There a signal can come in the moment before the wait, and would be handled only after it."""
    found: list[float | None] = [look_up()]
    other = Errand(lambda: found.append(look_up()), name="other")
    other.start()
    assert other.over.block(PATIENCE)
    assert [0.5, None] == found
