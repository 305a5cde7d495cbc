"""What one line of the log holds, before it has a form: plain values under their names, secrets
masked.

A record begins with `ts, level, event, pid, managerPid`; then come the event's own fields. Whatever
a field holds, the record can be written as JSON: what is neither number, text, list nor mapping
becomes its text.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum

from longwatch.core.events.base import Event, Level
from longwatch.core.masking import mask_mapping

Record = dict[str, object]

MAX_DEPTH = 8
_LEVELS = {
    Level.DEBUG: logging.DEBUG,
    Level.INFO: logging.INFO,
    Level.WARNING: logging.WARNING,
    Level.ERROR: logging.ERROR,
    Level.CRITICAL: logging.CRITICAL,
}
_STANDARD_ATTRIBUTES = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
}


def event_record(event: Event, *, wall: float, manager_pid: int) -> Record:
    """The record of an event. `pid` is the process the event is about, our own if it is about
    none.
    """
    fields = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    pid = fields.pop("pid", None)
    head = _head(
        event.level,
        event.name,
        wall=wall,
        pid=os.getpid() if pid is None else pid,
        manager_pid=manager_pid,
    )
    return _with_fields(head, fields)


def stdlib_record(record: logging.LogRecord, *, manager_pid: int) -> Record:
    """The record of a call to stdlib logging: its event is `log`, its `extra` values are fields."""
    head = _head(
        level_of(record.levelno),
        "log",
        wall=record.created,
        pid=record.process or os.getpid(),
        manager_pid=manager_pid,
    )
    fields: Record = {"logger": record.name, "message": record.getMessage()}
    fields |= {
        name: value for name, value in vars(record).items() if name not in _STANDARD_ATTRIBUTES
    }
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return _with_fields(head, fields)


def failed_record(source: object, error: Exception, *, wall: float, manager_pid: int) -> Record:
    """The record that stands in for one that could not be made."""
    head = _head(
        Level.ERROR, "log_record_failed", wall=wall, pid=os.getpid(), manager_pid=manager_pid
    )
    return {**head, "source": type(source).__name__, "error": type(error).__name__}


def severity(level: Level) -> int:
    """The level as stdlib logging numbers it."""
    return _LEVELS[level]


def level_of(number: int) -> Level:
    """The loudest level that is not above stdlib's number."""
    return max(
        (level for level in Level if _LEVELS[level] <= number),
        key=_LEVELS.__getitem__,
        default=Level.DEBUG,
    )


def timestamp(wall: float) -> str:
    """UTC, ISO 8601, milliseconds: `2026-10-05T07:30:00.123Z`."""
    return (
        datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _head(level: Level, name: str, *, wall: float, pid: int, manager_pid: int) -> Record:
    return {
        "ts": timestamp(wall),
        "level": level.value,
        "event": name,
        "pid": pid,
        "managerPid": manager_pid,
    }


def _with_fields(head: Record, fields: Mapping[str, object]) -> Record:
    """The head wins over a field of the same name: nothing a user passes can forge it."""
    plain = {name: _plain(value, MAX_DEPTH) for name, value in fields.items() if name not in head}
    return {**head, **mask_mapping(plain)}


def _plain(value: object, deeper: int) -> object:
    match value:
        case Mapping() if deeper:
            return {str(key): _plain(item, deeper - 1) for key, item in value.items()}
        case list() | tuple() | set() | frozenset() if deeper:
            return [_plain(item, deeper - 1) for item in value]
        case Mapping() | list() | tuple() | set() | frozenset():
            return "…"
        case Enum():
            return _plain_scalar(value.value)
        case _:
            return _plain_scalar(value)


def _plain_scalar(value: object) -> object:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return round(value, 3) if math.isfinite(value) else str(value)
        case bytes() | bytearray():
            return value.decode("utf-8", "backslashreplace")
        case _:
            return str(value)
