"""What `longwatch top` shows: programs, loops of workers and the latest warnings, again and again.

A thread of its own asks, so that a supervisor that does not answer never holds up the screen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from longwatch.app.control import status, workers
from longwatch.app.log_reader import EventLogReader, EventRecord
from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.error_text import describe_error
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread

JsonObject = dict[str, Any]

MAX_WARNINGS = 3
_MAX_FIRST_RECORDS = 500
"""How many of the last records are searched for warnings at the start, however long the log is."""
_WARNING_LEVELS = frozenset({"warning", "error", "critical"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What was found at one moment. `response` is the last answer about programs, `problem` why
    there is no newer one; it is empty if there is. `answered_at` is wall time.
    """

    response: JsonObject | None = None
    workers: tuple[JsonObject, ...] = ()
    warnings: tuple[EventRecord, ...] = ()
    problem: str = ""
    answered_at: float = 0.0


@dataclass(slots=True)
class LatestWarnings:
    """The last records of level warning or above in `logs/watchdog.log`, which may appear later."""

    state: Path
    _reader: EventLogReader | None = None
    _kept: deque[EventRecord] = field(default_factory=lambda: deque(maxlen=MAX_WARNINGS))

    def read(self) -> tuple[EventRecord, ...]:
        """Return them, oldest first. Blocks on the disk."""
        with suppress(LongwatchError, OSError):
            if self._reader is None:
                self._reader = EventLogReader(self.state, ())
                self._keep(self._reader.read_last(_MAX_FIRST_RECORDS))
            self._keep(self._reader.read_new())
        return tuple(self._kept)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def _keep(self, records: Any) -> None:
        self._kept.extend(record for record in records if record.get("level") in _WARNING_LEVELS)


class LiveStatus:
    """Takes a snapshot every `interval` seconds in a thread and calls `on_change` after each.

    Any thread may read `snapshot`. `stop` does not wait for a question that is on its way.
    """

    def __init__(
        self,
        state: Path,
        *,
        interval: float,
        on_change: Callable[[], object],
        clock: Clock | None = None,
    ) -> None:
        self.snapshot = Snapshot(problem="asking the supervisor")
        self._state = state
        self._interval = interval
        self._on_change = on_change
        self._clock = clock or SystemClock()
        self._stopped = Wakeup()
        self._thread = BackgroundThread(self._run, name="longwatch-top")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        with closing(LatestWarnings(self._state)) as warnings:
            while not self._stopped.is_set():
                self.snapshot = next_snapshot(
                    self._state, warnings, self.snapshot, wall=self._clock.wall
                )
                self._on_change()
                self._clock.wait(self._stopped, self._interval)


def next_snapshot(
    state: Path, warnings: LatestWarnings, last: Snapshot, *, wall: Callable[[], float]
) -> Snapshot:
    """Ask once. If no supervisor answers, the last answer stays and `problem` says why."""
    found = warnings.read()
    try:
        response = status(state, ())
        processes = tuple(workers(state)["workers"])
    except LongwatchError as error:
        return replace(last, warnings=found, problem=str(error))
    except Exception as error:  # noqa: BLE001 - the screen must outlive an answer of another version
        return replace(last, warnings=found, problem=describe_error(error))
    return Snapshot(response=response, workers=processes, warnings=found, answered_at=wall())
