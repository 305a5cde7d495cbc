"""Streams of servers that are not ours, as the parser reads them over loopback."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn
from sse_starlette import EventSourceResponse
from sse_starlette import ServerSentEvent as StarletteEvent

from longwatch.sse import EventStreamParser, ServerSentEvent
from polling import eventually
from requires import skip_without_program

ROOT = Path(__file__).resolve().parents[2]
BETTER_SSE = "better-sse@0.16.1"
TIMEOUT = 60.0
DATA = [
    json.dumps({"severity": "error", "resource": "Pod/shop/cart"}),
    "two\nlines",
    "ä€😀 \u2028 \x0b \x0c \x85",
    "",
    " leading space",
    "\n\n",
    "x" * 300_000,
    *(f"event {number}" for number in range(30)),
]
EVENTS = [
    ServerSentEvent(data, "fault" if number % 2 else "message", str(number))
    for number, data in enumerate(DATA, start=1)
]


def read_stream(url: str, last_event_id: str = "") -> tuple[list[ServerSentEvent], int | None]:
    """The events of a stream up to its end, and the retry hint."""

    async def read() -> tuple[list[ServerSentEvent], int | None]:
        parser, events = EventStreamParser(last_event_id=last_event_id), []
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT)) as session,
            session.get(url, headers=headers) as response,
        ):
            assert (200, "text/event-stream") == (response.status, response.content_type)
            async for chunk in response.content.iter_any():
                events += parser.feed(chunk)
        return events, parser.retry_ms

    return asyncio.run(read())


# --- sse-starlette under uvicorn ---


def starlette_app(sep: str) -> Any:
    """Sends the events after Last-Event-ID, with pings in between, and ends the stream."""

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        assert "http" == scope["type"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        done = int(headers.get("last-event-id", "0"))

        async def events() -> AsyncIterator[StarletteEvent]:
            yield StarletteEvent(retry=1234, sep=sep)
            for event in EVENTS[done:]:
                yield StarletteEvent(event.data, event=event.event, id=event.id, sep=sep)
                await asyncio.sleep(0.005)

        response = EventSourceResponse(events(), sep=sep, ping=0.01)
        await response(scope, receive, send)

    return app


@contextmanager
def uvicorn_server(app: Any) -> Iterator[str]:
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert eventually(lambda: server.started)
        [port] = [each.getsockname()[1] for each in server.servers[0].sockets]
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(TIMEOUT)


@pytest.mark.parametrize("sep", ["\r\n", "\n", "\r"], ids=["CRLF", "LF", "CR"])
def test_sse_starlette(sep: str) -> None:
    """Each line end, comments in between; the second connection goes on where the first was."""
    with uvicorn_server(starlette_app(sep)) as url:
        assert (EVENTS, 1234) == read_stream(url)
        assert EVENTS[5:] == read_stream(url, "5")[0]


# --- better-sse under node ---


@pytest.fixture(scope="module")
def better_sse() -> Path:
    """A directory where node finds better-sse, fetched once from the registry."""
    skip_without_program("node", "streams of better-sse")
    skip_without_program("npm", "streams of better-sse")
    place = ROOT / "build" / "npm"
    if not (place / "node_modules" / "better-sse").is_dir():
        place.mkdir(parents=True, exist_ok=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(place), BETTER_SSE]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        if done.returncode != 0 and not os.environ.get("CI"):
            pytest.skip(f"npm cannot install {BETTER_SSE}: {done.stderr[-300:]}")
        assert 0 == done.returncode, done.stderr
    return place


@contextmanager
def better_sse_server(place: Path) -> Iterator[str]:
    # node looks for packages beside the script
    script = shutil.copy(ROOT / "tests" / "better_sse_server.mjs", place / "server.mjs")
    events = json.dumps([(each.data, each.event, each.id) for each in EVENTS if len(each.data) < 9])
    with subprocess.Popen(
        ["node", script, events], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.kill()


def test_better_sse(better_sse: Path) -> None:
    """It sends data as JSON, and comments all the time."""
    short = [each for each in EVENTS if len(each.data) < 9]
    expected = [(each.data, each.event, each.id) for each in short]
    with better_sse_server(better_sse) as url:
        events, retry_ms = read_stream(url)
        assert (expected, 1234) == (
            [(json.loads(each.data), each.event, each.id) for each in events],
            retry_ms,
        )
        again, _ = read_stream(url, short[-2].id)
        assert expected[-1:] == [(json.loads(each.data), each.event, each.id) for each in again]
