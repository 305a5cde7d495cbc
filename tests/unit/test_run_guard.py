from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from longwatch.core.deadline import Deadline
from longwatch.engine import run_guard as run_guard_module
from longwatch.engine.run_guard import RunGuard, RunHandle, max_wait
from longwatch.errors import ServiceStateError
from longwatch.host.background_thread import BackgroundThread
from longwatch.testing import FakeClock
from snippet import run_snippet

TIMEOUT = 10.0
A_MOMENT = 0.05
"""How long a turn that may have to wait is given to begin."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def run_guard(clock: FakeClock) -> RunGuard:
    return RunGuard("the loop", clock)


def after(seconds: float | None, clock: FakeClock) -> Deadline:
    return Deadline.after(seconds, clock)


def test_a_turn_is_present_from_its_beginning_to_its_end(run_guard: RunGuard) -> None:
    seen = [run_guard.current]
    with run_guard.run() as turn:
        seen.append(run_guard.current)
        assert (False, False) == (turn.is_stopping, turn.ended.is_set())
    assert [None, turn, None] == [*seen, run_guard.current]
    assert turn.ended.is_set()


def test_a_turn_that_raises_has_ended_too(run_guard: RunGuard) -> None:
    with pytest.raises(ValueError, match="broken"), run_guard.run() as turn:
        raise ValueError("broken")
    assert (None, True) == (run_guard.current, turn.ended.is_set())


def test_there_is_one_turn_at_a_time(run_guard: RunGuard) -> None:
    with run_guard.run() as turn:
        with pytest.raises(ServiceStateError, match="the loop is running already"), run_guard.run():
            pass
        assert turn is run_guard.current
        assert not turn.ended.is_set()


def test_the_present_turn_is_told_to_end_and_until_when(
    run_guard: RunGuard, clock: FakeClock
) -> None:
    with run_guard.run() as turn:
        assert turn.deadline.remaining() is None
        assert turn is run_guard.request_stop(after(30.0, clock))
        assert (True, 30.0) == (turn.is_stopping, turn.deadline.remaining())


def test_of_two_who_say_when_the_earlier_counts(clock: FakeClock) -> None:
    turn = RunHandle(clock)
    for seconds in (30.0, 5.0, 20.0, None):
        turn.request_stop(after(seconds, clock))
    assert 5.0 == turn.deadline.remaining()


def test_told_before_the_first_turn_that_one_is_over_when_it_begins_and_the_next_is_not(
    run_guard: RunGuard, clock: FakeClock
) -> None:
    assert run_guard.request_stop(after(30.0, clock)) is None
    with run_guard.run() as first:
        assert first.is_stopping
    with run_guard.run() as second:
        assert not second.is_stopping


def test_told_between_two_turns_the_next_is_not_concerned(
    run_guard: RunGuard, clock: FakeClock
) -> None:
    with run_guard.run():
        pass
    assert run_guard.request_stop(after(30.0, clock)) is None
    with run_guard.run() as turn:
        assert not turn.is_stopping


@pytest.mark.parametrize("line", range(8))
def test_a_first_turn_that_begins_while_it_is_being_told_hears_of_it(
    run_guard: RunGuard, clock: FakeClock, line: int
) -> None:
    """Between any two lines of the telling: it begins there, or waits for its end."""
    begun: list[RunHandle] = []
    one = run_guard.run()
    beginning = BackgroundThread(lambda: begun.append(one.__enter__()), name="beginning")

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal line
        if frame.f_code.co_filename == run_guard_module.__file__ and event == "line":
            line -= 1
            if line == 0:
                beginning.start()
                beginning.done.block(A_MOMENT)
        return trace

    def tell() -> None:
        sys.settrace(trace)
        run_guard.request_stop(after(30.0, clock))
        sys.settrace(None)

    telling = BackgroundThread(tell, name="telling")
    telling.start()
    assert telling.done.block(TIMEOUT)
    beginning.start()
    assert beginning.done.block(TIMEOUT)
    assert [True] == [turn.is_stopping for turn in begun]


def test_a_forked_child_has_turns_of_its_own() -> None:
    with run_snippet(
        """
        import os, sys
        from longwatch.core.deadline import Deadline
        from longwatch.engine.run_guard import RunGuard
        from longwatch.testing import FakeClock

        run_guard = RunGuard("the loop", FakeClock())
        with run_guard.run() as parents:
            run_guard._lock.acquire()
            child = os.fork()
            if child == 0:
                seen = [run_guard.current, run_guard.request_stop(Deadline.after(1.0, FakeClock()))]
                with run_guard.run() as turn:
                    print(seen, turn.is_stopping, run_guard.current is turn, parents.is_stopping)
                sys.exit()
            os.waitpid(child, 0)
            run_guard._lock.release()
            print(run_guard.current is parents)
        """
    ) as snippet:
        assert ["[None, None] False True False", "True"] == [
            snippet.read_line(),
            snippet.read_line(),
        ]
        assert (0, "") == snippet.wait()


def test_only_the_main_thread_looks_up_from_waiting() -> None:
    """There a signal can come in the moment before the wait, and would be handled only after it."""
    found: list[float | None] = [max_wait()]
    other = BackgroundThread(lambda: found.append(max_wait()), name="other")
    other.start()
    assert other.done.block(TIMEOUT)
    assert [0.5, None] == found
