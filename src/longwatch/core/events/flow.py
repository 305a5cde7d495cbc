"""Events of graphs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """A worker or a sweep abandoned an attempt to compute a node."""

    default_level: ClassVar[Level] = Level.WARNING

    execution: str
    node: str
    attempt: int
    cause: str
    """`deadline`, `stalled`, `heartbeat`, `crash`, `lost`, `memory` or `killed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptsEnded(Event):
    """A transaction of a worker or a sweep ended attempts of one node, all in the same way."""

    default_level: ClassVar[Level] = Level.DEBUG

    graph: str
    node: str
    state: str
    """`success`, `failed`, `abandoned` or `cancelled`."""
    cause: str
    attempts: int
    """How many."""
    durations: tuple[float, ...]
    """Seconds that the code of each ran, of those whose own worker ended them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSweepFinished(Event):
    """A sweep of a flow worker, or of its parent, has run or failed."""

    default_level: ClassVar[Level] = Level.DEBUG

    sweep: str
    """`dead`, `abandoned`, `stalled`, `index` or `retention`. `dead` runs twice a second, so it is
    emitted only if it changed rows or failed.
    """
    seconds: float
    rows: int
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCallbackFailed(Event):
    """An `on_save` function of a node or a graph raised; the value stays."""

    default_level: ClassVar[Level] = Level.WARNING

    graph: str
    node: str
    execution: str
    error: str
    traceback: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCallbackDropped(Event):
    """An `on_save` function was not called for a value, because 1,000 calls wait."""

    default_level: ClassVar[Level] = Level.WARNING
    max_logged_per_second: ClassVar[int | None] = 5

    graph: str
    node: str
    execution: str
