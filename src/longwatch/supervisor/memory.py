"""What is remembered of a program from one life of the supervisor to the next."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Self

HISTORY = 20
"""How many of the latest restarts are remembered."""


class LastEnd(NamedTuple):
    """How its last run ended; `at` is wall time."""

    cause: str
    verdict: str
    at: float
    lasted: float


@dataclass(slots=True, kw_only=True)
class Memory:
    """Counters and moments of one program, in plain JSON types. Moments are wall time."""

    desired: bool | None = None
    """Whether somebody wants it up; None: nobody has said."""
    starts: int = 0
    restarts: int = 0
    failures: int = 0
    """In a row, without a stable run in between."""
    hangs: int = 0
    """Runs in a row that were ended for their health."""
    history: list[float] = field(default_factory=list)
    """When it was restarted."""
    last_start: float | None = None
    last_end: LastEnd | None = None
    breaker: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """The reverse of `to_dict`; TypeError and ValueError for what is no such thing."""
        end = data.pop("last_end", None)
        return cls(**data, last_end=None if end is None else LastEnd(*end))

    def note_restart(self, now: float) -> None:
        self.restarts += 1
        self.history = [*self.history, now][-HISTORY:]
