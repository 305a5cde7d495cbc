"""The log of Longwatch's own processes: each event and each stdlib log call becomes one record, and
one line in each sink.

A record begins with `ts, level, event, pid, managerPid`; the fields of the event follow, with
secrets masked, but for optional fields that are empty. Every record can be written as JSON: a value
that is no number, text, list or mapping becomes its text.

An `EventLog` is an observer of `core.events`. It makes a record of each event and passes it to its
sinks. A sink is a writer (`NonblockingWriter`, `LogFile`), a format and its lowest level. An event
that may come in floods is rate-limited by its class (`max_logged_per_second`): the record after a
gap has the number of suppressed records in `suppressed`.

Nothing here raises. A record that cannot be made is replaced by one that says so, and a writer that
fails does not keep the line from the others. The library itself configures no logging. Only
processes that Longwatch starts call `redirect_logging`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from longwatch.core.clock import Clock
from longwatch.core.events.base import Event, Level, event_fields
from longwatch.core.masking import mask_mapping
from longwatch.core.traceback_text import bound_traceback, describe_traceback
from longwatch.core.tracing import active as active_tracer
from longwatch.observe.log_format import to_json, to_pretty

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

RecordFormat = Callable[[Record], str]


class LineWriter(Protocol):
    """Takes whole lines at once, without blocking or raising. Returns False if lines were dropped.
    Thread-safe.
    """

    def write(self, data: bytes) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSink:
    """One destination of the log: its writer, its format and its lowest level."""

    writer: LineWriter
    format_record: RecordFormat = to_json
    level: Level = Level.INFO

    def accepts(self, level: Level) -> bool:
        return severity(level) >= severity(self.level)

    def write(self, record: Record) -> None:
        """Write the record as one line. Raises the errors of the format."""
        self.writer.write(self.format_record(record).encode("utf-8", "backslashreplace") + b"\n")


class EventLog:
    """An observer that writes one record per event to every sink. Thread-safe, never raises."""

    def __init__(
        self, sinks: Sequence[LogSink], *, clock: Clock, manager_pid: int | None = None
    ) -> None:
        self._sinks = tuple(sinks)
        self._clock = clock
        self._limiter = _RateLimiter(clock)
        self.manager_pid = os.getpid() if manager_pid is None else manager_pid

    def __call__(self, event: Event) -> None:
        limit = event.max_logged_per_second
        suppressed = 0 if limit is None else self._limiter.take(event.name, limit)
        if suppressed is not None:
            self._log(event, event.level, lambda: self._record(event, suppressed))

    def log_stdlib(self, record: logging.LogRecord) -> None:
        """Log a record of stdlib logging."""
        self._log(
            record,
            level_of(record.levelno),
            lambda: stdlib_record(record, manager_pid=self.manager_pid),
        )

    def _record(self, event: Event, suppressed: int) -> Record:
        record = event_record(event, wall=self._clock.wall(), manager_pid=self.manager_pid)
        return {**record, "suppressed": suppressed} if suppressed else record

    def _log(self, source: object, level: Level, make: Callable[[], Record]) -> None:
        accepting = [sink for sink in self._sinks if sink.accepts(level)]
        if not accepting:
            return
        try:
            record = make()
        except Exception as error:  # noqa: BLE001 - user data of any kind; logging must not fail
            record = self._failed_record(source, error)
        for sink in accepting:
            self._write(sink, record, source)

    def _write(self, sink: LogSink, record: Record, source: object) -> None:
        try:
            sink.write(record)
        except Exception as error:  # noqa: BLE001 - a sink that fails must not keep the record from the others
            with suppress(Exception):
                sink.write(self._failed_record(source, error))

    def _failed_record(self, source: object, error: Exception) -> Record:
        return failed_record(source, error, wall=self._clock.wall(), manager_pid=self.manager_pid)


class _RateLimiter:
    """Lets a few records of one name pass in each second. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: dict[str, _LogWindow] = {}

    def take(self, name: str, limit: int) -> int | None:
        """The number of records suppressed since the last one that passed; None to suppress this
        one.
        """
        now = self._clock.monotonic()
        with self._lock:
            window = self._windows.setdefault(name, _LogWindow(began_at=now))
            if now - window.began_at >= 1.0:
                window.began_at, window.passed = now, 0
            if window.passed >= limit:
                window.suppressed += 1
                return None
            window.passed += 1
            suppressed, window.suppressed = window.suppressed, 0
            return suppressed


@dataclass(slots=True)
class _LogWindow:
    began_at: float
    passed: int = 0
    suppressed: int = 0


class LogHandler(logging.Handler):
    """Carries stdlib log records into an EventLog."""

    def __init__(self, log: EventLog, *, level: Level = Level.DEBUG) -> None:
        super().__init__(severity(level))
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log_stdlib(record)


class JsonFormatter(logging.Formatter):
    """A formatter for handlers of stdlib logging: one line of JSON per record."""

    def format(self, record: logging.LogRecord) -> str:
        return _format_stdlib(record, to_json)


class PrettyFormatter(logging.Formatter):
    """A formatter for handlers of stdlib logging: the pretty form."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        return _format_stdlib(record, lambda made: to_pretty(made, colour=self._colour))


def redirect_logging(log: EventLog, *, level: Level = Level.INFO) -> Callable[[], None]:
    """Send everything that this process reports through `logging` and `warnings` to the log and
    nowhere else. Returns a function that restores the former handlers.
    """
    logging.captureWarnings(True)
    root = logging.getLogger()
    former_handlers, former_level = root.handlers[:], root.level
    root.handlers[:] = [LogHandler(log)]
    root.setLevel(severity(level))

    def restore() -> None:
        root.handlers[:] = former_handlers
        root.setLevel(former_level)
        logging.captureWarnings(False)

    return restore


def dropped_lines_record(*, clock: Clock, manager_pid: int | None = None) -> Callable[[int], bytes]:
    """Makes the function with which a JSON log file reports dropped lines, once it can
    write again.
    """

    def dropped_line(lines: int) -> bytes:
        own = os.getpid()
        head: Record = {
            "ts": timestamp(clock.wall()),
            "level": Level.WARNING.value,
            "event": "log_lines_dropped",
            "pid": own,
        }
        return (
            to_json(
                {**head, "managerPid": own if manager_pid is None else manager_pid, "lines": lines}
            ).encode()
            + b"\n"
        )

    return dropped_line


def _format_stdlib(record: logging.LogRecord, format_record: RecordFormat) -> str:
    try:
        return format_record(stdlib_record(record, manager_pid=os.getpid()))
    except Exception as error:  # noqa: BLE001 - as in EventLog
        return format_record(
            failed_record(record, error, wall=record.created, manager_pid=os.getpid())
        )


def event_record(event: Event, *, wall: float, manager_pid: int) -> Record:
    """The record of an event. `pid` is the process that the event is about, else this process."""
    fields = event_fields(event)
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
    if (tracer := active_tracer()) is not None:
        fields |= tracer.log_fields()
    if record.exc_info:
        fields["traceback"] = _exception_text(record.exc_info)
    elif record.exc_text:
        fields["traceback"] = bound_traceback(record.exc_text)
    return _with_fields(head, fields)


def _exception_text(exc_info: tuple[Any, ...]) -> str:
    error = exc_info[1]
    return "" if error is None else describe_traceback(error)


def failed_record(source: object, error: Exception, *, wall: float, manager_pid: int) -> Record:
    """The record that replaces one that could not be made."""
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
    """Add fields to the head of a record. Fields cannot replace values of the head."""
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
