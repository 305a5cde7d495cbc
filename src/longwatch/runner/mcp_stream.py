"""One connection to an MCP server that sends events as logging notifications, by the `mcp` SDK.

Steps: initialize, wait for the server's event stream (the GET of streamable HTTP), set the logging
level, look for the subscribe tool, call it. From then on the notifications of one logger are items.
They have no ids: such a server starts each session at "now".

The SDK hides faults that this module must see: it opens a broken event stream again inside the old
session, gives up silently, and replaces the status of a response by a text. So the SDK gets an HTTP
transport (`_WatchedTransport`) that reports statuses, errors, the bytes of the event stream and its
end. The first fault ends the connection. The next connection has a new client.

A separate task serves a session and owns the task groups of the SDK. It pings a server that has
sent no byte for half of the read timeout, and the server has the other half to reply.

While the connection does not read, the transport stops reading the event stream, and the server
waits.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    EmptyResult,
    LoggingMessageNotificationParams,
    PaginatedRequestParams,
    SetLevelRequest,
    SetLevelRequestParams,
)

from longwatch.core.clock import Clock
from longwatch.runner.dial import CONNECT_TIMEOUT, credential_headers, tls_context
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.reconnect import (
    CLEAN_END,
    Failure,
    FailureReason,
    StreamFailedError,
    SubscribeToolMissingError,
    failure_of_error,
    failure_of_status,
)
from longwatch.runner.seams import StreamBatch, StreamItem

_SESSION_HEADER = "mcp-session-id"
_VERSION_HEADER = "mcp-protocol-version"
_FLUSH_GRACE = 5.0
"""Some servers send the head of their event stream only with the first event."""
_GOODBYE_TIMEOUT = 1.0
_MAX_TOOL_PAGES = 100
_MAX_WAITING_ITEMS = 2000
_NOT_FOUND = 404
_FIRST_ERROR_STATUS = 400
_BAD_REQUEST = 400


class McpStream:
    """The notifications of one session. `serve` runs in a task; `read` is used by one reader."""

    retry: float | None = None

    def __init__(self, spec: SourceSpec, policy: RunnerPolicy, *, clock: Clock) -> None:
        self._spec = spec
        self._policy = policy
        self._items: list[StreamItem] = []
        self._dropped = 0
        self._news = asyncio.Event()
        self._error: StreamFailedError | None = None
        self._transport = _WatchedTransport(spec, self, clock=clock)
        self._last_byte_at = 0.0
        self.subscribed = asyncio.Event()

    async def read(self) -> StreamBatch | None:
        """Return the items that arrived; no items if the server sent only other bytes."""
        await self._news.wait()
        if not self._items and not self._dropped and self._error is not None:
            if self._error.failure is CLEAN_END:
                return None
            raise self._error
        items, self._items = self._items, []
        dropped, self._dropped = self._dropped, 0
        if self._error is None:
            self._news.clear()
        self._transport.resume()
        return StreamBatch(items, "", dropped, sum(len(item.data) for item in items))

    async def serve(self) -> None:
        """Run the session until it fails; `read` raises why."""
        try:
            async with httpx2.AsyncClient(
                transport=self._transport,
                headers=credential_headers(self._spec),
                timeout=httpx2.Timeout(CONNECT_TIMEOUT, read=None),
            ) as http:
                await self._serve_client(http)
        except Exception as error:  # noqa: BLE001 - the reader gets it
            self.fail(error)

    async def _serve_client(self, http: httpx2.AsyncClient) -> None:
        streams = streamable_http_client(
            self._spec.url,
            http_client=http,
            terminate_on_close=False,
            max_sse_event_size=self._policy.max_event_bytes,
        )
        async with Client(
            streams, mode="legacy", cache=None, logging_callback=self._on_notification
        ) as client:
            try:
                await self._subscribe(client)
                await self._ping_when_silent(client)
            except Exception as error:
                self.fail(error)  # before the SDK closes its connections, which looks like a fault
                raise
            finally:
                if self._error is None or self._error.failure.reason is FailureReason.HTTP_STATUS:
                    await self._end_session(http, client)

    async def _end_session(self, http: httpx2.AsyncClient, client: Client) -> None:
        """Ask the server to delete the session and its subscription."""
        headers = {
            _SESSION_HEADER: self._transport.session_id,
            _VERSION_HEADER: client.session.protocol_version or "",
        }
        with suppress(httpx2.HTTPError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_TIMEOUT):
                await http.delete(self._spec.url, headers=headers)

    # --- the session ---

    async def _subscribe(self, client: Client) -> None:
        subscription = self._spec.subscription
        await self._transport.await_event_stream(min(_FLUSH_GRACE, self._policy.read_timeout / 2))
        if self._error is not None:
            raise self._error
        with suppress(MCPError):  # a server without levels sends all it has
            level = SetLevelRequest(params=SetLevelRequestParams(level="debug"))
            await client.session.send_request(level, EmptyResult)
        tools = await _tool_names(client)
        if subscription.tool not in tools:
            raise SubscribeToolMissingError(subscription.tool, tools)
        result = await client.call_tool(subscription.tool, dict(subscription.arguments))
        if result.is_error:
            texts = [getattr(part, "text", "") for part in result.content]
            raise StreamFailedError(
                Failure(
                    reason=FailureReason.HTTP_STATUS,
                    error=f"the tool {subscription.tool} failed: {' '.join(texts)[:1000]}",
                )
            )
        self.subscribed.set()

    async def _ping_when_silent(self, client: Client) -> None:
        """Ping whenever no byte came for half of the read timeout. Never returns."""
        half = self._policy.read_timeout / 2
        loop = asyncio.get_running_loop()
        while True:
            silent_for = loop.time() - self._last_byte_at
            if silent_for < half:
                await asyncio.sleep(half - silent_for)
                continue
            async with asyncio.timeout(half):
                await client.session.send_ping()
            self.note_bytes()

    async def _on_notification(self, params: LoggingMessageNotificationParams) -> None:
        """Take a notification. It waits for nothing: the SDK runs a task for each of them."""
        if params.logger != self._spec.subscription.logger:
            return
        data = params.data
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        self._items.append(StreamItem(text))
        self._news.set()

    # --- reports of the transport ---

    @property
    def is_full(self) -> bool:
        return len(self._items) >= _MAX_WAITING_ITEMS and not self.has_failed

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def note_bytes(self) -> None:
        self._last_byte_at = asyncio.get_running_loop().time()
        self._news.set()

    def drop_event(self, error: StreamFailedError) -> None:
        """End the stream for an event that is too large, unless it has failed before."""
        if self._error is None:
            self._dropped += 1
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the stream for this reason; the first one counts."""
        if self._error is None:
            self._error = _stream_error(error)
            self._news.set()
            self._transport.resume()


@asynccontextmanager
async def open_mcp(
    spec: SourceSpec,
    policy: RunnerPolicy,
    *,
    cursor: str,  # noqa: ARG001 - such a server starts at "now"
    clock: Clock,
) -> AsyncIterator[McpStream]:
    """Connect, initialize and subscribe with a new client. Every exception is a failure that may be
    temporary.
    """
    stream = McpStream(spec, policy, clock=clock)
    task = asyncio.create_task(stream.serve())
    try:
        async with asyncio.timeout(policy.read_timeout):
            await _await_subscribed(stream, task)
        yield stream
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=2 * _GOODBYE_TIMEOUT)


async def _await_subscribed(stream: McpStream, task: asyncio.Task[None]) -> None:
    subscribed = asyncio.create_task(stream.subscribed.wait())
    try:
        await asyncio.wait({subscribed, task}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        subscribed.cancel()
    if not stream.subscribed.is_set():
        await task
        await stream.read()
        raise StreamFailedError(CLEAN_END)


async def _tool_names(client: Client) -> tuple[str, ...]:
    names: list[str] = []
    cursor: str | None = None
    for _ in range(_MAX_TOOL_PAGES):
        page = await client.session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if not cursor:
            break
    return tuple(sorted(names))


def _stream_error(error: BaseException) -> StreamFailedError:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, StreamFailedError):
        return error
    if isinstance(error, MCPError):
        refusal = f"the server refused: {error}"
        return StreamFailedError(Failure(reason=FailureReason.HTTP_STATUS, error=refusal))
    return StreamFailedError(failure_of_error(error))


# --- the transport ---


class _WatchedTransport(httpx2.AsyncBaseTransport):
    """The HTTP transport of one session. It reports to the stream the faults that the SDK hides."""

    def __init__(self, spec: SourceSpec, stream: McpStream, *, clock: Clock) -> None:
        self._spec = spec
        self._stream = stream
        self._clock = clock
        self._inner: httpx2.AsyncHTTPTransport | None = None
        self._stream_opened = asyncio.Event()
        self._room = asyncio.Event()
        self.session_id = ""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._inner is None:
            self._inner = self._new_transport()
        try:
            response = await self._inner.handle_async_request(request)
        except Exception as error:
            self._stream.fail(error)
            raise
        self._stream.note_bytes()
        self.session_id = response.headers.get(_SESSION_HEADER, self.session_id)
        if response.status_code >= _FIRST_ERROR_STATUS:
            self._report_status(request, response)
        elif request.method == "GET" and response.is_success:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _WatchedBytes(response.stream, self._stream, self)
            self._stream_opened.set()
        return response

    async def aclose(self) -> None:
        if self._inner is not None:
            await self._inner.aclose()

    async def await_event_stream(self, timeout: float) -> None:
        """Wait until the server's event stream is open or has failed, so that no first event is
        missed.
        """
        if not self.session_id:
            raise StreamFailedError(
                Failure(
                    reason=FailureReason.HTTP_STATUS,
                    error="the server has no sessions, so it cannot send events by itself",
                    is_slow=True,
                    needs_alert=True,
                )
            )
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stream_opened.wait()

    async def await_room(self) -> None:
        while self._stream.is_full:
            self._room.clear()
            await self._room.wait()

    def resume(self) -> None:
        """Read on, also after a failure."""
        self._room.set()
        if self._stream.has_failed:
            self._stream_opened.set()

    def _new_transport(self) -> httpx2.AsyncHTTPTransport:
        is_https = self._spec.url.lower().startswith("https:")
        return httpx2.AsyncHTTPTransport(
            verify=tls_context(self._spec) if is_https else False,
            trust_env=False,
            socket_options=[(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)],
        )

    def _report_status(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Report the status of a response as a fault, if it is one. A 404 inside a session means
        that a restarted server does not know it. A 400 is a reply to a call, which the SDK reads.
        """
        status = response.status_code
        if status == _NOT_FOUND and _SESSION_HEADER in request.headers:
            error = "the server does not know the session any more"
            failure = Failure(reason=FailureReason.SERVER_RESTART, error=error)
            self._stream.fail(StreamFailedError(failure))
        elif status != _BAD_REQUEST or request.method == "GET":
            retry_after = response.headers.get("retry-after")
            failure = failure_of_status(status, retry_after=retry_after, now=self._clock.wall())
            self._stream.fail(StreamFailedError(failure))


class _WatchedBytes(httpx2.AsyncByteStream):
    """The body of the server's event stream."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, stream: McpStream, transport: _WatchedTransport
    ) -> None:
        self._inner = inner
        self._stream = stream
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._inner:
                self._stream.note_bytes()
                yield chunk
                await self._transport.await_room()
        except Exception as error:
            self._stream.fail(error)
            raise
        self._stream.fail(StreamFailedError(CLEAN_END))

    async def aclose(self) -> None:
        """Close the body. The SDK closes it before its end if an event is too large."""
        await self._inner.aclose()
        error = "the event stream was closed: expected events within max_event_bytes"
        failure = Failure(reason=FailureReason.NETWORK_ERROR, error=error)
        self._stream.drop_event(StreamFailedError(failure))
