"""The health endpoint: responds to HTTP on one port, whatever its clients and its checks do.

One thread with an event loop serves every client, so an idle or slow client delays no other and
costs a few kilobytes. A client has a few seconds to send its request. When there are too many
clients, the one that has been idle longest is disconnected. Quick checks, which only read memory,
run on the loop. All others run in threads of their own, each with its timeout (`blocking_call.py`).
`http.server` is not used: it needs a thread for each client, and three system calls where one write
is enough.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import ipaddress
import resource
import socket
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from math import inf
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.health import (
    Aspect,
    CheckResult,
    Health,
    HealthCheck,
    HealthReason,
    HealthReport,
    Probe,
)
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.blocking_call import BlockingCall
from longwatch.host.health_http import (
    ASPECT_BY_PATH,
    BAD_REQUEST,
    MAX_HEAD_BYTES,
    METRICS_PATH,
    METRICS_TYPE,
    NOT_ALLOWED,
    NOT_FOUND,
    TEXT_TYPE,
    TOO_LARGE,
    HealthRequest,
    HealthResponse,
    parse_request,
    render_response,
    response_for,
)
from longwatch.host.loop import EventLoopThread
from longwatch.host.service import Service

Exposition = Callable[[], str | bytes]
DeferredResponse = Callable[[], Coroutine[Any, Any, HealthResponse]]
"""Makes a response that takes time. A factory, because a task that is cancelled before it starts
would never await the coroutine.
"""

BACKLOG = 256
MAX_CLIENTS = 512
_MIN_CLIENTS = 16
"""Lowest limit of clients, however few descriptors this process may have. The limit is otherwise at
most a quarter of them.
"""
IDLE_TIMEOUT = 10.0
"""Seconds that a client may be idle or take to send its request."""
METRICS_TIMEOUT = 10.0
_MAX_UNREAD_BYTES = 64 * 1024
"""Bytes of responses that a client may have left unread when it gets another."""
_METRICS_UNAVAILABLE = HealthResponse(
    HTTPStatus.SERVICE_UNAVAILABLE, b"metrics could not be collected\n", TEXT_TYPE
)
_TRANSIENT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class HealthServer(Service):
    """Serves `/health/live`, `/health/ready`, their plain-text forms, and `/metrics`.

    `start` and `stop` are idempotent. `readiness_check` and `liveness_check` are one probe each;
    `checks` are more of them, by name. A probe that raises, hangs or fails gives a 503 with a
    reason from a closed list, shown to `?verbose` clients on this machine. `metrics` returns the
    exposition. Errors call the port `port_name`.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - clients outside this machine ask for health
        port: int = 8080,
        readiness_check: Probe | None = None,
        liveness_check: Probe | None = None,
        checks: Iterable[HealthCheck] = (),
        metrics: Exposition | None = None,
        clock: Clock | None = None,
        max_clients: int = MAX_CLIENTS,
        idle_timeout: float = IDLE_TIMEOUT,
        port_name: str = "health port",
    ) -> None:
        super().__init__(name="health-server", clock=clock)
        if not 0 <= port < 2**16:
            raise UsageError(
                f"a health port is a number from 0 (any free one) to 65535, not {port}"
            )
        self.host = host
        self.port = port
        self.max_clients = min(
            max_clients, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, _MIN_CLIENTS)
        )
        self.idle_timeout = idle_timeout
        self._port_name = port_name
        self._checks = (*_checks_from_probes(readiness_check, liveness_check), *checks)
        self._quick = Health((check for check in self._checks if check.quick), self._clock)
        Health(self._checks, self._clock)  # refuses two checks of one name
        self._metrics = metrics
        self._loop = EventLoopThread(name="longwatch-health", clock=clock)
        self._running: _RunningServer | None = None
        self._closing: concurrent.futures.Future[None] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """The address it listens on, with the actual port if 0 was asked for; None while it is
        stopped.
        """
        running = self._running
        return running.address if self.started and running is not None else None

    @property
    def in_own_thread(self) -> bool:
        return self._loop.in_own_thread

    def _start(self) -> None:
        running = _RunningServer(
            self,
            self._quick,
            [check for check in self._checks if not check.quick],
            self._metrics,
            self._clock,
        )
        try:
            self._loop.call(running.open(), timeout=None)
        except BaseException as error:
            self._loop.stop()
            if isinstance(error, OSError | UnicodeError):
                raise _bind_error(error, self.host, self.port, self._port_name) from None
            raise
        self._running = running

    def _stop(self, deadline: Deadline) -> bool:
        running, self._running = self._running, None
        if running is not None:
            self._closing = self._loop.spawn(running.close())
        assert self._closing is not None
        closed, _ = concurrent.futures.wait([self._closing], deadline.remaining())
        return bool(closed) and self._loop.stop(deadline=deadline)


class _RunningServer:
    """One start of the server, on its loop."""

    def __init__(
        self,
        server: HealthServer,
        quick: Health,
        slow: Iterable[HealthCheck],
        metrics: Exposition | None,
        clock: Clock,
    ) -> None:
        self.address = ("", 0)
        self.clients: dict[HealthConnection, None] = {}
        """Clients in the order of their last activity, oldest first."""
        self._settings = server
        self._quick = quick
        self._slow = [_SlowCheck(check, clock) for check in slow]
        self._metrics = (
            BlockingCall(metrics, name="longwatch-metrics", timeout=METRICS_TIMEOUT)
            if metrics is not None
            else None
        )
        self._listener: asyncio.Server | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._listener = await loop.create_server(
            partial(HealthConnection, self), settings.host, settings.port, backlog=BACKLOG
        )
        host, port, *_ = self._listener.sockets[0].getsockname()
        self.address = (host, port)

    async def close(self) -> None:
        self._closed = True
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for task in self._tasks:
            task.cancel()
        for client in tuple(self.clients):
            client.abort()
        if self._listener is not None:
            await _close_listener(self._listener)
        for slow in self._slow:
            slow.call.close()
        if self._metrics is not None:
            self._metrics.close()

    # --- clients ---

    def accept(self, client: HealthConnection) -> None:
        if self._closed:
            client.abort()
            return
        if len(self.clients) >= self._settings.max_clients:
            self._longest_idle().abort()
        self.touch(client)
        if self._idle_timer is None:
            self._idle_timer = asyncio.get_running_loop().call_later(1.0, self._close_idle)

    def touch(self, client: HealthConnection) -> None:
        """Restart the idle time of a client that has just connected or got a response."""
        self.clients.pop(client, None)
        client.idle_since = asyncio.get_running_loop().time()
        self.clients[client] = None

    def remove(self, client: HealthConnection) -> None:
        self.clients.pop(client, None)

    def _longest_idle(self) -> HealthConnection:
        """Return the longest idle client that does not wait for a response; the oldest
        if all wait.
        """
        first = next(iter(self.clients))
        return next((client for client in self.clients if not client.busy), first)

    def _close_idle(self) -> None:
        """Disconnect clients that have been idle for too long; repeat while there are clients."""
        loop = asyncio.get_running_loop()
        for client in tuple(self.clients):
            if loop.time() - client.idle_since <= self._settings.idle_timeout:
                break
            if not client.busy:
                client.abort()
        self._idle_timer = loop.call_later(1.0, self._close_idle) if self.clients else None

    # --- responses ---

    def respond(self, request: HealthRequest, *, local: bool) -> HealthResponse | DeferredResponse:
        """Return the response, or a factory for it if slow checks or metrics are needed."""
        if request.path == METRICS_PATH and self._metrics is not None:
            return (
                NOT_ALLOWED
                if request.method not in _METHODS
                else partial(self._metrics_response, self._metrics)
            )
        aspect = ASPECT_BY_PATH.get(request.path)
        if aspect is None:
            return NOT_FOUND
        if request.method not in _METHODS:
            return NOT_ALLOWED
        verbose = local and "verbose" in request.query.split("&")
        report = self._quick.report(aspect)
        slow = [check for check in self._slow if aspect in check.aspects]
        if slow and (report.ok or verbose):
            return partial(self._slow_response, request.path, report, slow, verbose=verbose)
        return response_for(request.path, report, verbose=verbose)

    def run_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _slow_response(
        self, path: str, report: HealthReport, slow: list[_SlowCheck], *, verbose: bool
    ) -> HealthResponse:
        results = await asyncio.gather(*(check.result() for check in slow))
        return response_for(path, HealthReport((*report.results, *results)), verbose=verbose)

    async def _metrics_response(self, call: BlockingCall[str | bytes]) -> HealthResponse:
        try:
            text = await call.run()
            return HealthResponse(
                HTTPStatus.OK, text if isinstance(text, bytes) else text.encode(), METRICS_TYPE
            )
        except Exception:  # noqa: BLE001 - the user's code; the response reports the failure
            return _METRICS_UNAVAILABLE


_METHODS = frozenset({"GET", "HEAD"})


class _SlowCheck:
    """A check that runs in a thread of its own."""

    def __init__(self, check: HealthCheck, clock: Clock) -> None:
        self.aspects = check.aspects
        self._name = check.name
        health = Health([check], clock)
        aspect = next(iter(check.aspects))
        self.call = BlockingCall(
            lambda: health.report(aspect).results[0],
            name=f"check-{check.name}",
            timeout=check.timeout,
        )

    async def result(self) -> CheckResult:
        try:
            return await self.call.run()
        except TimeoutError:
            return CheckResult(self._name, HealthReason.TIMED_OUT)
        except Exception as error:  # noqa: BLE001 - an exit in the user's probe
            return CheckResult(self._name, HealthReason.RAISED, type(error).__name__)


class HealthConnection(asyncio.Protocol):
    """One connection: handles one request after another."""

    def __init__(self, server: _RunningServer) -> None:
        self.idle_since = inf
        self.busy = False
        """Whether it waits for a response; meanwhile nothing more is read from it."""
        self._server = server
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.accept(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._server.remove(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.busy:
            self._handle_next()

    def abort(self) -> None:
        self._server.remove(self)
        if self._transport is not None:
            self._transport.abort()

    def _handle_next(self) -> None:
        """Respond to the first buffered request, if it is complete."""
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if len(head) > MAX_HEAD_BYTES:
            self._send(TOO_LARGE, closes_connection=True)
        elif end:
            self._buffer = rest
            self._respond(parse_request(head))

    def _respond(self, request: HealthRequest | None) -> None:
        """Respond at once where that is possible.

        A client with more buffered requests gets one response a loop turn, so that other clients
        get theirs in between.
        """
        if request is None:
            self._send(BAD_REQUEST, closes_connection=True)
            return
        response = self._server.respond(request, local=self._is_local())
        if isinstance(response, HealthResponse) and not self._buffer:
            self._send(
                response,
                closes_connection=request.closes_connection,
                head_only=request.method == "HEAD",
            )
        else:
            assert self._transport is not None
            self.busy = True
            self._transport.pause_reading()
            self._server.run_task(self._respond_later(request, response))

    async def _respond_later(
        self, request: HealthRequest, response: HealthResponse | DeferredResponse
    ) -> None:
        ready = response if isinstance(response, HealthResponse) else await response()
        self._send(
            ready, closes_connection=request.closes_connection, head_only=request.method == "HEAD"
        )
        self.busy = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._handle_next()

    def _send(
        self, response: HealthResponse, *, closes_connection: bool, head_only: bool = False
    ) -> None:
        """Send a response; disconnect a client that has left too much unread.

        A connection to be closed stays a client until the response is read or it was idle for too
        long.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
            self.abort()
            return
        transport.write(
            render_response(response, closes_connection=closes_connection, head_only=head_only)
        )
        self._server.touch(self)
        if closes_connection:
            transport.close()

    def _is_local(self) -> bool:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not peer:
            return False
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


def _checks_from_probes(readiness: Probe | None, liveness: Probe | None) -> Iterable[HealthCheck]:
    if readiness is not None:
        yield HealthCheck("readiness_check", readiness, frozenset({Aspect.READY}))
    if liveness is not None:
        yield HealthCheck("liveness_check", liveness, frozenset({Aspect.LIVE}))


async def _close_listener(listener: asyncio.Server) -> None:
    """Stop accepting, finish the connections that were just accepted, and free the port.

    Nothing else would close those connections. The sockets are shut down because forked children
    may hold copies, which would keep the port open and let clients wait.
    """
    for sock in listener.sockets:
        asyncio.get_running_loop().remove_reader(sock.fileno())
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    for sock in listener.sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    listener.close()


def _bind_error(
    error: OSError | UnicodeError, host: str, port: int, name: str = "health port"
) -> Exception:
    if isinstance(error, UnicodeError):
        return UsageError(
            f"{host} is not a host name; give the {name} {port} a host name or an address"
        )
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"the {name} {port} on {host} is in use; choose another, or stop the process that "
            f"listens there"
        )
    if error.errno == errno.EACCES:
        return UsageError(f"the {name} {port} on {host} needs privileges; choose one above 1023")
    if error.errno in _TRANSIENT_ERRNOS:
        return TryAgainError(f"the {name} {port} cannot be opened: {error.strerror}; try again")
    return UsageError(
        f"the {name} {port} on {host} cannot be opened: {error.strerror or error}; "
        f"choose another host or port"
    )
