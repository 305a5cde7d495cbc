"""Events of worker processes, emitted by their parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A worker process runs its loops, and its parent keeps its leases."""

    program: str
    pid: int
    loops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStalled(Event):
    """A worker process gives no beat: its stacks are saved, it is killed, and what it held goes
    to others.
    """

    default_level: ClassVar[Level] = Level.CRITICAL

    program: str
    pid: int
    message_ids: tuple[str, ...] = ()
    """The messages to blame: the work on them is silent."""
    computations: tuple[str, ...] = ()
    """The computations to blame, as EXECUTION/NODE."""
    elapsed: float
    threshold: float
    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectProcessNotStarted(Event):
    """A process for suspects could not be started; the next report of suspects tries again."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    """The worker that reported suspects."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRowsReclaimed(Event):
    """What a worker process held when it ended is free again."""

    program: str
    pid: int
    rows: int
