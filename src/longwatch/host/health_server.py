"""The health endpoint: answers HTTP on one port, whatever its clients and its checks do.

One thread with an event loop serves every client, so an idle or slow one delays nobody and costs a
few kilobytes; a client has a few seconds to say what it wants, and when there are too many, the one
that has been silent longest has to go. Checks that only look at memory are asked on the spot; all
others in threads of their own, each with its deadline (`asking.py`). `http.server` is not used: it
needs a thread a client, and three system calls for what is one write here.
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
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.health import Aspect, Check, Health, Probe, Reason, Report, Result
from longwatch.errors import TryAgainError, UsageError
from longwatch.host.asking import Question
from longwatch.host.health_answers import ASPECTS, METRICS_PATH, answer_for
from longwatch.host.http_requests import (
    BAD_REQUEST,
    LONGEST_HEAD,
    METRICS,
    NOT_ALLOWED,
    NOT_FOUND,
    TEXT,
    TOO_LARGE,
    Answer,
    Request,
    parse,
    render,
)
from longwatch.host.loop import LoopThread
from longwatch.host.service import Service

Exposition = Callable[[], str | bytes]
Later = Callable[[], Coroutine[Any, Any, Answer]]
"""An answer that takes its time; not begun, because it may never be: a task that is cancelled
first would leave it so.
"""

BACKLOG = 256
MOST_CLIENTS = 512
_FEWEST_CLIENTS = 16
"""However few descriptors this process may have; of many it leaves three quarters to others."""
SILENCE = 10.0
"""Seconds that a client may say nothing, or not finish what it says."""
METRICS_WITHIN = 10.0
_MOST_UNREAD = 64 * 1024
"""Bytes of answers that a client may have left unread when it gets another."""
_LATE = Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"metrics could not be collected", TEXT)
_FOR_NOW = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class HealthServer(Service):
    """Serves `/health/live`, `/health/ready`, their plain-text cousins, and `/metrics`; `start` and
    `stop` are idempotent.

    `readiness_check` and `liveness_check` are one probe each; `checks` are more of them, by name. A
    probe that raises, hangs or says no is a 503 with a reason from a closed list, shown to
    `?verbose` clients on this machine. `metrics` gives the exposition.
    """

    def __init__(  # noqa: PLR0913 - the contract
        self,
        *,
        host: str = "0.0.0.0",  # noqa: S104 - health is asked from outside
        port: int = 8080,
        readiness_check: Probe | None = None,
        liveness_check: Probe | None = None,
        checks: Iterable[Check] = (),
        metrics: Exposition | None = None,
        clock: Clock | None = None,
        most_clients: int = MOST_CLIENTS,
        silence: float = SILENCE,
    ) -> None:
        super().__init__(name="health-server", clock=clock)
        _require_port(port)
        self.host = host
        self.port = port
        self.most_clients = min(
            most_clients, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4, _FEWEST_CLIENTS)
        )
        self.silence = silence
        self._checks = (*_named(readiness_check, liveness_check), *checks)
        self._quick = Health((check for check in self._checks if check.quick), self._clock)
        Health(self._checks, self._clock)  # refuses two of one name
        self._metrics = metrics
        self._loop = LoopThread(name="longwatch-health", clock=clock)
        self._served: _Served | None = None
        self._closing: concurrent.futures.Future[None] | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """Where it really listens, also with port 0; None while it is stopped."""
        served = self._served
        return served.address if self.started and served is not None else None

    @property
    def inside(self) -> bool:
        return self._loop.inside

    def _start(self) -> None:
        served = _Served(
            self,
            self._quick,
            [check for check in self._checks if not check.quick],
            self._metrics,
            self._clock,
        )
        try:
            self._loop.call(served.open(), timeout=None)
        except BaseException as error:
            self._loop.stop()
            if isinstance(error, OSError | UnicodeError):
                raise _refusal(error, self.host, self.port) from None
            raise
        self._served = served

    def _stop(self, deadline: Deadline) -> bool:
        served, self._served = self._served, None
        if served is not None:
            self._closing = self._loop.spawn(served.close())
        assert self._closing is not None
        closed, _ = concurrent.futures.wait([self._closing], deadline.remaining())
        return bool(closed) and self._loop.stop(deadline=deadline)


class _Served:
    """One start of the server, on its loop."""

    def __init__(
        self,
        server: HealthServer,
        quick: Health,
        slow: Iterable[Check],
        metrics: Exposition | None,
        clock: Clock,
    ) -> None:
        self.address = ("", 0)
        self.clients: dict[Client, None] = {}
        """Those that were heard of longest ago come first."""
        self._settings = server
        self._quick = quick
        self._slow = [_SlowCheck(check, clock) for check in slow]
        self._metrics = (
            Question(metrics, name="longwatch-metrics", within=METRICS_WITHIN)
            if metrics is not None
            else None
        )
        self._listening: asyncio.Server | None = None
        self._reaping: asyncio.TimerHandle | None = None
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        settings = self._settings
        self._listening = await loop.create_server(
            partial(Client, self), settings.host, settings.port, backlog=BACKLOG
        )
        host, port, *_ = self._listening.sockets[0].getsockname()
        self.address = (host, port)

    async def close(self) -> None:
        self._closed = True
        if self._reaping is not None:
            self._reaping.cancel()
        for task in self._tasks:
            task.cancel()
        for client in tuple(self.clients):
            client.hang_up()
        if self._listening is not None:
            await _let_go(self._listening)
        for slow in self._slow:
            slow.question.close()
        if self._metrics is not None:
            self._metrics.close()

    # --- clients ---

    def welcome(self, client: Client) -> None:
        if self._closed:
            client.hang_up()
            return
        if len(self.clients) >= self._settings.most_clients:
            self._silent_longest().hang_up()
        self.heard(client)
        if self._reaping is None:
            self._reaping = asyncio.get_running_loop().call_later(1.0, self._reap)

    def heard(self, client: Client) -> None:
        """It has been answered, or has just come: from now on its silence counts."""
        self.clients.pop(client, None)
        client.since = asyncio.get_running_loop().time()
        self.clients[client] = None

    def left(self, client: Client) -> None:
        self.clients.pop(client, None)

    def _silent_longest(self) -> Client:
        """One that waits for its answer is not silent; it goes only if all do."""
        first = next(iter(self.clients))
        return next((client for client in self.clients if not client.busy), first)

    def _reap(self) -> None:
        """Hang up on those that have been silent for too long; look again as long as there is
        anybody.
        """
        loop = asyncio.get_running_loop()
        for client in tuple(self.clients):
            if loop.time() - client.since <= self._settings.silence:
                break
            if not client.busy:
                client.hang_up()
        self._reaping = loop.call_later(1.0, self._reap) if self.clients else None

    # --- answers ---

    def answer(self, request: Request, *, local: bool) -> Answer | Later:
        """At once where that is possible."""
        if request.path == METRICS_PATH and self._metrics is not None:
            return (
                NOT_ALLOWED
                if request.method not in _METHODS
                else partial(self._exposed, self._metrics)
            )
        aspect = ASPECTS.get(request.path)
        if aspect is None:
            return NOT_FOUND
        if request.method not in _METHODS:
            return NOT_ALLOWED
        verbose = local and "verbose" in request.query.split("&")
        report = self._quick.report(aspect)
        slow = [check for check in self._slow if aspect in check.aspects]
        if slow and (report.ok or verbose):
            return partial(self._slowly, request.path, report, slow, verbose=verbose)
        return answer_for(request.path, report, verbose=verbose)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _slowly(
        self, path: str, report: Report, slow: list[_SlowCheck], *, verbose: bool
    ) -> Answer:
        results = await asyncio.gather(*(check.result() for check in slow))
        return answer_for(path, Report((*report.results, *results)), verbose=verbose)

    async def _exposed(self, question: Question[str | bytes]) -> Answer:
        try:
            text = await question.ask()
            return Answer(
                HTTPStatus.OK, text if isinstance(text, bytes) else text.encode(), METRICS
            )
        except Exception:  # noqa: BLE001 - anybody's code; who scrapes sees that it failed
            return _LATE


_METHODS = frozenset({"GET", "HEAD"})


class _SlowCheck:
    """A check that is asked in a thread of its own."""

    def __init__(self, check: Check, clock: Clock) -> None:
        self.aspects = check.aspects
        self._name = check.name
        alone = Health([check], clock)
        aspect = next(iter(check.aspects))
        self.question = Question(
            lambda: alone.report(aspect).results[0],
            name=f"check-{check.name}",
            within=check.deadline,
        )

    async def result(self) -> Result:
        try:
            return await self.question.ask()
        except TimeoutError:
            return Result(self._name, Reason.OVERRAN)
        except Exception as error:  # noqa: BLE001 - an exit of the user's probe
            return Result(self._name, Reason.RAISED, type(error).__name__)


class Client(asyncio.Protocol):
    """One connection: one request after another, each answered before the next is looked at."""

    def __init__(self, served: _Served) -> None:
        self.since = 0.0
        self.busy = False
        """Whether it waits for an answer; meanwhile nothing more is read from it."""
        self._served = served
        self._said = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._served.welcome(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._served.left(self)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if not self.busy:
            self._next()

    def hang_up(self) -> None:
        self._served.left(self)
        if self._transport is not None:
            self._transport.abort()

    def _next(self) -> None:
        """Answer the first of what was said, if it is complete."""
        head, end, rest = self._said.partition(b"\r\n\r\n")
        if len(head) > LONGEST_HEAD:
            self._say(TOO_LARGE, closes=True)
        elif end:
            self._said = rest
            self._respond(parse(head))

    def _respond(self, request: Request | None) -> None:
        """At once where that is possible; who has said more than one thing gets one answer a
        turn, and others theirs in between.
        """
        if request is None:
            self._say(BAD_REQUEST, closes=True)
            return
        answer = self._served.answer(request, local=self._is_local())
        if isinstance(answer, Answer) and not self._said:
            self._say(answer, closes=request.closes, head_only=request.method == "HEAD")
        else:
            assert self._transport is not None
            self.busy = True
            self._transport.pause_reading()
            self._served.later(self._respond_later(request, answer))

    async def _respond_later(self, request: Request, answer: Answer | Later) -> None:
        said = answer if isinstance(answer, Answer) else await answer()
        self._say(said, closes=request.closes, head_only=request.method == "HEAD")
        self.busy = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._next()

    def _say(self, answer: Answer, *, closes: bool, head_only: bool = False) -> None:
        """A client that is told to go is a client until it has taken its answer, or has been
        silent for too long.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > _MOST_UNREAD:
            self.hang_up()
            return
        transport.write(render(answer, closes=closes, head_only=head_only))
        self._served.heard(self)
        if closes:
            transport.close()

    def _is_local(self) -> bool:
        peer = self._transport.get_extra_info("peername") if self._transport is not None else None
        if not peer:
            return False
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return (mapped or address).is_loopback


def _named(readiness: Probe | None, liveness: Probe | None) -> Iterable[Check]:
    if readiness is not None:
        yield Check("readiness_check", readiness, frozenset({Aspect.READY}))
    if liveness is not None:
        yield Check("liveness_check", liveness, frozenset({Aspect.LIVE}))


async def _let_go(listening: asyncio.Server) -> None:
    """Take nobody more, see in those who were taken just now, whom nobody would close otherwise,
    and free the port.

    Also for children that were forked meanwhile: what they hold of it would keep the port, and let
    clients wait.
    """
    for one in listening.sockets:
        asyncio.get_running_loop().remove_reader(one.fileno())
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    for one in listening.sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    listening.close()


def _require_port(port: int) -> None:
    if not 0 <= port < 2**16:
        raise UsageError(f"a health port is a number from 0 (any free one) to 65535, not {port}")


def _refusal(error: OSError | UnicodeError, host: str, port: int) -> Exception:
    if isinstance(error, UnicodeError):
        return UsageError(
            f"{host} is no name of a host; the health port {port} needs one, or an address"
        )
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"the health port {port} on {host} is in use; choose another, or end what listens there"
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"the health port {port} on {host} needs privileges; choose one above 1023"
        )
    if error.errno in _FOR_NOW:
        return TryAgainError(
            f"the health port {port} cannot be opened: {error.strerror}; try again"
        )
    return UsageError(
        f"the health port {port} on {host} cannot be opened: {error.strerror or error}; "
        f"choose another host or port"
    )
