"""One source of the simulator: its events at a steady rate, and the faults of its streams.

Faults
    drop     a connection is cut in the middle of an event
    stall    a connection stays open and sends nothing
    bytes    the data of an event has bytes that are not UTF-8
    status   requests get this status instead of a stream
Faults by count use the number of delivered events of the source, including those sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from longwatch.errors import UsageError
from longwatch.runner.simulated_events import FaultGenerator, History, Journal, SentEvent

if TYPE_CHECKING:
    from aiohttp import web

MAX_BATCH = 200
MAX_LAG = 1.0
"""Seconds. A producer that is later than this, as after a suspend, does not catch up."""


@dataclass(slots=True, kw_only=True)
class StreamFaults:
    """The faults of the streams of a source; 0 and None: no fault."""

    drop_every: int = 0
    stall_every: int = 0
    stall_seconds: float = 60.0
    bad_bytes_every: int = 0
    retry_ms: int | None = None
    status: int | None = None

    def validate(self) -> None:
        """Raise UsageError for values that no stream can have."""
        if self.drop_every == 1:
            raise UsageError("drop_every must be 0 or at least 2: every event would be cut off")
        if min(self.drop_every, self.stall_every, self.bad_bytes_every) < 0:
            raise UsageError("drop_every, stall_every and bad_bytes_every must not be negative")
        if self.stall_seconds <= 0:
            raise UsageError(f"stall_seconds must be above 0, not {self.stall_seconds}")
        if self.retry_ms is not None and self.retry_ms < 0:
            raise UsageError(f"retry_ms must not be negative, got {self.retry_ms}")
        if self.status is not None and self.status not in range(200, 600):
            raise UsageError(f"status must be from 200 to 599, not {self.status}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSettings:
    """The settings of a simulation. `count`: events of each source in all; None: no end. `history`:
    how many events of each source stay in memory to be sent again.
    """

    sources: tuple[str, ...]
    rate: float = 1.0
    count: int | None = None
    seed: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    history: int = 10_000
    journal: Path | None = None
    comment_interval: float = 15.0
    faults: StreamFaults = field(default_factory=StreamFaults)


class ConnectionDroppedError(Exception):
    """Raised to cut a connection, as a simulated fault."""


class OpenStream:
    """One connection of a client."""

    def __init__(self, request: web.Request) -> None:
        self.wakeup = asyncio.Event()
        self._request = request

    def abort(self) -> None:
        """Cut the connection at once, also in the middle of an event."""
        if self._request.transport is not None:
            self._request.transport.abort()


class SimulatedSource:
    """One source: invents its events, keeps them, and wakes its streams."""

    def __init__(self, name: str, settings: SimulatorSettings, journal: Journal | None) -> None:
        self.name = name
        self.rate = settings.rate
        self.faults = StreamFaults(**asdict(settings.faults))
        self.history = History(name, limit=settings.history, journal=journal)
        self.delivered = 0
        self.requests = 0
        self.streams: set[OpenStream] = set()
        self._count = settings.count
        self._generator = FaultGenerator(name, seed=settings.seed)
        self._stalled_until = 0.0

    async def produce(self) -> None:
        """Add events at the rate of the source until there are enough."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._count is None or self.history.newest < self._count:
            if self.rate <= 0:
                await asyncio.sleep(MAX_LAG)
                due = loop.time()
                continue
            due = max(due + 1 / self.rate, loop.time() - MAX_LAG)
            await asyncio.sleep(due - loop.time())
            self.add()

    def add(self, data: str | None = None) -> SentEvent:
        """Add one event, invented if none is given, and wake the streams."""
        every = self.faults.bad_bytes_every
        number = self.history.newest + 1
        is_bad = every > 0 and number % every == 0
        if data is None:
            data = self._generator.data(number, has_bad_bytes=is_bad)
        event = self.history.add(data)
        for stream in self.streams:
            stream.wakeup.set()
        return event

    def drop_streams(self) -> int:
        """Cut every connection. Return how many there were."""
        for stream in self.streams:
            stream.abort()
        return len(self.streams)

    def stall(self, seconds: float) -> None:
        """Send nothing on any connection for this many seconds."""
        self._stalled_until = asyncio.get_running_loop().time() + seconds

    async def wait_while_stalled(self) -> None:
        loop = asyncio.get_running_loop()
        while loop.time() < self._stalled_until:  # noqa: ASYNC110 - the end may be brought forward meanwhile
            await asyncio.sleep(0.05)

    async def write_events(self, response: web.StreamResponse, cursor: int) -> int:
        """Send the events after a number, with the faults that are due. Return the last number
        sent.
        """
        for batch in _batches(self.history.after(cursor)):
            await self.wait_while_stalled()
            payload = bytearray()
            for event in batch:
                self.delivered += 1
                wire = event.encode()
                if self._is_due(self.faults.drop_every):
                    await response.write(bytes(payload + wire[: len(wire) // 2]))
                    raise ConnectionDroppedError
                if self._is_due(self.faults.stall_every):
                    self.stall(self.faults.stall_seconds)
                payload += wire
                cursor = event.number
            await response.write(bytes(payload))
        return cursor

    def _is_due(self, every: int) -> bool:
        return every > 0 and self.delivered % every == 0

    def status(self) -> dict[str, object]:
        """Return the status that `GET /control` shows."""
        return {
            "sent": self.history.newest,
            "delivered": self.delivered,
            "requests": self.requests,
            "connections": len(self.streams),
            "rate": self.rate,
            **asdict(self.faults),
        }


def _batches(events: list[SentEvent]) -> Iterator[list[SentEvent]]:
    return (events[start : start + MAX_BATCH] for start in range(0, len(events), MAX_BATCH))
