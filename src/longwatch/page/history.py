"""The recent events of a state directory: the newest records, and counts by hour and program.

Follows `logs/watchdog.log`, through rotations, from at most a day back. Memory is bounded: the
oldest records are dropped, and each hour counts a limited number of programs by name.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from pathlib import Path

from longwatch.app.log_reader import EventRecord, LogTail
from longwatch.observe.logfile import SUPERVISOR_LOG
from longwatch.supervisor.restart_policy import RESTART_VERDICTS, EndVerdict

MAX_RECORDS = 2000
MAX_READ_BACK = 100_000
"""Records that are read and counted at the start."""
HOURS = 24
HOUR = 3600
OTHER_PROGRAMS = "(others)"
_MAX_PROGRAMS = 1000
"""Programs counted by name in one hour."""
_FAILURES = frozenset(
    {*RESTART_VERDICTS, EndVerdict.CONFIGURATION_ERROR, EndVerdict.FATAL_ERROR_NO_RESTART}
)
SEVERITY = {"debug": 0, "info": 1, "warning": 2, "error": 3, "critical": 4}


@dataclass(slots=True)
class HourCount:
    """Restarts and failures within one hour, by program."""

    restarts: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


class EventHistory:
    """The recent events. Thread-safe; `refresh` reads the log and blocks on the disk, all else
    answers from memory.
    """

    def __init__(self, state: Path | None) -> None:
        self._path = None if state is None else state / "logs" / f"{SUPERVISOR_LOG}.log"
        self._tail: LogTail | None = None
        self._lock = threading.Lock()
        self._records: deque[EventRecord] = deque(maxlen=MAX_RECORDS)
        self._hours: dict[int, HourCount] = {}
        self.total = 0
        """Records read so far: it grows with each."""

    @property
    def is_read(self) -> bool:
        """Whether the past has been read."""
        return self._path is None or self._tail is not None

    def refresh(self) -> bool:
        """Read what was logged since the last call; whether there was anything."""
        if self._path is None:
            return False
        if self._tail is None:
            tail = LogTail(self._path)
            self._read_past(tail)
            self._tail = tail
            return True
        before = self.total
        with suppress(OSError):  # the next call reads on
            for record in _parsed(self._tail.read_new()):
                self._add(record)
        return self.total != before

    def close(self) -> None:
        if self._tail is not None:
            self._tail.close()

    def records(
        self, *, program: str = "", level: str = "info", text: str = ""
    ) -> list[EventRecord]:
        """The matching records, newest first. A level means it and those above it."""
        least = SEVERITY.get(level, 0)
        with self._lock:
            found = list(self._records)
        return [
            record
            for record in reversed(found)
            if SEVERITY.get(str(record.get("level")), 1) >= least
            and (not program or is_about(record, program))
            and (not text or text in str(record.get("event", "")))
        ]

    def latest(self, count: int, *, program: str = "", level: str = "info") -> list[EventRecord]:
        """The newest matching records, newest first."""
        return self.records(program=program, level=level)[:count]

    def hours(self, now: float | None = None) -> list[tuple[int, HourCount]]:
        """The counts of the last day, oldest first: the time at which each hour began."""
        current = int(time.time() if now is None else now) // HOUR
        with self._lock:
            return [
                (hour * HOUR, _copied(self._hours.get(hour)))
                for hour in range(current - HOURS + 1, current + 1)
            ]

    def _read_past(self, tail: LogTail) -> None:
        """Read the records of the last day, newest first, and keep the newest."""
        oldest = time.time() - HOURS * HOUR
        kept: deque[EventRecord] = deque()
        with closing(_parsed(tail.read_last())) as records:
            for record in islice(records, MAX_READ_BACK):
                is_old = moment_of(record) < oldest
                if len(kept) < MAX_RECORDS:
                    kept.appendleft(record)
                elif is_old:
                    break
                if not is_old:
                    self._count(record)
        with self._lock:
            self._records.extend(kept)
            self.total = len(kept)

    def _add(self, record: EventRecord) -> None:
        with self._lock:
            self.total += 1
            self._records.append(record)
            self._count(record)

    def _count(self, record: EventRecord) -> None:
        restarted = record.get("event") == "restart_scheduled"
        failed = str(record.get("verdict")) in _FAILURES
        if not (restarted or failed):
            return
        hour = int(moment_of(record)) // HOUR
        count = self._hours.setdefault(hour, HourCount())
        counter = count.restarts if restarted else count.failures
        name = str(record.get("program", ""))
        counter[name if name in counter or len(counter) < _MAX_PROGRAMS else OTHER_PROGRAMS] += 1
        for old in sorted(self._hours)[: -HOURS - 1]:
            del self._hours[old]


def is_about(record: EventRecord, program: str) -> bool:
    """Whether a record is about a program."""
    listed = record.get("programs")
    return record.get("program") == program or (isinstance(listed, list) and program in listed)


def moment_of(record: EventRecord) -> float:
    """The wall time of a record; 0 if it has none."""
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(str(record.get("ts"))).timestamp()
    return 0.0


def _copied(count: HourCount | None) -> HourCount:
    if count is None:
        return HourCount()
    return HourCount(Counter(count.restarts), Counter(count.failures))


def _parsed(lines: Iterator[bytes]) -> Generator[EventRecord]:
    for line in lines:
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict):
                yield record
