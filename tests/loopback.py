"""Ports that nobody listens on, for servers of tests.

A loopback TCP proxy before a server: it passes on, delays, swallows, cuts and refuses, as a
network between machines may.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self

MAX_PORT = 65536


def free_port(*, below: int = MAX_PORT) -> int:
    """A free port on loopback; whoever comes first may take it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port < below:
            return port


TIMEOUT = 10.0
_CHUNK = 1 << 16

DelayedChunk = tuple[float, bytes]
"""When it is to be delivered, on the loop's clock, and what; the empty one is the end."""


class Link:
    """One connection through the proxy. Once swallowed it stays so: both ends are open, and
    neither hears the other.
    """

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.is_blackholed = False
        self._ends = [client]
        self._tasks: list[asyncio.Task[None]] = []

    def join(self, server: asyncio.StreamWriter, *tasks: asyncio.Task[None]) -> None:
        self._ends.append(server)
        self._tasks += tasks

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()
        for end in self._ends:
            end.transport.abort()


class TcpProxy:
    """Listens on a port of its own from `start` to `close`; every other method may be called in
    between, from any thread.

    At first it passes everything on. `port` stays the same, also while nobody listens on it.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._delay = 0.0
        self._blackholes = False
        self._links: set[Link] = set()
        self._listener: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcp-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        self._loop.close()

    # --- what the network does ---

    def forward(self, *, delay: float = 0.0) -> None:
        """From now on bytes arrive, in each direction so many seconds late, and new connections
        are taken.
        """
        self._call(self._forward(delay))

    def blackhole(self) -> None:
        """Every connection there is, and every new one until the next `forward`, is open and
        silent for good.
        """
        self._call(self._blackhole())

    def cut(self) -> None:
        """Close every connection there is, in the middle of whatever is on its way."""
        self._call(self._cut())

    def refuse(self) -> None:
        """Take no new connection until the next `forward`; those that there are stay."""
        self._call(self._refuse())

    def retarget(self, target: int) -> None:
        """New connections go to another server; those that there are stay where they lead."""
        self._target = target

    @property
    def connections(self) -> int:
        return len(self._links)

    # --- in the loop ---

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT)

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = int(self._listener.sockets[0].getsockname()[1])

    async def _forward(self, delay: float) -> None:
        self._delay, self._blackholes = delay, False
        await self._listen()

    async def _blackhole(self) -> None:
        self._blackholes = True
        for link in self._links:
            link.is_blackholed = True

    async def _cut(self) -> None:
        while self._links:
            self._links.pop().cut()

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _end(self) -> None:
        await self._refuse()
        await self._cut()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        link.is_blackholed = self._blackholes
        self._links.add(link)
        if not link.is_blackholed:
            with suppress(OSError):
                await self._join(link, reader, writer)
                return
            self._drop(link)

    async def _join(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answers, server = await asyncio.open_connection("127.0.0.1", self._target)
        there, back = (
            asyncio.ensure_future(self._pump(link, *ends))
            for ends in ((reader, server), (answers, writer))
        )
        link.join(server, there, back)

    async def _pump(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parcels: asyncio.Queue[DelayedChunk] = asyncio.Queue()
        delivery = asyncio.ensure_future(self._deliver(link, parcels, writer))
        data = b"begin"
        try:
            while data:
                data = await self._read(reader)
                parcels.put_nowait((self._loop.time() + self._delay, data))
            await delivery
        finally:
            delivery.cancel()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        with suppress(OSError):
            return await reader.read(_CHUNK)
        return b""

    async def _deliver(
        self, link: Link, parcels: asyncio.Queue[DelayedChunk], writer: asyncio.StreamWriter
    ) -> None:
        """In their order; the end of one direction is the end of the connection, unless that is
        silent.
        """
        while True:
            due, data = await parcels.get()
            if (early := due - self._loop.time()) > 0:
                await asyncio.sleep(early)
            if link.is_blackholed:
                continue
            if not data:
                self._drop(link)
                return
            writer.write(data)

    def _drop(self, link: Link) -> None:
        self._links.discard(link)
        link.cut()
