"""Events of worker processes, emitted by their parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined(Event):
    """A worker process runs its loops, and the parent renews its leases."""

    program: str
    pid: int
    loops: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStalled(Event):
    """A worker process gives no heartbeat: the parent saves its stacks, kills it (if it is
    stopping, at the end of its grace) and reclaims its rows.
    """

    default_level: ClassVar[Level] = Level.CRITICAL

    program: str
    pid: int
    message_ids: tuple[str, ...] = ()
    """The messages to blame: their handlers gave no beat."""
    computations: tuple[str, ...] = ()
    """The computations to blame, as EXECUTION/NODE."""
    elapsed: float
    threshold: float
    stacks: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectProcessNotStarted(Event):
    """A process for suspects could not be started; the parent retries while there are suspects."""

    default_level: ClassVar[Level] = Level.ERROR

    program: str
    """The worker that reported suspects."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRowsReclaimed(Event):
    """The rows that a worker process had claimed when it ended were reclaimed."""

    program: str
    pid: int
    rows: int
    """How many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEventsDropped(Event):
    """Events of a worker, the runner or the page are missing in `logs/watchdog.log`, because the
    parent fell behind.
    """

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    pid: int
    count: int
