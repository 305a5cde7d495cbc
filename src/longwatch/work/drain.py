"""How an engine stops taking rows, and how it ends: as a table.

running ──drain──► draining             takes nothing, hands back what was not begun, can be resumed
   ▲ │                │ │
   │ └──────stop──────│─┴──► stopping   what runs is finished and settled
   └──resume──────────┘         │ │
                                │ └──cancel──► cancelling      the time is nearly up: what still
                                                               runs is told to stop
                                └──empty──► stopped ◄──empty──┘
"""

from __future__ import annotations

import threading
from enum import StrEnum, auto

from longwatch.core.machine import Machine


class Drain(StrEnum):
    RUNNING = auto()
    DRAINING = auto()
    STOPPING = auto()
    CANCELLING = auto()
    STOPPED = auto()


class Told(StrEnum):
    """What an engine hears: four wishes from outside, one report from inside."""

    DRAIN = auto()
    RESUME = auto()
    STOP = auto()
    CANCEL = auto()
    EMPTY = auto()


class Act(StrEnum):
    HAND_BACK = auto()
    FETCH = auto()
    CANCEL_RUNNING = auto()


ENDING = frozenset({Drain.STOPPING, Drain.CANCELLING, Drain.STOPPED})
"""The states that lead to the end and to nowhere else."""

DRAIN: Machine[Drain, Told, Act] = Machine(
    "engine",
    {
        (Drain.RUNNING, Told.DRAIN): (Drain.DRAINING, Act.HAND_BACK),
        (Drain.RUNNING, Told.RESUME): (Drain.RUNNING, None),
        (Drain.RUNNING, Told.STOP): (Drain.STOPPING, Act.HAND_BACK),
        (Drain.DRAINING, Told.DRAIN): (Drain.DRAINING, None),
        (Drain.DRAINING, Told.RESUME): (Drain.RUNNING, Act.FETCH),
        (Drain.DRAINING, Told.STOP): (Drain.STOPPING, None),
        (Drain.STOPPING, Told.DRAIN): (Drain.STOPPING, None),
        (Drain.STOPPING, Told.RESUME): (Drain.STOPPING, None),
        (Drain.STOPPING, Told.STOP): (Drain.STOPPING, None),
        (Drain.STOPPING, Told.CANCEL): (Drain.CANCELLING, Act.CANCEL_RUNNING),
        (Drain.STOPPING, Told.EMPTY): (Drain.STOPPED, None),
        (Drain.CANCELLING, Told.DRAIN): (Drain.CANCELLING, None),
        (Drain.CANCELLING, Told.RESUME): (Drain.CANCELLING, None),
        (Drain.CANCELLING, Told.STOP): (Drain.CANCELLING, None),
        (Drain.CANCELLING, Told.CANCEL): (Drain.CANCELLING, Act.CANCEL_RUNNING),
        (Drain.CANCELLING, Told.EMPTY): (Drain.STOPPED, None),
        (Drain.STOPPED, Told.DRAIN): (Drain.STOPPED, None),
        (Drain.STOPPED, Told.RESUME): (Drain.STOPPED, None),
        (Drain.STOPPED, Told.STOP): (Drain.STOPPED, None),
        (Drain.STOPPED, Told.CANCEL): (Drain.STOPPED, None),
    },
)


class Course:
    """Where one engine is on that table. Thread-safe."""

    def __init__(self) -> None:
        self.state = Drain.RUNNING
        self._lock = threading.Lock()

    def tell(self, told: Told) -> Act | None:
        with self._lock:
            self.state, act = DRAIN.step(self.state, told)
            return act
