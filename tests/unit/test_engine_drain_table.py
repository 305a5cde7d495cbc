from __future__ import annotations

import threading

import pytest

from longwatch.work.drain import DRAIN, ENDING, Act, Course, Drain, Told


@pytest.mark.parametrize("state", Drain)
@pytest.mark.parametrize("told", [Told.DRAIN, Told.RESUME, Told.STOP])
def test_everything_an_owner_may_wish_is_heard_in_every_state(state: Drain, told: Told) -> None:
    assert DRAIN.allows(state, told)


def test_every_state_can_be_reached_and_only_the_end_is_the_end() -> None:
    assert frozenset(Drain) == DRAIN.reachable(Drain.RUNNING)
    assert {Drain.STOPPED} == DRAIN.reachable(Drain.STOPPED)
    assert frozenset() == DRAIN.dead_ends()


@pytest.mark.parametrize("state", ENDING)
def test_nothing_leads_back_once_it_is_being_stopped(state: Drain) -> None:
    assert DRAIN.reachable(state) <= ENDING


@pytest.mark.parametrize("state", [Drain.RUNNING, Drain.DRAINING])
def test_an_engine_that_was_not_told_to_stop_does_not_end_by_being_empty(state: Drain) -> None:
    assert not DRAIN.allows(state, Told.EMPTY)
    assert not DRAIN.allows(state, Told.CANCEL)


@pytest.mark.parametrize("told", Told)
def test_rows_are_handed_back_exactly_when_it_stops_taking(told: Told) -> None:
    for state in Drain:
        if DRAIN.allows(state, told):
            target, act = DRAIN.step(state, told)
            assert (state is Drain.RUNNING and target is not Drain.RUNNING) == (
                act is Act.HAND_BACK
            )
            assert (state is not Drain.RUNNING and target is Drain.RUNNING) == (act is Act.FETCH)


def test_what_runs_is_cancelled_only_on_the_way_to_the_end_and_each_time_that_is_said() -> None:
    cancelling = {
        state
        for state in Drain
        if DRAIN.table.get((state, Told.CANCEL), (None, None))[1] is Act.CANCEL_RUNNING
    }
    assert {Drain.STOPPING, Drain.CANCELLING} == cancelling


def test_a_whole_course() -> None:
    course = Course()
    acts = [
        course.tell(told)
        for told in (
            Told.DRAIN,
            Told.RESUME,
            Told.DRAIN,
            Told.STOP,
            Told.CANCEL,
            Told.EMPTY,
            Told.STOP,
        )
    ]
    assert [Act.HAND_BACK, Act.FETCH, Act.HAND_BACK, None, Act.CANCEL_RUNNING, None, None] == acts
    assert Drain.STOPPED is course.state


def test_of_many_who_stop_it_at_once_one_hands_back() -> None:
    course, together, acts = Course(), threading.Barrier(8), []

    def stop() -> None:
        together.wait()
        acts.append(course.tell(Told.STOP))

    threads = [threading.Thread(target=stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 == acts.count(Act.HAND_BACK)
