"""Health by a connection to 127.0.0.1: an HTTP question, or that it is accepted at all.

The request is written by hand on the loop's own streams: no thread per check and no HTTP library.
Whoever asks sets the time limit by cancelling: headers that stall or a body that drips are then
like no answer at all.
"""

from __future__ import annotations

import asyncio
import os
import socket

from longwatch.supervisor.http_answer import HttpAnswer
from longwatch.supervisor.probes import HttpProbe, TcpProbe

_LOOPBACK = "127.0.0.1"
_READ_SIZE = 1 << 16


class HttpCheck:
    """Asks `GET http://127.0.0.1:PORT/PATH`."""

    def __init__(self, probe: HttpProbe) -> None:
        self._probe = probe

    async def ask(self) -> str | None:
        """None if it is healthy, else why not; as long as it takes."""
        try:
            return (await self._exchange()).verdict()
        except OSError as error:
            return _no_connection(error)

    def overran(self, seconds: float) -> str:
        return f"no full answer in {seconds:g} s"

    async def _exchange(self) -> HttpAnswer:
        reader, writer = await asyncio.open_connection(_LOOPBACK, self._probe.port)
        try:
            host = f"{_LOOPBACK}:{self._probe.port}"
            writer.write(
                (
                    f"GET {self._probe.path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                ).encode()
            )
            return await _read_answer(reader)
        finally:
            writer.close()


class TcpCheck:
    """Connects to 127.0.0.1:PORT and hangs up."""

    def __init__(self, probe: TcpProbe) -> None:
        self._address = (_LOOPBACK, probe.port)

    async def ask(self) -> str | None:
        """None if the connection is accepted, else why not; as long as it takes."""
        with socket.socket() as ours:
            ours.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(ours, self._address)
            except OSError as error:
                return _no_connection(error)
            # Where nobody listens the kernel may choose that very port for our end, and connect us
            # to ourselves.
            return "no connection: nobody listens" if ours.getsockname() == self._address else None

    def overran(self, seconds: float) -> str:
        return f"no connection in {seconds:g} s"


async def _read_answer(reader: asyncio.StreamReader) -> HttpAnswer:
    answer = HttpAnswer()
    while not answer.whole and (data := await reader.read(_READ_SIZE)):
        answer.feed(data)
    return answer


def _no_connection(error: OSError) -> str:
    return f"no connection: {os.strerror(error.errno) if error.errno else error}"
