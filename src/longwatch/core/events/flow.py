"""Events of graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAbandoned(Event):
    """An attempt to compute a node was given up, by the first worker that noticed."""

    default_level: ClassVar[Level] = Level.WARNING

    execution: str
    node: str
    attempt: int
    cause: str
