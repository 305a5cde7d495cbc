from __future__ import annotations

from enum import StrEnum, auto

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.state_machine import StateMachine


class State(StrEnum):
    OFF = auto()
    ON = auto()
    BLINKING = auto()
    BURNT = auto()
    ELSEWHERE = auto()


class Input(StrEnum):
    PRESS = auto()
    HOLD = auto()
    OVERLOAD = auto()


class Action(StrEnum):
    CLICK = auto()
    SMOKE = auto()


TABLE: dict[tuple[State, Input], tuple[State, Action | None]] = {
    (State.OFF, Input.PRESS): (State.ON, Action.CLICK),
    (State.ON, Input.PRESS): (State.OFF, Action.CLICK),
    (State.ON, Input.HOLD): (State.BLINKING, None),
    (State.BLINKING, Input.PRESS): (State.OFF, None),
    (State.ON, Input.OVERLOAD): (State.BURNT, Action.SMOKE),
    (State.ELSEWHERE, Input.PRESS): (State.OFF, None),
}


@pytest.fixture
def lamp() -> StateMachine[State, Input, Action]:
    return StateMachine("lamp", TABLE)


@given(
    tables=st.dictionaries(
        st.tuples(st.sampled_from(State), st.sampled_from(Input)),
        st.tuples(st.sampled_from(State), st.none()),
    )
)
def test_every_move_of_the_table_is_taken_and_no_other(
    tables: dict[tuple[State, Input], tuple[State, Action | None]],
) -> None:
    machine = StateMachine("thing", tables)
    for state in State:
        for event in Input:
            if machine.allows(state, event):
                assert tables[state, event] == machine.step(state, event)
            else:
                assert (state, event) not in tables
                with pytest.raises(AssertionError):
                    machine.step(state, event)


def test_a_step_says_where_to_go_and_what_to_do(lamp: StateMachine[State, Input, Action]) -> None:
    assert [(State.ON, Action.CLICK), (State.BLINKING, None)] == [
        lamp.step(State.OFF, Input.PRESS),
        lamp.step(State.ON, Input.HOLD),
    ]


def test_a_move_that_is_not_in_the_table_is_a_bug_that_says_what_was_tried(
    lamp: StateMachine[State, Input, Action],
) -> None:
    with pytest.raises(AssertionError, match=r"^a lamp that is burnt does not accept press$"):
        lamp.step(State.BURNT, Input.PRESS)


def test_the_moves_of_a_state_are_its_rows(lamp: StateMachine[State, Input, Action]) -> None:
    assert {
        Input.PRESS: State.OFF,
        Input.HOLD: State.BLINKING,
        Input.OVERLOAD: State.BURNT,
    } == dict(lamp.transitions(State.ON))
    assert {} == dict(lamp.transitions(State.BURNT))


def test_what_can_be_reached_includes_the_start_and_nothing_that_only_leads_there(
    lamp: StateMachine[State, Input, Action],
) -> None:
    assert {State.OFF, State.ON, State.BLINKING, State.BURNT} == lamp.reachable(State.OFF)
    assert {State.BURNT} == lamp.reachable(State.BURNT)


def test_a_state_that_nothing_leads_out_of_is_a_dead_end(
    lamp: StateMachine[State, Input, Action],
) -> None:
    assert {State.BURNT} == lamp.dead_ends()


def test_the_table_is_copied_and_cannot_change_behind_the_machine() -> None:
    table = dict(TABLE)
    machine = StateMachine("lamp", table)
    table.clear()

    assert machine.allows(State.OFF, Input.PRESS)


@given(events=st.lists(st.sampled_from(Input), max_size=30))
def test_no_walk_leaves_what_is_reachable(events: list[Input]) -> None:
    machine = StateMachine("lamp", TABLE)
    state = State.OFF
    for event in events:
        if machine.allows(state, event):
            state, _ = machine.step(state, event)

    assert state in machine.reachable(State.OFF)
