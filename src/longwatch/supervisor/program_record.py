"""The durable record of a program, which survives the supervisor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Self, TypeVar

T = TypeVar("T")

MAX_HISTORY = 20
"""How many of the latest restarts the record keeps."""
_MAX_NUMBER = 1 << 53


class LastEnd(NamedTuple):
    """How its last run ended; `at` is wall time."""

    cause: str
    verdict: str
    at: float
    lasted: float


@dataclass(slots=True, kw_only=True)
class ProgramRecord:
    """Counters and times of one program, in plain JSON types. Times are wall time."""

    desired: bool | None = None
    """Whether an operator wants it up; None if no operator has decided."""
    stopped_at: float | None = None
    """When it was last stopped by an operator, or through the container runtime."""
    starts: int = 0
    restarts: int = 0
    failures: int = 0
    """Failures in a row, without a stable run in between."""
    hangs: int = 0
    """Runs in a row that were ended because they were unhealthy."""
    crash_loops: int = 0
    """Restarts for failed liveness since the last run that settled; containers only."""
    history: list[float] = field(default_factory=list)
    """The times of the latest restarts."""
    last_start: float | None = None
    last_end: LastEnd | None = None
    breaker: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return its fields for JSON. Lists and tables are shared, not copied."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """Build a record from `to_dict`'s output. Ignores unknown keys, which a newer version may
        have added. Raises ValueError if a value has the wrong type.
        """
        table = _table(data)
        checked = {name: check(table[name]) for name, check in _CHECKS.items() if name in table}
        return cls(**checked)

    def record_restart(self, now: float) -> None:
        self.restarts += 1
        self.history = [*self.history, now][-MAX_HISTORY:]


def _table(value: object) -> dict[str, Any]:
    return _expect(value, dict)


def _expect(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"expected {kind.__name__}, found {type(value).__name__}")
    return value


def _count(value: object) -> int:
    number = _expect(value, int)
    if not 0 <= number <= _MAX_NUMBER:
        raise ValueError("count out of range")
    return number


def _timestamp(value: object) -> float:
    number = (
        float(value)
        if isinstance(value, int) and not isinstance(value, bool)
        else _expect(value, float)
    )
    if not -_MAX_NUMBER <= number <= _MAX_NUMBER:
        raise ValueError("time out of range")
    return number


def _timestamps(value: object) -> list[float]:
    return [_timestamp(item) for item in _expect(value, list)]


def _optional(check: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else check(value)


def _last_end(value: object) -> LastEnd:
    cause, verdict, at, lasted = _expect(list(value) if isinstance(value, LastEnd) else value, list)
    return LastEnd(_expect(cause, str), _expect(verdict, str), _timestamp(at), _timestamp(lasted))


def _breaker(value: object) -> dict[str, Any]:
    table = _table(value)
    return {
        "events": _timestamps(table.get("events")),
        "opened_at": _optional(_timestamp)(table.get("opened_at")),
        "reason": _expect(table.get("reason"), str),
        "trial": _expect(table.get("trial"), bool),
    }


_CHECKS: dict[str, Callable[[object], Any]] = {
    "desired": _optional(lambda value: _expect(value, bool)),
    "stopped_at": _optional(_timestamp),
    "starts": _count,
    "restarts": _count,
    "failures": _count,
    "hangs": _count,
    "crash_loops": _count,
    "history": _timestamps,
    "last_start": _optional(_timestamp),
    "last_end": _optional(_last_end),
    "breaker": _optional(_breaker),
}
