"""The log of our own processes: every event and every stdlib log call, as one line in each place
that wants it.

An EventLog is an observer of `core.events`. It makes one record of each event and hands it to its
sinks; a sink is a writer (a LogFile, a NonblockingWriter), a format, and its lowest level. Nothing
here raises: a record that cannot be made becomes one that says so, and a writer that fails does not
keep the line from the others. The library itself configures no logging; only `app` calls
`redirect_logging`, in a process that is ours.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.core.events.base import Event, Level
from longwatch.observe.log_format import to_json, to_pretty
from longwatch.observe.log_record import (
    Record,
    event_record,
    failed_record,
    level_of,
    severity,
    stdlib_record,
    timestamp,
)

RecordFormat = Callable[[Record], str]


class LineWriter(Protocol):
    """Takes whole lines, now, without blocking or raising; False if some were dropped. Called
    from any thread.
    """

    def write(self, data: bytes) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSink:
    """One place for the log: where lines go, how they look, and how loud a record must be to get
    there.
    """

    writer: LineWriter
    format_record: RecordFormat = to_json
    level: Level = Level.INFO

    def accepts(self, level: Level) -> bool:
        return severity(level) >= severity(self.level)

    def write(self, record: Record) -> None:
        """Write the record as one line; raises what the form raises."""
        self.writer.write(self.format_record(record).encode("utf-8", "backslashreplace") + b"\n")


class EventLog:
    """Turns each event into one record and gives it to every sink; an Observer. Thread-safe,
    never raises.
    """

    def __init__(
        self, sinks: Sequence[LogSink], *, clock: Clock, manager_pid: int | None = None
    ) -> None:
        self._sinks = tuple(sinks)
        self._clock = clock
        self.manager_pid = os.getpid() if manager_pid is None else manager_pid

    def __call__(self, event: Event) -> None:
        self._log(
            event,
            event.level,
            lambda: event_record(event, wall=self._clock.wall(), manager_pid=self.manager_pid),
        )

    def log_stdlib(self, record: logging.LogRecord) -> None:
        """Log what came through stdlib logging."""
        self._log(
            record,
            level_of(record.levelno),
            lambda: stdlib_record(record, manager_pid=self.manager_pid),
        )

    def _log(self, source: object, level: Level, make: Callable[[], Record]) -> None:
        accepting = [sink for sink in self._sinks if sink.accepts(level)]
        if not accepting:
            return
        try:
            record = make()
        except Exception as error:  # noqa: BLE001 - user data of any kind; the log must go on
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


class LogHandler(logging.Handler):
    """Carries stdlib log records into an EventLog."""

    def __init__(self, log: EventLog, *, level: Level = Level.DEBUG) -> None:
        super().__init__(severity(level))
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log_stdlib(record)


class JsonFormatter(logging.Formatter):
    """The JSON form for anyone's own stdlib handler."""

    def format(self, record: logging.LogRecord) -> str:
        return _format_stdlib(record, to_json)


class PrettyFormatter(logging.Formatter):
    """The pretty form for anyone's own stdlib handler."""

    def __init__(self, *, colour: bool = False) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        return _format_stdlib(record, lambda made: to_pretty(made, colour=self._colour))


def redirect_logging(log: EventLog, *, level: Level = Level.INFO) -> Callable[[], None]:
    """Have everything logged in this process go to the log and nowhere else; returns what puts
    back what was there.
    """
    root = logging.getLogger()
    former_handlers, former_level = root.handlers[:], root.level
    root.handlers[:] = [LogHandler(log)]
    root.setLevel(severity(level))

    def restore() -> None:
        root.handlers[:] = former_handlers
        root.setLevel(former_level)

    return restore


def dropped_lines_record(*, clock: Clock, manager_pid: int | None = None) -> Callable[[int], bytes]:
    """What a LogFile of JSON lines writes, once it can again, about the lines it had to drop."""

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
