"""Health by a connection to 127.0.0.1: an HTTP question, or that it is accepted at all.

The request is written by hand on the loop's own streams: no thread per check and no HTTP library.
Whoever asks sets the time limit by cancelling: headers that stall or a body that drips are then
like no answer at all.

Health by a command: it runs as the program does, and its exit code is the answer.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from longwatch.core.end_cause import EndCause
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.process import KILL_NOW, Child, ProcessSpec
from longwatch.supervisor.http_response import HttpHealthResponse
from longwatch.supervisor.probes import ExecProbe, HttpProbe, TcpProbe

_LOOPBACK = "127.0.0.1"
_READ_SIZE = 1 << 16


class HttpProber:
    """Asks `GET http://127.0.0.1:PORT/PATH`."""

    def __init__(self, probe: HttpProbe) -> None:
        self._probe = probe

    async def probe(self) -> str | None:
        """None if it is healthy, else why not; as long as it takes."""
        try:
            return (await self._exchange()).failure()
        except OSError as error:
            return _connection_failure(error)

    def timeout_reason(self, seconds: float) -> str:
        return f"no full answer in {seconds:g} s"

    async def _exchange(self) -> HttpHealthResponse:
        reader, writer = await asyncio.open_connection(_LOOPBACK, self._probe.port)
        try:
            host = f"{_LOOPBACK}:{self._probe.port}"
            writer.write(
                (
                    f"GET {self._probe.path} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n"
                ).encode()
            )
            return await _read_response(reader)
        finally:
            writer.close()


class TcpProber:
    """Connects to 127.0.0.1:PORT and hangs up."""

    def __init__(self, probe: TcpProbe) -> None:
        self._address = (_LOOPBACK, probe.port)

    async def probe(self) -> str | None:
        """None if the connection is accepted, else why not; as long as it takes."""
        with socket.socket() as ours:
            ours.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(ours, self._address)
            except OSError as error:
                return _connection_failure(error)
            # Where nobody listens the kernel may choose that very port for our end, and connect us
            # to ourselves.
            return "no connection: nobody listens" if ours.getsockname() == self._address else None

    def timeout_reason(self, seconds: float) -> str:
        return f"no connection in {seconds:g} s"


async def _read_response(reader: asyncio.StreamReader) -> HttpHealthResponse:
    response = HttpHealthResponse()
    while not response.complete and (data := await reader.read(_READ_SIZE)):
        response.feed(data)
    return response


def _connection_failure(error: OSError) -> str:
    return f"no connection: {os.strerror(error.errno) if error.errno else error}"


_EXIT_OK = EndCause.exit(0)
_WITHHELD_VARIABLES = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"})


class ProcessSpawner(Protocol):
    """The one thing that is wanted of a guardian."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


class LastLine:
    """A sink that keeps the last line that is not blank, however much is said."""

    congested = False
    _MAX_BYTES = 4096

    def __init__(self) -> None:
        self._line = b""

    def write(self, data: bytes) -> bool:
        if text := data.rstrip():
            self._line = text[text.rfind(b"\n") + 1 :].lstrip()[: self._MAX_BYTES]
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Nothing ever holds it up."""

    def __str__(self) -> str:
        """As it may be shown: masked before it is cut, so that no half of a secret is left."""
        return printable(mask_text(self._line.decode(errors="replace")), max_chars=MAX_LINE_CHARS)


class ExecProber:
    """Runs the command in the program's directory, environment, identity and limits.

    It is no part of the program: the notify socket is withheld from it, so that it cannot speak in
    the program's name. Cancelling kills its whole tree and waits until that is gone.
    """

    def __init__(self, probe: ExecProbe, *, guardian: ProcessSpawner, process: ProcessSpec) -> None:
        self._guardian = guardian
        self._last_line = LastLine()
        env = {
            name: value for name, value in process.env.items() if name not in _WITHHELD_VARIABLES
        }
        self._spec = replace(process, argv=probe.command, env=env, stdin=None)

    async def probe(self) -> str | None:
        """None if it exits with 0, else how it ended and its last line; as long as it takes."""
        self._last_line = LastLine()
        try:
            cause = await self._run()
        except (SpawnError, GuardianLostError) as error:
            return printable(str(error), max_chars=MAX_LINE_CHARS)
        return None if cause == _EXIT_OK else self._with_last_line(cause.display_name)

    def timeout_reason(self, seconds: float) -> str:
        return self._with_last_line(f"not done in {seconds:g} s and killed")

    async def _run(self) -> EndCause:
        spawning = asyncio.ensure_future(
            self._guardian.spawn(
                replace(self._spec, stdout=self._last_line, stderr=self._last_line)
            )
        )
        try:
            child = await asyncio.shield(spawning)
            return (await child.wait()).cause
        except asyncio.CancelledError:
            with suppress(SpawnError, GuardianLostError):
                await (await spawning).stop(
                    KILL_NOW
                )  # it may run already, though nobody has said so yet
            raise

    def _with_last_line(self, reason: str) -> str:
        line = str(self._last_line)
        return f"{reason}: {line}" if line else reason
