"""How an engine drains and stops, as a state table.

running ──drain──► draining             claims nothing, releases waiting rows, can be resumed
   ▲ │                │ │
   │ └──────stop──────│─┴──► stopping   running rows finish and are settled
   └──resume──────────┘         │ │
                                │ └──cancel──► cancelling      the deadline is near: running rows
                                                               are cancelled
                                └──empty──► stopped ◄──empty──┘
"""

from __future__ import annotations

import threading
from enum import StrEnum, auto

from longwatch.core.state_machine import StateMachine


class DrainState(StrEnum):
    RUNNING = auto()
    DRAINING = auto()
    STOPPING = auto()
    CANCELLING = auto()
    STOPPED = auto()


class DrainTransition(StrEnum):
    """Transitions of the table: four requests of callers, and EMPTY when no row is left."""

    DRAIN = auto()
    RESUME = auto()
    STOP = auto()
    CANCEL = auto()
    EMPTY = auto()


class DrainAction(StrEnum):
    RELEASE_WAITING = auto()
    FETCH = auto()
    CANCEL_RUNNING = auto()


ENDING_STATES = frozenset({DrainState.STOPPING, DrainState.CANCELLING, DrainState.STOPPED})
"""The states that can only lead to STOPPED."""

DRAIN_TABLE: StateMachine[DrainState, DrainTransition, DrainAction] = StateMachine(
    "engine",
    {
        (DrainState.RUNNING, DrainTransition.DRAIN): (
            DrainState.DRAINING,
            DrainAction.RELEASE_WAITING,
        ),
        (DrainState.RUNNING, DrainTransition.RESUME): (DrainState.RUNNING, None),
        (DrainState.RUNNING, DrainTransition.STOP): (
            DrainState.STOPPING,
            DrainAction.RELEASE_WAITING,
        ),
        (DrainState.DRAINING, DrainTransition.DRAIN): (DrainState.DRAINING, None),
        (DrainState.DRAINING, DrainTransition.RESUME): (DrainState.RUNNING, DrainAction.FETCH),
        (DrainState.DRAINING, DrainTransition.STOP): (DrainState.STOPPING, None),
        (DrainState.STOPPING, DrainTransition.DRAIN): (DrainState.STOPPING, None),
        (DrainState.STOPPING, DrainTransition.RESUME): (DrainState.STOPPING, None),
        (DrainState.STOPPING, DrainTransition.STOP): (DrainState.STOPPING, None),
        (DrainState.STOPPING, DrainTransition.CANCEL): (
            DrainState.CANCELLING,
            DrainAction.CANCEL_RUNNING,
        ),
        (DrainState.STOPPING, DrainTransition.EMPTY): (DrainState.STOPPED, None),
        (DrainState.CANCELLING, DrainTransition.DRAIN): (DrainState.CANCELLING, None),
        (DrainState.CANCELLING, DrainTransition.RESUME): (DrainState.CANCELLING, None),
        (DrainState.CANCELLING, DrainTransition.STOP): (DrainState.CANCELLING, None),
        (DrainState.CANCELLING, DrainTransition.CANCEL): (
            DrainState.CANCELLING,
            DrainAction.CANCEL_RUNNING,
        ),
        (DrainState.CANCELLING, DrainTransition.EMPTY): (DrainState.STOPPED, None),
        (DrainState.STOPPED, DrainTransition.DRAIN): (DrainState.STOPPED, None),
        (DrainState.STOPPED, DrainTransition.RESUME): (DrainState.STOPPED, None),
        (DrainState.STOPPED, DrainTransition.STOP): (DrainState.STOPPED, None),
        (DrainState.STOPPED, DrainTransition.CANCEL): (DrainState.STOPPED, None),
    },
)


class DrainMachine:
    """The drain state of one engine. Thread-safe."""

    def __init__(self) -> None:
        self.state = DrainState.RUNNING
        self._lock = threading.Lock()

    def apply(self, trigger: DrainTransition) -> DrainAction | None:
        with self._lock:
            self.state, action = DRAIN_TABLE.step(self.state, trigger)
            return action
