"""The open streams of live updates: each sends the changes of one path to one browser."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

from longwatch.errors import TryAgainError
from longwatch.page.live import SEND_TIMEOUT, LiveClient, LiveHub


class LiveStreams:
    """The streams that the server has open. Used on the event loop."""

    def __init__(self, hub: LiveHub, *, headers: Mapping[str, str]) -> None:
        self._hub = hub
        self._headers = headers
        self._requests: dict[LiveClient, web.Request] = {}

    async def serve(self, request: web.Request, path: str) -> web.StreamResponse:
        """Send the changes of this path, until the browser or the page ends the stream. Responds
        with 503 if there are too many.
        """
        try:
            client = self._hub.join(path)
        except TryAgainError as error:
            return web.Response(
                status=HTTPStatus.SERVICE_UNAVAILABLE,
                text=f"{error}\n",
                headers={"Retry-After": "30"},
            )
        headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers={**self._headers, **headers})
        self._requests[client] = request
        try:
            await response.prepare(request)
            await _send_changes(client, response)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            del self._requests[client]
            self._hub.leave(path, client)
        return response

    def close_disconnected(self) -> None:
        """End the streams whose browser has closed the connection."""
        for client, request in self._requests.items():
            if request.transport is None:
                client.close()


async def _send_changes(client: LiveClient, response: web.StreamResponse) -> None:
    """Send what the client is offered. Raises TimeoutError if it reads nothing for a while."""
    await response.write(b"retry: 2000\n\n")
    while (chunk := await client.next_chunk()) is not None:
        async with asyncio.timeout(SEND_TIMEOUT):
            await response.write(chunk)
