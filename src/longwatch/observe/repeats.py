"""Reduces repeated faults on a console for people: shows the first three of a kind, counts the
others, and writes a summary line at growing intervals.

A kind consists of the event, its place and its reason, without ids and counters. Only warnings and
errors in the pretty form are filtered; JSON and log files keep every line. Indented lines below a
record, such as a traceback, belong to it.

`RepeatFilter` decides and counts. Its caller has a timer that calls `write_summaries`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from longwatch.core.clock import Clock

MAX_SHOWN = 3
"""Lines of one kind that are shown before further ones are only counted."""
QUIET_SECONDS = 300.0
"""Seconds without a line of a kind after which the kind is shown again."""
FIRST_SUMMARY_SECONDS = 10.0
MAX_SUMMARY_SECONDS = 600.0
"""The longest time between two summaries of a kind; the time doubles after each."""
MAX_KINDS = 1000

_RECORD = re.compile(
    rb"(?P<head>[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3} (?:\x1b\[[0-9;]*m)?(?P<level>[a-z]+) *"
    rb"(?:\x1b\[0m)? (?P<event>[a-z_]+))(?P<fields> .*)?"
)
_FIELD = re.compile(rb' ([\w.]+)=("(?:[^"\\]|\\.)*"|\S*)')
_REASON_FIELDS = (b"reason", b"error", b"problem", b"cause", b"message")
_PLACE_FIELDS = (b"program", b"engine", b"mailbox", b"cluster", b"task", b"loop", b"logger")
_PROCESS_NUMBER = re.compile(rb"-[0-9]+$")
"""The number in the name of a worker process, NAME-1: the processes of a worker share their kinds.
"""
_ALWAYS_SHOWN = b"verdict"
"""A field of every end of a program. Backoff and breaker limit how often a program ends."""
_FAULT_LEVELS = frozenset({b"warning", b"error"})
_CONTINUATION = b"    "

Kind = tuple[bytes, ...]
Write = Callable[[bytes], object]


class _Summary(NamedTuple):
    write: Write
    line: bytes


@dataclass(slots=True)
class _Repeated:
    """One kind: how many lines were shown, and how many were left out since the last summary."""

    last_at: float
    shown: int = 0
    counted: int = 0
    counted_since: float = 0.0
    interval: float = FIRST_SUMMARY_SECONDS
    line: bytes = b""
    write: Write = field(default=lambda _: None)

    @property
    def due_at(self) -> float:
        return self.counted_since + self.interval


class RepeatFilter:
    """Decides which lines are shown, for all streams of one console. Thread-safe.

    `on_counting` is called when a first line is left out and no summary was due before; the
    caller then waits for `next_delay` and calls `write_summaries` until the former is None.
    """

    def __init__(self, *, clock: Clock, on_counting: Callable[[], None]) -> None:
        self._clock = clock
        self._on_counting = on_counting
        self._lock = threading.Lock()
        self._kinds: dict[Kind, _Repeated] = {}
        self._is_timed = False

    def stream(self, write: Write) -> RepeatStream:
        """A stream that filters lines and passes the shown ones to `write`."""
        return RepeatStream(self, write)

    def shows(self, kind: Kind, line: bytes, write: Write) -> bool:
        """Whether this line of this kind is shown; else it is counted."""
        now = self._clock.monotonic()
        with self._lock:
            repeated = self._kinds.get(kind)
            if repeated is None or now - repeated.last_at >= QUIET_SECONDS:
                self._forget_one()
                repeated = self._kinds[kind] = _Repeated(last_at=now)
            repeated.last_at = now
            if repeated.shown < MAX_SHOWN:
                repeated.shown += 1
                return True
            repeated.counted_since = repeated.counted_since if repeated.counted else now
            repeated.counted += 1
            repeated.line, repeated.write = line, write
            starts_timer, self._is_timed = not self._is_timed, True
        if starts_timer:
            self._on_counting()
        return False

    def next_delay(self) -> float | None:
        """Seconds until the next summary is due; None if no line was left out."""
        now = self._clock.monotonic()
        with self._lock:
            due = [each.due_at for each in self._kinds.values() if each.counted]
            self._is_timed = bool(due)
        return max(min(due) - now, 0.0) if due else None

    def write_summaries(self, *, everything: bool = False) -> None:
        """Write how many lines were left out, of kinds whose summary is due or of all."""
        now = self._clock.monotonic()
        with self._lock:
            summaries = [
                self._summarize(each)
                for each in self._kinds.values()
                if each.counted and (everything or each.due_at <= now)
            ]
        for summary in summaries:
            summary.write(summary.line)

    def _summarize(self, repeated: _Repeated) -> _Summary:
        number, repeated.counted = repeated.counted, 0
        repeated.interval = min(2 * repeated.interval, MAX_SUMMARY_SECONDS)
        line = _summary_line(repeated.line, number)
        return _Summary(repeated.write, line)

    def _forget_one(self) -> None:
        """Remove the oldest kind without a count if there are too many."""
        if len(self._kinds) >= MAX_KINDS:
            quiet = (kind for kind, each in self._kinds.items() if not each.counted)
            self._kinds.pop(next(quiet, next(iter(self._kinds))))


class RepeatStream:
    """Filters the lines of one program or process for the console. Thread-safe for blocks of whole
    records.
    """

    def __init__(self, repeats: RepeatFilter, write: Write) -> None:
        self._repeats = repeats
        self._write = write
        self._lock = threading.Lock()
        self._leaves_out = False

    def reduce(self, data: bytes) -> bytes:
        """The lines of a block that are shown."""
        with self._lock:
            return b"".join(line for line in data.splitlines(keepends=True) if self._shows(line))

    def write(self, data: bytes) -> bool:
        """Write the lines of a block that are shown; False if some of these were dropped."""
        shown = self.reduce(data)
        return not shown or self._write(shown) is not False

    def _shows(self, line: bytes) -> bool:
        if not (self._leaves_out and line.startswith(_CONTINUATION)):
            kind = _kind_of(line)
            self._leaves_out = kind is not None and not self._repeats.shows(kind, line, self._write)
        return not self._leaves_out


def _kind_of(line: bytes) -> Kind | None:
    """The kind of a line; None if the line is no warning or error, or is always shown."""
    record = _RECORD.match(line)
    if record is None or record["level"] not in _FAULT_LEVELS:
        return None
    fields = dict(_FIELD.findall(record["fields"] or b""))
    if _ALWAYS_SHOWN in fields:
        return None
    place = (_PROCESS_NUMBER.sub(b"", fields.get(name, b"")) for name in _PLACE_FIELDS)
    return (record["event"], *place, *(fields.get(name, b"") for name in _REASON_FIELDS))


def _summary_line(line: bytes, number: int) -> bytes:
    """The summary of `number` lines: the time, level, event and reason of the last one."""
    record = _RECORD.match(line)
    assert record is not None
    fields = dict(_FIELD.findall(record["fields"] or b""))
    reasons = (b" %b=%b" % (name, fields[name]) for name in _REASON_FIELDS if name in fields)
    more = f" … and {number:,} more like this".encode()
    return record["head"] + more + b"".join(reasons) + b"\n"
