"""When a tick fires: after a delay, at an interval, by a cron expression, or at the time that a
function returned. Everything here is pure: callers pass the present time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import floor
from typing import Any, NamedTuple, Protocol

import msgspec

from longwatch.core.duration import YEAR_SECONDS, format_duration
from longwatch.errors import GraphError, PermanentError
from longwatch.flow.node_options import is_finite_number

MIN_SPACING = 1.0
"""The fewest seconds between two firings of a recurring tick."""
_MAX_SECONDS = 100 * YEAR_SECONDS
_CRON_FIELDS = 5


class Schedule(Protocol):
    """The schedule of a tick without a function."""

    def next_due(self, now: float, last: float | None) -> float | None:
        """The next due time after `now`, both as wall time; None: never.

        `last` is the due time of the last firing with the same inputs, at most `now`.
        """

    @property
    def text(self) -> str:
        """The schedule in words."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Once, some seconds after the gate is met."""

    seconds: float

    def next_due(self, now: float, last: float | None) -> float:  # noqa: ARG002 - the contract
        return now + self.seconds

    @property
    def text(self) -> str:
        return f"after {format_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Every:
    """At an interval. The firings keep their phase, however late one of them is."""

    seconds: float

    def next_due(self, now: float, last: float | None) -> float:
        if last is None:
            return now + self.seconds
        count = floor((now - last) / self.seconds) + 1
        due = last + count * self.seconds
        return due if due > now else due + self.seconds

    @property
    def text(self) -> str:
        return f"every {format_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class Cron:
    """At the times of a cron expression in a time zone.

    A time that the clocks skip in spring is replaced by the first time after the gap. A time that
    they show twice in autumn counts once. An expression whose minute or hour begins with `*` goes
    by real time: it has both of two equal times, and none in the gap.
    """

    expression: str
    timezone: str = "UTC"

    def next_due(self, now: float, last: float | None) -> float | None:  # noqa: ARG002 - the contract
        from cronsim import CronSim  # noqa: PLC0415 - only graphs with a cron expression need it

        local = datetime.fromtimestamp(floor(now), _zone(self.timezone))
        for moment in CronSim(self.expression, local):
            if moment.timestamp() > now:  # in autumn, the first of two equal times may be over
                return moment.timestamp()
        return None

    @property
    def text(self) -> str:
        return f"at {self.expression} ({self.timezone})"


# --- validation ---


def validate_delay(node: str, seconds: Any) -> Delay:
    """Validate `delay=`. Raises GraphError."""
    if not is_finite_number(seconds) or not 0 <= seconds <= _MAX_SECONDS:
        raise GraphError(
            f"node {node!r}: delay must be a number of seconds from 0 to 100 years, not "
            f"{seconds!r}; for a point in time use a function that returns it"
        )
    return Delay(float(seconds))


def validate_every(node: str, seconds: Any) -> Every:
    """Validate `every=`. Raises GraphError."""
    if not is_finite_number(seconds) or not MIN_SPACING <= seconds <= _MAX_SECONDS:
        raise GraphError(
            f"node {node!r}: every must be a number of seconds from 1 to 100 years, not "
            f"{seconds!r}; for work without a pause use a loop"
        )
    return Every(float(seconds))


def validate_cron(node: str, expression: Any, timezone: Any, *, now: float) -> Cron:
    """Validate `cron=` and `timezone=`. Raises GraphError."""
    from cronsim import CronSimError  # noqa: PLC0415 - only graphs with a cron expression need it

    _validate_timezone(node, timezone)
    cure = "write minute, hour, day, month and weekday, such as '30 9 * * mon-fri'"
    if not isinstance(expression, str) or len(expression.split()) != _CRON_FIELDS:
        raise GraphError(f"node {node!r}: cron must have five fields, not {expression!r}; {cure}")
    cron = Cron(" ".join(expression.split()), timezone)
    try:
        first = cron.next_due(now, None)
    except CronSimError as error:
        raise GraphError(
            f"node {node!r}: {expression!r} is no cron expression ({error}); {cure}"
        ) from None
    if first is None:
        raise GraphError(f"node {node!r}: cron {expression!r} is never due; name a day that exists")
    return cron


def _validate_timezone(node: str, timezone: Any) -> None:
    try:
        _zone(timezone)
    except (KeyError, ValueError, TypeError, AttributeError, OSError):
        raise GraphError(
            f"node {node!r}: timezone {timezone!r} is unknown; use a name such as "
            f"'Europe/Berlin' or 'UTC', and install tzdata if this machine has no time zones"
        ) from None


@lru_cache(maxsize=64)
def _zone(name: str) -> tzinfo:
    if name == "UTC":  # known on machines without time zones, too
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - only cron expressions with a time zone need it

    return ZoneInfo(name)


# --- the results of schedule functions ---


class ScheduleAnswer(NamedTuple):
    """The result of a schedule function: a wall time, or seconds from now, or neither."""

    at: float | None = None
    after: float | None = None

    @property
    def is_never(self) -> bool:
        return self.at is None and self.after is None


def to_answer(node: str, result: Any) -> ScheduleAnswer:
    """Convert the result of a schedule function. Raises PermanentError."""
    if result is None:
        return ScheduleAnswer()
    if isinstance(result, datetime):
        if result.utcoffset() is None:
            raise PermanentError(
                f"the time {result} of tick {node!r} has no time zone; return an aware datetime, "
                f"such as datetime.now(UTC) + timedelta(hours=1)"
            )
        return ScheduleAnswer(at=_to_wall_time(node, result))
    seconds = result.total_seconds() if isinstance(result, timedelta) else result
    if not is_finite_number(seconds) or abs(seconds) > _MAX_SECONDS:
        raise PermanentError(
            f"tick {node!r} cannot fire at {result!r}; return an aware datetime, a timedelta or "
            f"seconds of up to 100 years, or None for never"
        )
    return ScheduleAnswer(after=float(seconds))


def _to_wall_time(node: str, moment: datetime) -> float:
    """An aware datetime as wall time that UTC can show. Raises PermanentError."""
    try:
        datetime.fromtimestamp(moment.timestamp(), UTC)
    except (ValueError, OverflowError, OSError):
        raise PermanentError(
            f"the time {moment} of tick {node!r} is outside the years 1 to 9999 in UTC; return an "
            f"earlier or a later one, or None for never"
        ) from None
    return moment.timestamp()


def encode_answer(answer: ScheduleAnswer) -> bytes:
    return msgspec.json.encode(list(answer))


def decode_answer(text: str) -> ScheduleAnswer:
    return ScheduleAnswer(*msgspec.json.decode(text))
