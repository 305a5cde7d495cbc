"""One connection to a Server-Sent Events source, over aiohttp.

A dial follows up to `MAX_REDIRECTS` redirects itself instead of aiohttp, for two reasons. It never
goes from https to http. And credentials (configured headers, token, cookies, the password in the
URL, the client certificate) are not sent to another origin, nor again after another origin was
visited. An upgrade from http to https of the same host, on default ports, counts as one origin.

The response must have the status 200 and the type `text/event-stream`, without compression: a few
compressed bytes could become gigabytes of one line. 204 ends the source.

The idle watchdog is the socket read timeout of aiohttp. Every byte that arrives rearms it, also
that of a comment or of a response head. While the connection does not read, it is off.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from longwatch.core.clock import Clock
from longwatch.host.blocking_call import BlockingCall
from longwatch.runner.dial import CONNECT_TIMEOUT, credential_headers, tls_context
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.runner.reconnect import (
    Failure,
    FailureReason,
    StreamEndedError,
    StreamFailedError,
    failure_of_status,
)
from longwatch.runner.seams import StreamBatch, StreamItem
from longwatch.sse import EventStreamParser

MAX_REDIRECTS = 3
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CHUNK = 1 << 16
_READ_BUFFER = 1 << 18
_FIELD_NAME_BYTES = 64
"""Bytes of a line beside the data, which `max_event_bytes` limits."""
_new_item = tuple.__new__
"""Takes half the time of calling the class, which matters once for each event."""
_MAX_SENT_ID = 4096
_CONTROL = frozenset(map(chr, (*range(32), 127)))
_UNSEEN = "\0"
"""A last event id that no server can send: ids with NUL are ignored."""


class SseStream:
    """The events of one response."""

    def __init__(
        self, response: aiohttp.ClientResponse, *, cursor: str, max_event_bytes: int
    ) -> None:
        self._content = response.content
        self._closed = _closed_future(response)
        self._cursor = cursor
        self._parser = EventStreamParser(
            max_line=max_event_bytes + _FIELD_NAME_BYTES,
            max_event=max_event_bytes,
            last_event_id=_UNSEEN,
        )
        self._last_id = _UNSEEN
        self._dropped = 0

    @property
    def retry(self) -> float | None:
        retry_ms = self._parser.retry_ms
        return None if retry_ms is None else retry_ms / 1000

    async def read(self) -> StreamBatch | None:
        chunk = await self._content.read(_CHUNK)
        if not chunk:
            self._raise_if_broken()
            return None
        items = self._parse(chunk)
        dropped, self._dropped = self._parser.dropped - self._dropped, self._parser.dropped
        if self._parser.last_event_id != _UNSEEN:
            self._cursor = self._parser.last_event_id
        return StreamBatch(items, self._cursor, dropped, len(chunk))

    def _raise_if_broken(self) -> None:
        """Raise the error that has ended the connection. aiohttp takes it for the end of a body
        that has no length.
        """
        if self._closed is not None and self._closed.done() and not self._closed.cancelled():
            error = self._closed.exception()
            if error is not None:
                raise error

    def _parse(self, chunk: bytes) -> list[StreamItem]:
        """Return the items of a chunk. The parser gives an event without an id the same object as
        the event before. An id that the server uses twice is another object.
        """
        items: list[StreamItem] = []
        last_id = self._last_id
        for data, _, event_id in self._parser.feed(chunk):
            if event_id is last_id:
                items.append(_new_item(StreamItem, (data, None)))
            else:
                last_id = event_id
                items.append(_new_item(StreamItem, (data, event_id or None)))
        self._last_id = last_id
        return items


def _closed_future(response: aiohttp.ClientResponse) -> asyncio.Future[None] | None:
    """Return a future that ends with the connection and has its error; None if the connection has
    ended, or if aiohttp is too old.
    """
    protocol = response.connection and response.connection.protocol
    closed: asyncio.Future[None] | None = getattr(protocol, "closed", None)
    if closed is not None:  # an error that is never read must not be logged
        closed.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return closed


@asynccontextmanager
async def open_sse(
    spec: SourceSpec, policy: RunnerPolicy, *, cursor: str, clock: Clock
) -> AsyncIterator[SseStream]:
    """Connect to the source, from the event after `cursor` on.

    Raises StreamEndedError for 204. Every other exception is a failure that may be temporary.
    """
    async with _client_session(policy) as session:
        response = await _dial(session, spec, policy, cursor=cursor, clock=clock)
        try:
            yield SseStream(response, cursor=cursor, max_event_bytes=policy.max_event_bytes)
        finally:
            response.close()


def _client_session(policy: RunnerPolicy) -> aiohttp.ClientSession:
    connect_timeout = min(CONNECT_TIMEOUT, policy.read_timeout)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            resolver=_Resolver(connect_timeout), use_dns_cache=False, force_close=True
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(
            total=None, sock_connect=connect_timeout, sock_read=policy.read_timeout
        ),
        auto_decompress=False,
        read_bufsize=_READ_BUFFER,
    )


# --- dialling ---


@dataclass(frozen=True, slots=True)
class _Hop:
    """Where to send the request. `is_trusted`: the source's own server, which gets credentials."""

    url: URL
    is_trusted: bool = True


async def _dial(
    session: aiohttp.ClientSession,
    spec: SourceSpec,
    policy: RunnerPolicy,
    *,
    cursor: str,
    clock: Clock,
) -> aiohttp.ClientResponse:
    """Return the accepted response. A server that takes longer than the read timeout is idle,
    however many bytes of headers it sends.
    """
    hop = _Hop(URL(spec.url))
    async with asyncio.timeout(policy.read_timeout):
        for _ in range(MAX_REDIRECTS + 1):
            response = await _request(session, spec, hop, cursor=cursor)
            if response.status not in _REDIRECTS:
                return _accept(response, now=clock.wall())
            response.close()
            hop = _next_hop(hop, response)
    raise _refusal(f"more than {MAX_REDIRECTS} redirects, the last one to {_shown(hop.url)}")


async def _request(
    session: aiohttp.ClientSession, spec: SourceSpec, hop: _Hop, *, cursor: str
) -> aiohttp.ClientResponse:
    headers = credential_headers(spec) if hop.is_trusted else {}
    headers |= {
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",
        "Cache-Control": "no-cache",
    }
    if cursor and len(cursor) <= _MAX_SENT_ID and _CONTROL.isdisjoint(cursor):
        headers["Last-Event-ID"] = cursor  # any other id would be refused at every dial
    tls = tls_context(spec, with_certificate=hop.is_trusted) if hop.url.scheme == "https" else True
    try:
        return await session.get(hop.url, headers=headers, ssl=tls, allow_redirects=False)
    except aiohttp.ConnectionTimeoutError as error:  # it is a TimeoutError too, but not an idle one
        raise StreamFailedError(
            Failure(reason=FailureReason.NETWORK_ERROR, error=f"no connection: {error}")
        ) from error


def _accept(response: aiohttp.ClientResponse, *, now: float) -> aiohttp.ClientResponse:
    if response.status == 204:  # noqa: PLR2004 - the standard says to stop at "no content"
        raise StreamEndedError
    if response.status != 200:  # noqa: PLR2004 - OK
        retry_after = response.headers.get("Retry-After")
        failure = failure_of_status(response.status, retry_after=retry_after, now=now)
        raise StreamFailedError(failure)
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if response.content_type != "text/event-stream" or encoding not in {"", "identity"}:
        found = response.content_type if encoding in {"", "identity"} else f"{encoding} encoding"
        raise StreamFailedError(
            Failure(
                reason=FailureReason.BAD_CONTENT_TYPE,
                error=f"expected text/event-stream, got {found}",
            )
        )
    return response


# --- redirects ---


def _next_hop(hop: _Hop, response: aiohttp.ClientResponse) -> _Hop:
    try:
        url = hop.url.join(URL(response.headers["Location"]))
    except (KeyError, ValueError):
        raise _refusal(f"status {response.status} without a valid Location") from None
    if url.scheme not in _DEFAULT_PORTS or not url.host:
        raise _refusal(f"a redirect to {_shown(url)}, expected http or https")
    if hop.url.scheme == "https" and url.scheme == "http":
        raise _refusal(f"a redirect from https to {_shown(url)}; use https there")
    if hop.is_trusted and _is_same_server(hop.url, url):
        return replace(hop, url=url.with_user(hop.url.user).with_password(hop.url.password))
    return _Hop(url.with_user(None), is_trusted=False)


def _is_same_server(old: URL, new: URL) -> bool:
    if old.origin() == new.origin():
        return True
    is_upgrade = (old.scheme, new.scheme) == ("http", "https")
    return old.host == new.host and is_upgrade and old.is_default_port() and new.is_default_port()


def _shown(url: URL) -> str:
    """Return the URL without its secret parts."""
    return str(url.with_user(None).with_query(None).with_fragment(None)) if url.host else str(url)


def _refusal(error: str) -> StreamFailedError:
    return StreamFailedError(
        Failure(reason=FailureReason.HTTP_STATUS, error=error, is_slow=True, needs_alert=True)
    )


# --- names ---


class _Resolver(AbstractResolver):
    """Resolves names in a daemon thread for each: a name server that does not answer delays neither
    other sources nor the end of the process.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        call = BlockingCall(
            lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM),
            name="runner-dns",
            timeout=self._timeout,
        )
        try:
            found = await call.run()
        except TimeoutError as error:
            raise socket.gaierror(socket.EAI_AGAIN, f"no answer for {host}") from error
        finally:
            call.close()
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=int(address[1]),
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing: no resource is open."""
