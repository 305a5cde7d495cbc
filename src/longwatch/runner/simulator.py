"""A real SSE server that simulates event sources: for demos, tests and the tutorial.

Each source has a stream at `/SOURCE/events`. Its events are invented at a steady rate, whether a
client is connected or not, and are numbered from 1. The number is the event's id. A client gets the
events after its `Last-Event-ID`, and without one all that are kept. So the order in which simulator
and runner start does not matter.

Faults are set at the start, and later by `POST /control`, which replies on loopback only.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, fields
from typing import Any

from aiohttp import web

from longwatch.core.error_text import os_reason
from longwatch.errors import UsageError
from longwatch.runner.simulated_events import Journal
from longwatch.runner.simulated_source import (
    ConnectionDroppedError,
    OpenStream,
    SimulatedSource,
    SimulatorSettings,
    StreamFaults,
)

MAX_BODY_BYTES = 1 << 20


class Simulator:
    """The server. `opened` runs it within a block, on the running loop."""

    def __init__(self, settings: SimulatorSettings) -> None:
        if not settings.sources:
            raise UsageError("a simulator needs at least one source")
        settings.faults.validate()
        self.settings = settings
        self.port = settings.port
        self._journal = Journal(settings.journal) if settings.journal else None
        self.sources = {
            name: SimulatedSource(name, settings, self._journal) for name in settings.sources
        }
        self._is_stopping = False

    def url(self, source: str) -> str:
        return f"{self._base_url}/{source}/events"

    @property
    def control_url(self) -> str:
        return f"{self._base_url}/control"

    @property
    def _base_url(self) -> str:
        host = self.settings.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Serve and send within the block. At its end the streams end cleanly."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/{source}/events", self._serve_stream)
        app.router.add_get("/control", self._show_control)
        app.router.add_post("/control", self._change_control)
        app.on_shutdown.append(self._end_streams)
        server = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await server.setup()
        try:
            self.port = await self._listen(server)
            producers = [asyncio.create_task(each.produce()) for each in self.sources.values()]
            try:
                yield
            finally:
                for task in producers:
                    task.cancel()
                await asyncio.gather(*producers, return_exceptions=True)
        finally:
            await server.cleanup()
            if self._journal:
                self._journal.close()

    async def _listen(self, server: web.AppRunner) -> int:
        settings = self.settings
        site = web.TCPSite(server, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:  # the text of asyncio repeats the address
            number = error.errno or 0  # negative for a name that was not found
            reason = os.strerror(number).lower() if number > 0 else os_reason(error)
            raise UsageError(
                f"cannot listen on {settings.host} port {settings.port}: {reason}; "
                f"give --host an address of this machine, and --port a free port, or 0 for any"
            ) from None
        return int(server.addresses[0][1])

    async def _end_streams(self, _: web.Application) -> None:
        self._is_stopping = True
        for source in self.sources.values():
            source.stall(0)
            for stream in source.streams:
                stream.wakeup.set()

    # --- streams ---

    async def _serve_stream(self, request: web.Request) -> web.StreamResponse:
        source = self.sources.get(request.match_info["source"])
        if source is None:
            raise web.HTTPNotFound(text=f"the sources are {', '.join(self.sources)}\n")
        source.requests += 1
        if source.faults.status is not None:
            return web.Response(status=source.faults.status)
        head = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=head)
        await response.prepare(request)
        stream = OpenStream(request)
        source.streams.add(stream)
        try:
            await self._write_stream(source, response, stream.wakeup, _cursor(request))
        except ConnectionDroppedError:
            stream.abort()
        except ConnectionError:
            pass  # the client has left
        finally:
            source.streams.remove(stream)
        return response

    async def _write_stream(
        self,
        source: SimulatedSource,
        response: web.StreamResponse,
        wakeup: asyncio.Event,
        cursor: int,
    ) -> None:
        retry = source.faults.retry_ms
        await response.write(b": simulated\n\n" if retry is None else b"retry: %d\n\n" % retry)
        while not self._is_stopping:
            wakeup.clear()
            cursor = await source.write_events(response, cursor)
            if cursor < source.history.newest:
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(wakeup.wait(), self.settings.comment_interval)
                continue
            await source.wait_while_stalled()
            await response.write(b": nothing new\n\n")

    # --- control ---

    async def _show_control(self, request: web.Request) -> web.Response:
        _require_loopback(request)
        status = {name: source.status() for name, source in self.sources.items()}
        return web.json_response(status)

    async def _change_control(self, request: web.Request) -> web.Response:
        """Apply a control request. Its body is one JSON object: `source` (all without it), fields
        of StreamFaults and `rate` to set, `drop`: true, `stall`: seconds, `send`: an event, or a
        text that is not an event.
        """
        _require_loopback(request)
        try:
            change = await _read_change(request)
            changed = [_apply(source, change) for source in self._chosen(change)]
        except (UsageError, ValueError, TypeError) as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None
        return web.json_response({each.name: each.status() for each in changed})

    def _chosen(self, change: Mapping[str, Any]) -> list[SimulatedSource]:
        name = change.get("source")
        if name is None:
            return list(self.sources.values())
        if name not in self.sources:
            raise UsageError(f"no source {name!r}; the sources are {', '.join(self.sources)}")
        return [self.sources[name]]


def serve_until_signal(
    settings: SimulatorSettings, *, on_ready: Callable[[Simulator], None]
) -> None:
    """Run a simulator until SIGINT or SIGTERM. Blocks, and must be called in the main thread."""

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        simulator = Simulator(settings)
        async with simulator.opened():
            on_ready(simulator)
            await stop.wait()

    asyncio.run(serve())


async def _read_change(request: web.Request) -> Mapping[str, Any]:
    """Return the body of a control request. Requires a content type that no page of another origin
    can send.
    """
    change = await request.json() if request.content_type == "application/json" else None
    if not isinstance(change, dict):
        raise UsageError("expected a JSON object with the content type application/json")
    return change


def _apply(source: SimulatedSource, change: Mapping[str, Any]) -> SimulatedSource:
    """Apply a control request to one source."""
    settable = {each.name for each in fields(StreamFaults)}
    if unknown := set(change) - settable - {"source", "rate", "drop", "stall", "send"}:
        raise UsageError(f"unknown: {', '.join(sorted(unknown))}; see GET /control")
    faults = StreamFaults(
        **(asdict(source.faults) | {k: change[k] for k in settable & set(change)})
    )
    faults.validate()
    source.rate, source.faults = float(change.get("rate", source.rate)), faults
    if "send" in change:
        sent = change["send"]
        text = sent if isinstance(sent, str) else json.dumps(sent)
        source.add("\n".join(re.split("\r\n|\r|\n", text)))
    if "stall" in change:
        source.stall(float(change["stall"]))
    if change.get("drop"):
        source.drop_streams()
    return source


def _cursor(request: web.Request) -> int:
    """Return the number of the last event that a client has; an id that is no number counts as
    0.
    """
    value = request.headers.get("Last-Event-ID", "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else 0  # noqa: PLR2004 - 64 bits


def _require_loopback(request: web.Request) -> None:
    with suppress(ValueError):
        if ipaddress.ip_address(request.remote or "").is_loopback:
            return
    raise web.HTTPForbidden(text="control requests are answered on loopback only\n")
