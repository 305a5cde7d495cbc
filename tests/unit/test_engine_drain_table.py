from __future__ import annotations

import threading

import pytest

from longwatch.engine.drain import (
    DRAIN_TABLE,
    ENDING_STATES,
    DrainAction,
    DrainMachine,
    DrainState,
    DrainTransition,
)


@pytest.mark.parametrize("state", DrainState)
@pytest.mark.parametrize(
    "told", [DrainTransition.DRAIN, DrainTransition.RESUME, DrainTransition.STOP]
)
def test_everything_an_owner_may_wish_is_heard_in_every_state(
    state: DrainState, told: DrainTransition
) -> None:
    assert DRAIN_TABLE.allows(state, told)


def test_every_state_can_be_reached_and_only_the_end_is_the_end() -> None:
    assert frozenset(DrainState) == DRAIN_TABLE.reachable(DrainState.RUNNING)
    assert {DrainState.STOPPED} == DRAIN_TABLE.reachable(DrainState.STOPPED)
    assert frozenset() == DRAIN_TABLE.dead_ends()


@pytest.mark.parametrize("state", sorted(ENDING_STATES))
def test_nothing_leads_back_once_it_is_being_stopped(state: DrainState) -> None:
    assert DRAIN_TABLE.reachable(state) <= ENDING_STATES


@pytest.mark.parametrize("state", [DrainState.RUNNING, DrainState.DRAINING])
def test_an_engine_that_was_not_told_to_stop_does_not_end_by_being_empty(state: DrainState) -> None:
    assert not DRAIN_TABLE.allows(state, DrainTransition.EMPTY)
    assert not DRAIN_TABLE.allows(state, DrainTransition.CANCEL)


@pytest.mark.parametrize("told", DrainTransition)
def test_rows_are_handed_back_exactly_when_it_stops_taking(told: DrainTransition) -> None:
    for state in DrainState:
        if DRAIN_TABLE.allows(state, told):
            target, act = DRAIN_TABLE.step(state, told)
            assert (state is DrainState.RUNNING and target is not DrainState.RUNNING) == (
                act is DrainAction.RELEASE_WAITING
            )
            assert (state is not DrainState.RUNNING and target is DrainState.RUNNING) == (
                act is DrainAction.FETCH
            )


def test_what_runs_is_cancelled_only_on_the_way_to_the_end_and_each_time_that_is_said() -> None:
    cancelling = {
        state
        for state in DrainState
        if DRAIN_TABLE.table.get((state, DrainTransition.CANCEL), (None, None))[1]
        is DrainAction.CANCEL_RUNNING
    }
    assert {DrainState.STOPPING, DrainState.CANCELLING} == cancelling


def test_a_whole_course() -> None:
    course = DrainMachine()
    acts = [
        course.apply(told)
        for told in (
            DrainTransition.DRAIN,
            DrainTransition.RESUME,
            DrainTransition.DRAIN,
            DrainTransition.STOP,
            DrainTransition.CANCEL,
            DrainTransition.EMPTY,
            DrainTransition.STOP,
        )
    ]
    assert [
        DrainAction.RELEASE_WAITING,
        DrainAction.FETCH,
        DrainAction.RELEASE_WAITING,
        None,
        DrainAction.CANCEL_RUNNING,
        None,
        None,
    ] == acts
    assert DrainState.STOPPED is course.state


def test_of_many_who_stop_it_at_once_one_hands_back() -> None:
    course, together, acts = DrainMachine(), threading.Barrier(8), []

    def stop() -> None:
        together.wait()
        acts.append(course.apply(DrainTransition.STOP))

    threads = [threading.Thread(target=stop) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 == acts.count(DrainAction.RELEASE_WAITING)
