from __future__ import annotations

import pytest

from longwatch.supervisor.lifecycle import LIFECYCLE, LIVE, Action, Move, State


def walk(*moves: Move) -> list[State]:
    """The states of a program that was stopped and then heard this."""
    states = [State.STOPPED]
    for move in moves:
        states.append(LIFECYCLE.step(states[-1], move)[0])
    return states[1:]


def test_every_state_can_be_reached_and_left() -> None:
    assert frozenset(State) == LIFECYCLE.reachable(State.STOPPED)
    assert frozenset() == LIFECYCLE.dead_ends()


@pytest.mark.parametrize("state", State)
def test_every_state_leads_back_to_stopped(state: State) -> None:
    assert State.STOPPED in LIFECYCLE.reachable(state)


def test_a_crash_leads_through_a_wait_to_the_next_start() -> None:
    expected = [State.PENDING, State.STARTING, State.UP, State.WAITING, State.STARTING, State.UP]
    assert expected == walk(
        Move.WANTED, Move.DUE, Move.SPAWNED, Move.FAILED, Move.DUE, Move.SPAWNED
    )


def test_a_stop_leads_through_stopping_to_stopped() -> None:
    expected = [State.PENDING, State.STARTING, State.UP, State.STOPPING, State.STOPPED]
    assert expected == walk(Move.WANTED, Move.DUE, Move.SPAWNED, Move.UNWANTED, Move.STOPPED)


def test_an_end_of_its_own_is_another_state_than_being_stopped_and_both_can_be_wanted_again() -> (
    None
):
    up = [Move.WANTED, Move.DUE, Move.SPAWNED]
    assert [State.ENDED, State.PENDING] == walk(*up, Move.ENDED, Move.WANTED)[-2:]
    assert [State.STOPPED, State.PENDING] == walk(*up, Move.STOPPED, Move.WANTED)[-2:]


def test_a_breaker_that_is_remembered_open_breaks_the_program_before_it_starts() -> None:
    assert [State.PENDING, State.BROKEN] == walk(Move.WANTED, Move.TRIPPED)


def test_a_tripped_breaker_breaks_the_program_until_it_is_due_or_unwanted() -> None:
    broken = [Move.WANTED, Move.DUE, Move.SPAWNED, Move.FAILED, Move.TRIPPED]
    assert [State.BROKEN, State.STARTING] == walk(*broken, Move.DUE)[-2:]
    assert [State.BROKEN, State.STOPPED] == walk(*broken, Move.UNWANTED)[-2:]


@pytest.mark.parametrize(
    "state", [state for state in State if LIFECYCLE.allows(state, Move.UNWANTED)]
)
def test_only_what_has_a_tree_is_stopped_by_stopping_the_tree(state: State) -> None:
    assert (state in LIVE) == (LIFECYCLE.step(state, Move.UNWANTED)[1] is Action.STOP_TREE)


def test_every_way_into_starting_spawns_and_no_other_does() -> None:
    for target, action in LIFECYCLE.table.values():
        assert (target is State.STARTING) == (action is Action.SPAWN)


@pytest.mark.parametrize(
    ("state", "move"),
    [
        (State.STOPPED, Move.ENDED),
        (State.STOPPED, Move.DUE),
        (State.PENDING, Move.SPAWNED),
        (State.ENDED, Move.UNWANTED),
        (State.UP, Move.WANTED),
        (State.UP, Move.TRIPPED),
        (State.WAITING, Move.SPAWNED),
        (State.BROKEN, Move.FAILED),
    ],
)
def test_what_is_not_in_the_table_cannot_happen(state: State, move: Move) -> None:
    assert not LIFECYCLE.allows(state, move)
    with pytest.raises(AssertionError, match=f"a program that is {state} cannot be told {move}"):
        LIFECYCLE.step(state, move)
