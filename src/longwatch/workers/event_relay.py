"""Relays the events of a Longwatch program to its parent: of a worker process, the runner or the
page.

    in the program  an `EventLog` makes a record of each event of level info or above. A bounded
                    buffer keeps the records as lines, and one thread sends them, in their order.
    in the parent   `workers.child_reports` adds the name of the program, and passes the records on
                    to the log of events (`logs/watchdog.log`), which `longwatch events` shows.

A program never waits for its parent: while the parent reads nothing, the oldest records are
dropped. The parent gets their number with the next record, and emits it as an event. Metrics do not
depend on relayed records: a program counts its own events and reports the counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.events.base import Level
from longwatch.errors import TryAgainError
from longwatch.host.nonblocking_writer import NonblockingWriter, PutResult
from longwatch.host.parent_channel import ParentChannel
from longwatch.observe.event_log import EventLog, LogSink, Record

CAPACITY_BYTES = 256 * 1024
"""Records that wait for the parent."""
_REQUIRED_TEXTS = ("ts", "level", "event")
_FIRST_FIELDS = ("ts", "level", "event", "pid", "managerPid", "program")


class EventRelay:
    """The program's side. `log` is the observer of its events. Never blocks, never raises."""

    def __init__(
        self, parent: ParentChannel, *, clock: Clock, capacity: int = CAPACITY_BYTES
    ) -> None:
        self._writer = NonblockingWriter(
            _ParentTarget(parent), capacity=capacity, name="event-relay"
        )
        self.log = EventLog([LogSink(writer=self._writer, level=Level.INFO)], clock=clock)

    def close(self, timeout: float) -> bool:
        """Send what is left; False if that did not succeed within the timeout. Idempotent."""
        return self._writer.close(timeout)


class _ParentTarget:
    """Sends lines to the parent. Used by the writer thread only."""

    is_open = True

    def __init__(self, parent: ParentChannel) -> None:
        self._parent = parent
        self._dropped = 0

    def put(
        self,
        chunk: bytes,
        *,
        skipped: int,
        is_wanted: Callable[[], bool],  # noqa: ARG002 - one datagram cannot stop midway
    ) -> PutResult:
        """Send whole lines, with the number of those that were dropped before them."""
        self._dropped += skipped
        try:
            self._parent.send("events", lines=chunk.decode(), dropped=self._dropped)
        except TryAgainError:
            self._dropped += chunk.count(b"\n")
            return PutResult(0)
        self._dropped = 0
        return PutResult(len(chunk))

    def close(self) -> None:
        """Nothing to close: the channel opens a socket for each message."""


def relayed_records(message: Mapping[str, Any], *, program: str) -> Iterator[Record]:
    """The records of a relayed message, with the name of the program. Lines that are no records are
    left out.
    """
    for line in str(message["lines"]).split("\n"):
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and all(
                isinstance(record.get(name), str) for name in _REQUIRED_TEXTS
            ):
                found = {**record, "program": program, "managerPid": os.getpid()}
                yield {**{name: found.get(name) for name in _FIRST_FIELDS}, **found}
