"""An SSE server made with sse-starlette, under uvicorn. Argument: port.

It sends the events after Last-Event-ID, five on each connection, then ends the stream.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route


async def events(start: int) -> AsyncIterator[ServerSentEvent]:
    yield ServerSentEvent(comment="hello", retry=1500)
    for number in range(start, start + 5):
        yield ServerSentEvent(data=f"event {number}\nsecond line", id=str(number), event="fault")


async def endpoint(request: Request) -> EventSourceResponse:
    start = int(request.headers.get("last-event-id", "0")) + 1
    return EventSourceResponse(events(start), ping=1, sep="\r\n")


uvicorn.run(Starlette(routes=[Route("/events", endpoint)]), port=int(sys.argv[1]))
