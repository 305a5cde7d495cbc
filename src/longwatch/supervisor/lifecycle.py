"""The life of a program, as a table.

Read a row as: in this state, when this happens, go there. What is not in the table cannot happen.
`Program` performs the story; this file knows no process, no clock and no log.
"""

from __future__ import annotations

from enum import StrEnum, auto

from longwatch.core.state_machine import StateMachine


class ProgramState(StrEnum):
    """Where a program is."""

    STOPPED = auto()  # nobody wants it up
    PENDING = auto()  # wanted, and waiting for what it depends on
    STARTING = auto()
    UP = auto()
    STOPPING = auto()
    WAITING = auto()  # between a failure and the next start
    BROKEN = auto()  # the breaker is open
    ENDED = auto()  # by itself and for good: nothing is done about it


class ProgramTransition(StrEnum):
    """What can happen to it."""

    START_REQUESTED = auto()
    STOP_REQUESTED = auto()
    SPAWNED = auto()
    STOPPED = auto()  # it ended as it was asked to
    ENDED = auto()
    FAILED = auto()
    START_DUE = auto()
    BREAKER_TRIPPED = auto()


class ProgramAction(StrEnum):
    """What is done about it."""

    SPAWN = auto()
    STOP_TREE = auto()
    WAIT = auto()
    EMIT = auto()


LIVE = frozenset({ProgramState.STARTING, ProgramState.UP, ProgramState.STOPPING})

LIFECYCLE: StateMachine[ProgramState, ProgramTransition, ProgramAction] = StateMachine(
    "program",
    {
        (ProgramState.STOPPED, ProgramTransition.START_REQUESTED): (ProgramState.PENDING, None),
        (ProgramState.ENDED, ProgramTransition.START_REQUESTED): (ProgramState.PENDING, None),
        (ProgramState.PENDING, ProgramTransition.START_DUE): (
            ProgramState.STARTING,
            ProgramAction.SPAWN,
        ),
        (ProgramState.PENDING, ProgramTransition.BREAKER_TRIPPED): (
            ProgramState.BROKEN,
            ProgramAction.EMIT,
        ),
        (ProgramState.PENDING, ProgramTransition.STOP_REQUESTED): (ProgramState.STOPPED, None),
        (ProgramState.STARTING, ProgramTransition.SPAWNED): (ProgramState.UP, None),
        (ProgramState.STARTING, ProgramTransition.FAILED): (
            ProgramState.WAITING,
            ProgramAction.WAIT,
        ),
        (ProgramState.STARTING, ProgramTransition.STOP_REQUESTED): (
            ProgramState.STOPPING,
            ProgramAction.STOP_TREE,
        ),
        (ProgramState.STARTING, ProgramTransition.STOPPED): (ProgramState.STOPPED, None),
        (ProgramState.STARTING, ProgramTransition.ENDED): (ProgramState.ENDED, None),
        (ProgramState.UP, ProgramTransition.STOPPED): (ProgramState.STOPPED, None),
        (ProgramState.UP, ProgramTransition.ENDED): (ProgramState.ENDED, None),
        (ProgramState.UP, ProgramTransition.FAILED): (ProgramState.WAITING, ProgramAction.WAIT),
        (ProgramState.UP, ProgramTransition.STOP_REQUESTED): (
            ProgramState.STOPPING,
            ProgramAction.STOP_TREE,
        ),
        (ProgramState.STOPPING, ProgramTransition.STOPPED): (ProgramState.STOPPED, None),
        (ProgramState.STOPPING, ProgramTransition.ENDED): (ProgramState.ENDED, None),
        (ProgramState.STOPPING, ProgramTransition.FAILED): (
            ProgramState.WAITING,
            ProgramAction.WAIT,
        ),
        (ProgramState.WAITING, ProgramTransition.START_DUE): (
            ProgramState.STARTING,
            ProgramAction.SPAWN,
        ),
        (ProgramState.WAITING, ProgramTransition.BREAKER_TRIPPED): (
            ProgramState.BROKEN,
            ProgramAction.EMIT,
        ),
        (ProgramState.WAITING, ProgramTransition.STOP_REQUESTED): (ProgramState.STOPPED, None),
        (ProgramState.BROKEN, ProgramTransition.START_DUE): (
            ProgramState.STARTING,
            ProgramAction.SPAWN,
        ),
        (ProgramState.BROKEN, ProgramTransition.STOP_REQUESTED): (ProgramState.STOPPED, None),
    },
)
