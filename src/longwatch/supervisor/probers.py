"""Runs a single probe: an HTTP request, a connection, a command, or a look at the last heartbeat.

The HTTP request is written by hand on asyncio streams: no thread per probe and no HTTP library. The
caller sets the time limit by cancelling, so stalled headers or a slow body count as no answer. A
command runs where the target runs, and its exit code is the result.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.core.duration import format_duration
from longwatch.core.end_cause import EndCause
from longwatch.core.masking import mask_text
from longwatch.core.sanitize import MAX_LINE_CHARS, printable
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.supervisor.http_response import HttpHealthResponse
from longwatch.supervisor.probes import (
    ExecProbe,
    HeartbeatProbe,
    HttpProbe,
    Probe,
    ScriptProbe,
    TcpProbe,
)
from longwatch.supervisor.target import LiveTarget

_READ_SIZE = 1 << 16
_EXIT_OK = EndCause.exit(0)


class ProbeRefusedError(Exception):
    """The probe can never run, because its script is missing."""


class Prober(Protocol):
    """One kind of probe."""

    async def probe(self) -> str | None:
        """Probe once; return None if it is healthy, else why not. Has no time limit: cancelling it
        ends it and the processes it started. Raises ProbeRefusedError.
        """

    def timeout_reason(self, seconds: float) -> str:
        """Return the reason for a probe without an answer after this many seconds."""


def make_prober(
    probe: Probe, target: LiveTarget, *, heartbeat: HeartbeatProber, timeout: float
) -> Prober:
    """Return the prober of this kind for one run of a target."""
    match probe:
        case HttpProbe():
            return HttpProber(probe, target)
        case TcpProbe():
            return TcpProber(probe, target)
        case ExecProbe():
            return ExecProber(probe.command, target, timeout=timeout)
        case ScriptProbe():
            return ScriptProber(probe, target, timeout=timeout)
        case HeartbeatProbe():
            return heartbeat


class HttpProber:
    """Sends `GET http://HOST:PORT/PATH`."""

    def __init__(self, probe: HttpProbe, target: LiveTarget) -> None:
        self._probe = probe
        self._target = target

    async def probe(self) -> str | None:
        """Return None if it is healthy, else why not. Has no time limit."""
        try:
            return (await self._exchange()).failure()
        except SpawnError as error:
            return str(error)
        except OSError as error:
            return _connection_failure(error)

    def timeout_reason(self, seconds: float) -> str:
        return f"no full answer in {format_duration(seconds)}"

    async def _exchange(self) -> HttpHealthResponse:
        host, port = await self._target.probe_address(self._probe.port)
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(
                (
                    f"GET {self._probe.path} HTTP/1.0\r\nHost: {host}:{port}\r\n"
                    "Connection: close\r\n\r\n"
                ).encode()
            )
            return await _read_response(reader)
        finally:
            writer.close()


class TcpProber:
    """Connects to HOST:PORT and closes the connection."""

    def __init__(self, probe: TcpProbe, target: LiveTarget) -> None:
        self._probe = probe
        self._target = target

    async def probe(self) -> str | None:
        """Return None if the connection is accepted, else why not. Has no time limit."""
        try:
            address = await self._target.probe_address(self._probe.port)
        except SpawnError as error:
            return str(error)
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        with socket.socket(family) as ours:
            ours.setblocking(False)
            try:
                await asyncio.get_running_loop().sock_connect(ours, address)
            except OSError as error:
                return _connection_failure(error)
            # Without a listener the kernel may choose that same port for our end, and connect the
            # socket to itself.
            is_self = ours.getsockname()[:2] == address
            return "no connection: no process listens" if is_self else None

    def timeout_reason(self, seconds: float) -> str:
        return f"no connection in {format_duration(seconds)}"


async def _read_response(reader: asyncio.StreamReader) -> HttpHealthResponse:
    response = HttpHealthResponse()
    while not response.complete and (data := await reader.read(_READ_SIZE)):
        response.feed(data)
    return response


def _connection_failure(error: OSError) -> str:
    return f"no connection: {os.strerror(error.errno) if error.errno else error}"


class LastLine:
    """A sink that keeps only the last line that is not blank."""

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
        """Do nothing: this sink is never congested."""

    def __str__(self) -> str:
        """Return the line for display: masked before it is cut, so that no part of a secret is
        left.
        """
        return printable(mask_text(self._line.decode(errors="replace")), max_chars=MAX_LINE_CHARS)


class ExecProber:
    """Runs a command where the target runs. Cancelling kills its whole tree and waits until it is
    gone.
    """

    def __init__(
        self, argv: Sequence[str], target: LiveTarget, *, timeout: float, in_scripts: bool = False
    ) -> None:
        self._argv = tuple(argv)
        self._target = target
        self._timeout = timeout
        self._in_scripts = in_scripts
        self._last_line = LastLine()

    async def probe(self) -> str | None:
        """Return None if it exits with 0, else how it ended and its last line. Has no time
        limit.
        """
        self._last_line = LastLine()
        try:
            cause = await self._target.exec(
                self._argv,
                output=self._last_line,
                in_scripts=self._in_scripts,
                timeout=self._timeout,
            )
        except (SpawnError, GuardianLostError) as error:
            return printable(str(error), max_chars=MAX_LINE_CHARS)
        return None if cause == _EXIT_OK else self._with_last_line(cause.display_name)

    def timeout_reason(self, seconds: float) -> str:
        return self._with_last_line(f"not done in {format_duration(seconds)} and killed")

    def _with_last_line(self, reason: str) -> str:
        line = str(self._last_line)
        return f"{reason}: {line}" if line else reason


class ScriptProber(ExecProber):
    """Runs `sh ./SCRIPT` in the directory of probe scripts. Until it has passed once, each probe
    checks first that the script exists.
    """

    def __init__(self, probe: ScriptProbe, target: LiveTarget, *, timeout: float) -> None:
        super().__init__(("sh", f"./{probe.script}"), target, timeout=timeout, in_scripts=True)
        self._script = probe.script
        self._found = False

    async def probe(self) -> str | None:
        """Like ExecProber. Raises ProbeRefusedError if the script is missing."""
        if not self._found and (fault := await self._target.script_fault(self._script)):
            raise ProbeRefusedError(fault)
        reason = await super().probe()
        self._found = self._found or reason is None
        return reason


class HeartbeatProber:
    """Passes if there was a heartbeat since the last probe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_beat: float | None = None
        self._beat_since_probe = False

    def beat(self) -> None:
        self._last_beat = self._clock.monotonic()
        self._beat_since_probe = True

    async def probe(self) -> str | None:
        beaten, self._beat_since_probe = self._beat_since_probe, False
        if beaten:
            return None
        if self._last_beat is None:
            return "no WATCHDOG=1 yet"
        return (
            f"the last WATCHDOG=1 was {round(self._clock.monotonic() - self._last_beat, 1):g} s ago"
        )

    def timeout_reason(self, seconds: float) -> str:
        return f"not checked within {format_duration(seconds)}"
