"""The contenders: each reads a whole stream and returns how many events it found.

Packages are imported before the clock starts: each function is called once unmeasured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import aiohttp
import httpx
import sseclient
from aiohttp_sse_client.client import EventSource as AiohttpEventSource
from httpx_sse import EventSource, aconnect_sse

from longwatch.sse import EventStreamParser
from sse_bench.workload import chunks

LARGE = 64 << 20

# --- from memory ---


def parse_longwatch(data: bytes, _count: int) -> int:
    parser = EventStreamParser(max_line=LARGE, max_event=LARGE)
    return sum(len(parser.feed(chunk)) for chunk in chunks(data))


def parse_httpx_sse(data: bytes, _count: int) -> int:
    class Body(httpx.SyncByteStream):  # type: ignore[misc] # untyped here
        def __iter__(self) -> Iterator[bytes]:
            return iter(chunks(data))

    head = {"content-type": "text/event-stream"}
    response = httpx.Response(200, headers=head, stream=Body())
    return sum(1 for _ in EventSource(response).iter_sse())


def parse_sseclient(data: bytes, _count: int) -> int:
    return sum(1 for _ in sseclient.SSEClient(iter(chunks(data))).events())


def split_only(data: bytes, _count: int) -> int:
    """Not a parser: blocks at empty lines, fields at the first colon, nothing else."""
    count, rest = 0, b""
    for chunk in chunks(data):
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            fields = {}
            for line in block.split(b"\n"):
                name, _, value = line.partition(b": ")
                fields[name] = value
            count += 1
    return count


# --- over loopback ---


def read_longwatch(url: str, _count: int) -> int:
    async def read() -> int:
        parser, count = EventStreamParser(), 0
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            async for chunk in response.content.iter_any():
                count += len(parser.feed(chunk))
        return count

    return asyncio.run(read())


def read_httpx_sse(url: str, _count: int) -> int:
    async def read() -> int:
        count = 0
        async with httpx.AsyncClient() as client, aconnect_sse(client, "GET", url) as source:
            async for _ in source.aiter_sse():
                count += 1
        return count

    return asyncio.run(read())


def read_aiohttp_sse_client(url: str, count: int) -> int:
    """It reconnects at the end of the stream, so it is stopped before."""

    async def read() -> int:
        found = 0
        async with AiohttpEventSource(url) as source:
            async for _ in source:
                found += 1
                if found == count:
                    break
        return found

    return asyncio.run(read())


def read_aiohttp_blocks(url: str, _count: int) -> int:
    """Not a parser: what reading the bytes and splitting at empty lines costs."""

    async def read() -> int:
        count, rest = 0, b""
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            async for chunk in response.content.iter_any():
                *blocks, rest = (rest + chunk).split(b"\n\n")
                count += len(blocks)
        return count

    return asyncio.run(read())


FROM_MEMORY = {
    "Longwatch": parse_longwatch,
    "httpx-sse": parse_httpx_sse,
    "sseclient-py": parse_sseclient,
    "split at `\\n\\n` and `: `, no rules": split_only,
}
OVER_LOOPBACK = {
    "Longwatch (aiohttp)": read_longwatch,
    "httpx-sse, async": read_httpx_sse,
    "aiohttp-sse-client": read_aiohttp_sse_client,
    "split at `\\n\\n` (aiohttp), no rules": read_aiohttp_blocks,
}
