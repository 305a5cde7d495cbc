"""One probe, asked once: by an HTTP request, a connection, a command, or the last heartbeat.

The HTTP request is written by hand on the loop's own streams: no thread per probe and no HTTP
library. The caller sets the time limit by cancelling: headers that stall or a body that drips are
then like no answer at all. A command runs where the target runs, and its exit code is the answer.
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
    """The probe cannot be made, and no later try would do better: its script is not there."""


class Prober(Protocol):
    """One way to probe."""

    async def probe(self) -> str | None:
        """None if it is healthy, else why not. It may take for ever: cancelling it ends it, with
        all it has begun. Raises ProbeRefusedError.
        """

    def timeout_reason(self, seconds: float) -> str:
        """What to say when there was no answer in so many seconds."""


def make_prober(
    probe: Probe, target: LiveTarget, *, heartbeat: HeartbeatProber, timeout: float
) -> Prober:
    """The prober of this kind for one life of a target."""
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
    """Asks `GET http://HOST:PORT/PATH`."""

    def __init__(self, probe: HttpProbe, target: LiveTarget) -> None:
        self._probe = probe
        self._target = target

    async def probe(self) -> str | None:
        """None if it is healthy, else why not; as long as it takes."""
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
    """Connects to HOST:PORT and hangs up."""

    def __init__(self, probe: TcpProbe, target: LiveTarget) -> None:
        self._probe = probe
        self._target = target

    async def probe(self) -> str | None:
        """None if the connection is accepted, else why not; as long as it takes."""
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
            # Without a listener the kernel may choose that very port for our end, and connect us
            # to ourselves.
            is_self = ours.getsockname()[:2] == address
            return "no connection: nothing listens" if is_self else None

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
    """Runs a command where the target runs. Cancelling kills its whole tree and waits until that
    is gone.
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
        """None if it exits with 0, else how it ended and its last line; as long as it takes."""
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
    """Runs `sh ./SCRIPT` in the directory of probe scripts. Until it has passed once, it looks
    each time whether the script is there.
    """

    def __init__(self, probe: ScriptProbe, target: LiveTarget, *, timeout: float) -> None:
        super().__init__(("sh", f"./{probe.script}"), target, timeout=timeout, in_scripts=True)
        self._script = probe.script
        self._found = False

    async def probe(self) -> str | None:
        """As ExecProber's. Raises ProbeRefusedError if the script is not there."""
        if not self._found and (fault := await self._target.script_fault(self._script)):
            raise ProbeRefusedError(fault)
        reason = await super().probe()
        self._found = self._found or reason is None
        return reason


class HeartbeatProber:
    """Has it beaten since it was last looked at?"""

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
        return f"not looked at in {format_duration(seconds)}"
