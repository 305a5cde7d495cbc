"""Is a program healthy? One HTTP question at a time, counted per start.

Healthy is status 200 and JSON with `"status": "healthy"`, answered whole within the timeout; anything else is a failure. The
request is written by hand on the loop's own streams: no thread per check, and headers that stall count like no answer at all.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from longwatch.core.clock import Clock
from longwatch.host.patience import settled_within
from longwatch.host.periodic import Cadence, every

_MOST_BYTES = 64 * 1024
_MOST_DIGITS = 20
_OK = 200
_STATUS_LINE = re.compile(rb"HTTP/\d\.\d (\d{3})(?: [^\r\n]*)?(?:\r\n|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When a program is asked, and when it has to go.

    The first question comes `start_grace` seconds after the start, then one every `interval`; each has `timeout` seconds for
    the whole answer; `failures` in a row end the run.
    """

    port: int
    path: str = "/health"
    interval: float = 30.0
    timeout: float = 5.0
    failures: int = 3
    start_grace: float = 10.0


class HttpCheck:
    """Asks `GET http://127.0.0.1:PORT/PATH`."""

    def __init__(self, policy: HealthPolicy, clock: Clock) -> None:
        self.policy = policy
        self._clock = clock

    async def ask(self) -> str | None:
        """None if it is healthy, else why not; never raises, never takes longer than the timeout."""
        answer = asyncio.ensure_future(self._exchange())
        try:
            if not await settled_within(answer, self.policy.timeout, self._clock):
                return f"no full answer in {self.policy.timeout:g} s"
            return verdict(answer.result())
        except OSError as error:
            return f"no connection: {error.strerror or error}"
        finally:
            answer.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await answer

    async def _exchange(self) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.policy.port)
        try:
            writer.write(
                f"GET {self.policy.path} HTTP/1.0\r\nHost: 127.0.0.1:{self.policy.port}\r\nConnection: close\r\n\r\n".encode()
            )
            return await _read_answer(reader)
        finally:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    """Until the connection ends or as many bytes are there as the header promised; at most 64 KiB."""
    data = b""
    while len(data) < _MOST_BYTES and not _complete(data):
        chunk = await reader.read(_MOST_BYTES)
        if not chunk:
            break
        data += chunk
    return data


def _complete(data: bytes) -> bool:
    head, blank, body = data.partition(b"\r\n\r\n")
    length = _length(head)
    return bool(blank) and length is not None and len(body) >= length


def _length(head: bytes) -> int | None:
    """How long the body is said to be; None if that is not said. More digits than any length has are not counted out."""
    text = _header(head, b"content-length")
    return int(text[:_MOST_DIGITS]) if text.isdigit() else None


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def verdict(answer: bytes) -> str | None:
    """None if this HTTP answer says healthy, else why not."""
    head, blank, body = answer.partition(b"\r\n\r\n")
    status = _STATUS_LINE.match(head)
    if not blank or not status:
        return "not an HTTP answer"
    if int(status[1]) != _OK:
        return f"status {int(status[1])}"
    length = _length(head)
    if length is not None and len(body) < length:
        return "the answer was cut short"
    try:
        answered = json.loads(body[:length])
    except (ValueError, RecursionError):
        return "the body is not JSON"
    said = answered.get("status") if isinstance(answered, dict) else None
    return None if said == "healthy" else f'"status" is {json.dumps(said)[:40]}, not "healthy"'


async def watch(check: HttpCheck, clock: Clock, heard: Callable[[str | None, int], None]) -> None:
    """Ask until the allowed failures in a row are reached, then return; `heard` gets each answer and the failures so far.

    The counter belongs to this watch, so a restarted program starts at zero; questions never overlap.
    """
    failures = 0

    async def ask() -> bool:
        nonlocal failures
        reason = await check.ask()
        failures = 0 if reason is None else failures + 1
        heard(reason, failures)
        return failures < check.policy.failures

    await clock.sleep(check.policy.start_grace)
    await every(Cadence(interval=check.policy.interval), ask, name="health check", clock=clock)
