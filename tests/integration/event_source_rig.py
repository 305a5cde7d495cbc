"""A connection to an event source, and servers with faults on loopback for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self, TypeVar

from longwatch.core.clock import SystemClock
from longwatch.core.events.base import Event, Events
from longwatch.errors import StoreBusyError
from longwatch.runner.connection import ConnectionState, SourceConnection
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.seams import StreamItem

DEADLINE = 60.0
E = TypeVar("E", bound=Event)


class HastyClock(SystemClock):
    """Real time, except that sleeps are short: they are noted, and time jumps by them."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []
        self._jumped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._jumped

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._jumped += seconds
        await asyncio.sleep(min(seconds, 0.02))

    def jump(self, seconds: float) -> None:
        self._jumped += seconds


@dataclass
class MemoryIntake:
    """Keeps what it takes in memory; fails as often as `failures` says."""

    items: list[StreamItem] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    stored: str = ""
    oversize: int = 0
    failures: int = 0
    gate: asyncio.Event | None = None
    """Closed: `take` waits for it, as for a slow store."""

    async def cursor(self, source: str) -> str:
        return self.stored

    async def take(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise StoreBusyError("locked")
        self.items += items
        self.batches.append(len(items))
        self.stored = cursor

    async def report_oversize(self, source: str, count: int) -> None:
        self.oversize += count

    @property
    def data(self) -> list[str]:
        return [item.data for item in self.items]


class Rig:
    """One connection that runs, and all that it says."""

    def __init__(self, spec: SourceSpec, policy: RunnerPolicy, intake: MemoryIntake) -> None:
        self.intake = intake
        self.clock = HastyClock()
        self.seen: list[Event] = []
        self.states: list[ConnectionState] = []
        self.connection = SourceConnection(
            spec,
            policy,
            intake,
            clock=self.clock,
            events=Events(self.seen.append),
            jitter=lambda: 0.0,
            report=self.states.append,
        )

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.seen if isinstance(event, kind)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE):
            while not condition():  # noqa: ASYNC110 - servers and events give no common sign
                await asyncio.sleep(0.002)

    async def first(self, kind: type[E], count: int = 1) -> E:
        """The event of this kind and number, when it was emitted."""
        await self.until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]


@asynccontextmanager
async def running(
    spec: SourceSpec, *, policy: RunnerPolicy | None = None, intake: MemoryIntake | None = None
) -> AsyncIterator[Rig]:
    """A connection that runs until the end of the block."""
    rig = Rig(spec, policy or RunnerPolicy(), intake or MemoryIntake())
    task = asyncio.create_task(rig.connection.run())
    try:
        yield rig
        assert not task.done()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# --- servers ---


@dataclass
class Request:
    """What a client has sent. Names of headers in lower case."""

    path: str
    headers: dict[str, str]


Script = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]
EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"


class FaultyServer:
    """Answers the n-th request with the n-th script, the last one for ever; then closes."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._scripts = scripts
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Request] = []
        self.port = 0

    @property
    def url(self) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self.port}/events"

    @property
    def spec(self) -> SourceSpec:
        return SourceSpec(name="east", url=self.url)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            request = Request(first.split()[1], headers)
            script = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
            self.requests.append(request)
            await script(request, writer)
            await writer.drain()
        writer.close()


def answers(status: int, *headers: str, body: bytes = b"no") -> Script:
    """A whole response."""

    async def script(_: Request, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Some", f"Content-Length: {len(body)}", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + (b"" if status == 204 else body))

    return script


def sends(*chunks: bytes, then: Callable[[asyncio.StreamWriter], Awaitable[None]]) -> Script:
    """An event stream of these bytes, without a length."""

    async def script(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(EVENT_STREAM + b"\r\n")
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        await then(writer)

    return script


async def ends(_: asyncio.StreamWriter) -> None:
    """A clean end."""


async def resets(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def stalls(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()
