from __future__ import annotations

from enum import StrEnum, auto

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.machine import Machine


class State(StrEnum):
    OFF = auto()
    ON = auto()
    BLINKING = auto()
    BURNT = auto()
    ELSEWHERE = auto()


class Told(StrEnum):
    PRESS = auto()
    HOLD = auto()
    OVERLOAD = auto()


class Do(StrEnum):
    CLICK = auto()
    SMOKE = auto()


TABLE: dict[tuple[State, Told], tuple[State, Do | None]] = {
    (State.OFF, Told.PRESS): (State.ON, Do.CLICK),
    (State.ON, Told.PRESS): (State.OFF, Do.CLICK),
    (State.ON, Told.HOLD): (State.BLINKING, None),
    (State.BLINKING, Told.PRESS): (State.OFF, None),
    (State.ON, Told.OVERLOAD): (State.BURNT, Do.SMOKE),
    (State.ELSEWHERE, Told.PRESS): (State.OFF, None),
}


@pytest.fixture
def lamp() -> Machine[State, Told, Do]:
    return Machine("lamp", TABLE)


@given(
    tables=st.dictionaries(
        st.tuples(st.sampled_from(State), st.sampled_from(Told)),
        st.tuples(st.sampled_from(State), st.none()),
    )
)
def test_every_move_of_the_table_is_taken_and_no_other(
    tables: dict[tuple[State, Told], tuple[State, Do | None]],
) -> None:
    machine = Machine("thing", tables)
    for state in State:
        for event in Told:
            if machine.allows(state, event):
                assert tables[state, event] == machine.step(state, event)
            else:
                assert (state, event) not in tables
                with pytest.raises(AssertionError):
                    machine.step(state, event)


def test_a_step_says_where_to_go_and_what_to_do(lamp: Machine[State, Told, Do]) -> None:
    assert [(State.ON, Do.CLICK), (State.BLINKING, None)] == [
        lamp.step(State.OFF, Told.PRESS),
        lamp.step(State.ON, Told.HOLD),
    ]


def test_a_move_that_is_not_in_the_table_is_a_bug_that_says_what_was_tried(
    lamp: Machine[State, Told, Do],
) -> None:
    with pytest.raises(AssertionError, match=r"^a lamp that is burnt cannot be told press$"):
        lamp.step(State.BURNT, Told.PRESS)


def test_the_moves_of_a_state_are_its_rows(lamp: Machine[State, Told, Do]) -> None:
    assert {Told.PRESS: State.OFF, Told.HOLD: State.BLINKING, Told.OVERLOAD: State.BURNT} == dict(
        lamp.moves(State.ON)
    )
    assert {} == dict(lamp.moves(State.BURNT))


def test_what_can_be_reached_includes_the_start_and_nothing_that_only_leads_there(
    lamp: Machine[State, Told, Do],
) -> None:
    assert {State.OFF, State.ON, State.BLINKING, State.BURNT} == lamp.reachable(State.OFF)
    assert {State.BURNT} == lamp.reachable(State.BURNT)


def test_a_state_that_nothing_leads_out_of_is_a_dead_end(lamp: Machine[State, Told, Do]) -> None:
    assert {State.BURNT} == lamp.dead_ends()


def test_the_table_is_copied_and_cannot_change_behind_the_machine() -> None:
    table = dict(TABLE)
    machine = Machine("lamp", table)
    table.clear()

    assert machine.allows(State.OFF, Told.PRESS)


@given(events=st.lists(st.sampled_from(Told), max_size=30))
def test_no_walk_leaves_what_is_reachable(events: list[Told]) -> None:
    machine = Machine("lamp", TABLE)
    state = State.OFF
    for event in events:
        if machine.allows(state, event):
            state, _ = machine.step(state, event)

    assert state in machine.reachable(State.OFF)
