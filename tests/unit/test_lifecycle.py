from __future__ import annotations

import pytest

from longwatch.supervisor.lifecycle import LIFECYCLE, ProgramState, ProgramTransition


def walk(*moves: ProgramTransition) -> list[ProgramState]:
    """The states of a program that was stopped and then heard this."""
    states = [ProgramState.STOPPED]
    for move in moves:
        states.append(LIFECYCLE.step(states[-1], move)[0])
    return states[1:]


def test_every_state_can_be_reached_and_left() -> None:
    assert frozenset(ProgramState) == LIFECYCLE.reachable(ProgramState.STOPPED)
    assert frozenset() == LIFECYCLE.dead_ends()


@pytest.mark.parametrize("state", ProgramState)
def test_every_state_leads_back_to_stopped(state: ProgramState) -> None:
    assert ProgramState.STOPPED in LIFECYCLE.reachable(state)


def test_a_crash_leads_through_a_wait_to_the_next_start() -> None:
    expected = [
        ProgramState.PENDING,
        ProgramState.STARTING,
        ProgramState.UP,
        ProgramState.WAITING,
        ProgramState.STARTING,
        ProgramState.UP,
    ]
    assert expected == walk(
        ProgramTransition.START_REQUESTED,
        ProgramTransition.START_DUE,
        ProgramTransition.SPAWNED,
        ProgramTransition.FAILED,
        ProgramTransition.START_DUE,
        ProgramTransition.SPAWNED,
    )


def test_a_stop_leads_through_stopping_to_stopped() -> None:
    expected = [
        ProgramState.PENDING,
        ProgramState.STARTING,
        ProgramState.UP,
        ProgramState.STOPPING,
        ProgramState.STOPPED,
    ]
    assert expected == walk(
        ProgramTransition.START_REQUESTED,
        ProgramTransition.START_DUE,
        ProgramTransition.SPAWNED,
        ProgramTransition.STOP_REQUESTED,
        ProgramTransition.STOPPED,
    )


def test_an_end_of_its_own_is_another_state_than_being_stopped_and_both_can_be_wanted_again() -> (
    None
):
    up = [ProgramTransition.START_REQUESTED, ProgramTransition.START_DUE, ProgramTransition.SPAWNED]
    assert [ProgramState.ENDED, ProgramState.PENDING] == walk(
        *up, ProgramTransition.ENDED, ProgramTransition.START_REQUESTED
    )[-2:]
    assert [ProgramState.STOPPED, ProgramState.PENDING] == walk(
        *up, ProgramTransition.STOPPED, ProgramTransition.START_REQUESTED
    )[-2:]


def test_a_breaker_that_is_remembered_open_breaks_the_program_before_it_starts() -> None:
    assert [ProgramState.PENDING, ProgramState.BROKEN] == walk(
        ProgramTransition.START_REQUESTED, ProgramTransition.BREAKER_TRIPPED
    )


def test_a_tripped_breaker_breaks_the_program_until_it_is_due_or_unwanted() -> None:
    broken = [
        ProgramTransition.START_REQUESTED,
        ProgramTransition.START_DUE,
        ProgramTransition.SPAWNED,
        ProgramTransition.FAILED,
        ProgramTransition.BREAKER_TRIPPED,
    ]
    assert [ProgramState.BROKEN, ProgramState.STARTING] == walk(
        *broken, ProgramTransition.START_DUE
    )[-2:]
    assert [ProgramState.BROKEN, ProgramState.STOPPED] == walk(
        *broken, ProgramTransition.STOP_REQUESTED
    )[-2:]


def test_only_a_program_that_has_a_process_goes_through_stopping() -> None:
    assert {ProgramState.STARTING, ProgramState.UP} == {
        source
        for (source, _), (target, _) in LIFECYCLE.table.items()
        if target is ProgramState.STOPPING
    }


def test_every_start_is_due_first_and_only_a_start_spawns() -> None:
    ways = {(source, move): to for (source, move), (to, _) in LIFECYCLE.table.items()}
    assert {ProgramTransition.START_DUE} == {
        move for (_, move), to in ways.items() if to is ProgramState.STARTING
    }
    assert {(ProgramState.STARTING, ProgramTransition.SPAWNED)} == {
        way for way, to in ways.items() if to is ProgramState.UP
    }


@pytest.mark.parametrize(
    ("state", "move"),
    [
        (ProgramState.STOPPED, ProgramTransition.ENDED),
        (ProgramState.STOPPED, ProgramTransition.START_DUE),
        (ProgramState.PENDING, ProgramTransition.SPAWNED),
        (ProgramState.ENDED, ProgramTransition.STOP_REQUESTED),
        (ProgramState.UP, ProgramTransition.START_REQUESTED),
        (ProgramState.UP, ProgramTransition.BREAKER_TRIPPED),
        (ProgramState.WAITING, ProgramTransition.SPAWNED),
        (ProgramState.BROKEN, ProgramTransition.FAILED),
    ],
)
def test_what_is_not_in_the_table_cannot_happen(
    state: ProgramState, move: ProgramTransition
) -> None:
    assert not LIFECYCLE.allows(state, move)
    with pytest.raises(AssertionError, match=f"a program that is {state} does not accept {move}"):
        LIFECYCLE.step(state, move)
