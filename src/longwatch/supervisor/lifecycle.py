"""The states of a program and the transitions between them, as a table.

Read a row as: in this state, on this transition, go to that state. A pair that is not in the table
cannot happen. `Program.keep_up` does the work; this file uses no process, clock or log.
"""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Never

from longwatch.core.state_machine import StateMachine


class ProgramState(StrEnum):
    """The states of a program."""

    STOPPED = auto()  # no start is requested
    PENDING = auto()  # waits for its dependencies
    STARTING = auto()
    UP = auto()
    STOPPING = auto()
    WAITING = auto()  # between a failure and the next start
    BROKEN = auto()  # the breaker is open
    ENDED = auto()  # ended by itself, and is not restarted


class ProgramTransition(StrEnum):
    """The transitions between the states."""

    START_REQUESTED = auto()
    STOP_REQUESTED = auto()
    SPAWNED = auto()
    STOPPED = auto()  # it ended after a requested stop
    ENDED = auto()
    FAILED = auto()
    START_DUE = auto()
    BREAKER_TRIPPED = auto()


_TABLE = {
    (ProgramState.STOPPED, ProgramTransition.START_REQUESTED): ProgramState.PENDING,
    (ProgramState.ENDED, ProgramTransition.START_REQUESTED): ProgramState.PENDING,
    (ProgramState.PENDING, ProgramTransition.START_DUE): ProgramState.STARTING,
    (ProgramState.PENDING, ProgramTransition.BREAKER_TRIPPED): ProgramState.BROKEN,
    (ProgramState.PENDING, ProgramTransition.STOP_REQUESTED): ProgramState.STOPPED,
    (ProgramState.STARTING, ProgramTransition.SPAWNED): ProgramState.UP,
    (ProgramState.STARTING, ProgramTransition.FAILED): ProgramState.WAITING,
    (ProgramState.STARTING, ProgramTransition.STOP_REQUESTED): ProgramState.STOPPING,
    (ProgramState.STARTING, ProgramTransition.STOPPED): ProgramState.STOPPED,
    (ProgramState.STARTING, ProgramTransition.ENDED): ProgramState.ENDED,
    (ProgramState.UP, ProgramTransition.STOPPED): ProgramState.STOPPED,
    (ProgramState.UP, ProgramTransition.ENDED): ProgramState.ENDED,
    (ProgramState.UP, ProgramTransition.FAILED): ProgramState.WAITING,
    (ProgramState.UP, ProgramTransition.STOP_REQUESTED): ProgramState.STOPPING,
    (ProgramState.STOPPING, ProgramTransition.STOPPED): ProgramState.STOPPED,
    (ProgramState.STOPPING, ProgramTransition.ENDED): ProgramState.ENDED,
    (ProgramState.STOPPING, ProgramTransition.FAILED): ProgramState.WAITING,
    (ProgramState.WAITING, ProgramTransition.START_DUE): ProgramState.STARTING,
    (ProgramState.WAITING, ProgramTransition.BREAKER_TRIPPED): ProgramState.BROKEN,
    (ProgramState.WAITING, ProgramTransition.STOP_REQUESTED): ProgramState.STOPPED,
    (ProgramState.BROKEN, ProgramTransition.START_DUE): ProgramState.STARTING,
    (ProgramState.BROKEN, ProgramTransition.STOP_REQUESTED): ProgramState.STOPPED,
}

LIFECYCLE: StateMachine[ProgramState, ProgramTransition, Never] = StateMachine(
    "program", {pair: (target, None) for pair, target in _TABLE.items()}
)
