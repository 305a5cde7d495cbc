"""The life of a program, as a table.

Read a row as: in this state, when this happens, go there. What is not in the table cannot happen.
`Program` performs the story; this file knows no process, no clock and no log.
"""

from __future__ import annotations

from enum import StrEnum, auto

from longwatch.core.machine import Machine


class State(StrEnum):
    """Where a program is."""

    STOPPED = auto()  # nobody wants it up
    PENDING = auto()  # wanted, and waiting for what it depends on
    STARTING = auto()
    UP = auto()
    STOPPING = auto()
    WAITING = auto()  # between a failure and the next start
    BROKEN = auto()  # the breaker is open
    ENDED = auto()  # by itself and for good: nothing is done about it


class Move(StrEnum):
    """What can happen to it."""

    WANTED = auto()
    UNWANTED = auto()
    SPAWNED = auto()
    STOPPED = auto()  # it ended as it was asked to
    ENDED = auto()
    FAILED = auto()
    DUE = auto()
    TRIPPED = auto()


class Action(StrEnum):
    """What is done about it."""

    SPAWN = auto()
    STOP_TREE = auto()
    WAIT = auto()
    TELL = auto()


LIVE = frozenset({State.STARTING, State.UP, State.STOPPING})

LIFECYCLE: Machine[State, Move, Action] = Machine(
    "program",
    {
        (State.STOPPED, Move.WANTED): (State.PENDING, None),
        (State.ENDED, Move.WANTED): (State.PENDING, None),
        (State.PENDING, Move.DUE): (State.STARTING, Action.SPAWN),
        (State.PENDING, Move.TRIPPED): (State.BROKEN, Action.TELL),
        (State.PENDING, Move.UNWANTED): (State.STOPPED, None),
        (State.STARTING, Move.SPAWNED): (State.UP, None),
        (State.STARTING, Move.FAILED): (State.WAITING, Action.WAIT),
        (State.STARTING, Move.UNWANTED): (State.STOPPING, Action.STOP_TREE),
        (State.STARTING, Move.STOPPED): (State.STOPPED, None),
        (State.STARTING, Move.ENDED): (State.ENDED, None),
        (State.UP, Move.STOPPED): (State.STOPPED, None),
        (State.UP, Move.ENDED): (State.ENDED, None),
        (State.UP, Move.FAILED): (State.WAITING, Action.WAIT),
        (State.UP, Move.UNWANTED): (State.STOPPING, Action.STOP_TREE),
        (State.STOPPING, Move.STOPPED): (State.STOPPED, None),
        (State.STOPPING, Move.ENDED): (State.ENDED, None),
        (State.STOPPING, Move.FAILED): (State.WAITING, Action.WAIT),
        (State.WAITING, Move.DUE): (State.STARTING, Action.SPAWN),
        (State.WAITING, Move.TRIPPED): (State.BROKEN, Action.TELL),
        (State.WAITING, Move.UNWANTED): (State.STOPPED, None),
        (State.BROKEN, Move.DUE): (State.STARTING, Action.SPAWN),
        (State.BROKEN, Move.UNWANTED): (State.STOPPED, None),
    },
)
