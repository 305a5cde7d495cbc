from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from guardian_fixture import TIMEOUT
from longwatch.core.clock import Clock, SystemClock
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.probes import HttpProbe
from longwatch.testing import FakeClock
from polling import eventually
from probe_rig import ProbeRig

HEALTHY = b'{"status": "healthy"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 21\r\n\r\n"

CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n15\r\n" + HEALTHY + b"\r\n0\r\n\r\n"

Answer = Callable[[socket.socket], None]


def http(port: int, clock: Clock, *, path: str = "/health", **policy: Any) -> ProbeRig:
    return ProbeRig(HttpProbe(port=port, path=path), clock, **policy)


class HttpServer:
    """Answers every connection as the test says, byte by byte if need be, each in a thread of
    its own.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ending = threading.Event()
        self.requests = 0
        self.request = b""
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def close(self) -> None:
        self._ending.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join(TIMEOUT)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            if self._ending.is_set():
                connection.close()
                return
            self.threads.append(threading.Thread(target=self._serve, args=[connection]))
            self.threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            self.request = connection.recv(10_000)
            self.requests += 1
            try:
                self._answer(connection)
            except OSError:
                return  # the one who asked has hung up


@contextmanager
def serving(answer: Answer | bytes) -> Iterator[HttpServer]:
    def say(connection: socket.socket) -> None:
        if isinstance(answer, bytes):
            connection.sendall(answer)
        else:
            answer(connection)

    server = HttpServer(say)
    try:
        yield server
    finally:
        server.close()


def until_hung_up(connection: socket.socket) -> None:
    while connection.recv(100):
        pass


def check_once(port: int) -> str | None:
    """What one check says."""
    with EventLoopThread() as loop:
        return loop.call(http(port, SystemClock(), timeout=TIMEOUT).check(), timeout=2 * TIMEOUT)


def test_a_healthy_answer_is_healthy_and_the_question_is_plain_http() -> None:
    with serving(WITH_LENGTH + HEALTHY) as server:
        assert None is check_once(server.port)
        first, *headers = server.request.decode().split("\r\n")
    assert "GET /health HTTP/1.0" == first
    assert [f"Host: 127.0.0.1:{server.port}", "Connection: close", "", ""] == headers


def test_another_path_can_be_asked_for() -> None:
    with serving(WITH_LENGTH + HEALTHY) as server, EventLoopThread() as loop:
        checker = http(server.port, SystemClock(), path="/live?deep=1")
        assert None is loop.call(checker.check(), timeout=TIMEOUT)
        assert server.request.startswith(b"GET /live?deep=1 HTTP/1.0\r\n")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (HEAD + b"\r\n" + HEALTHY, None),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 21\r\n\r\n" + HEALTHY, "status 503"),
        (HEAD + b"\r\n" + b'{"status": "starting"}', '"status" is "starting", not "healthy"'),
        (HEAD + b"\r\n" + b"OK", "the body is not JSON"),
        (WITH_LENGTH + HEALTHY[:10], "the answer was cut short"),
        (HEAD, "not an HTTP answer"),
        (b"", "not an HTTP answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not an HTTP answer"),
        (CHUNKED, None),
        (CHUNKED[:-8], "the answer was cut short"),
        (HEAD + b"Content-Length: 1000000\r\n\r\n" + HEALTHY.ljust(1_000_000), None),
        (HEAD + b"\r\n" + b'{"status": "healthy", "pad": "' + b"x" * 1_000_000 + b'"}', None),
        (
            HEAD + b"Content-Length: 2000000\r\n\r\n" + HEALTHY.ljust(2_000_000),
            "the answer is longer than 1 MiB",
        ),
        (HEAD + b"\r\n" + HEALTHY.ljust(2_000_000), "the answer is longer than 1 MiB"),
    ],
    ids=[
        *[
            "no length",
            "503",
            "wrong status",
            "no JSON",
            "cut",
            "half a head",
            "nothing",
            "no HTTP",
        ],
        *[
            "chunked",
            "a chunk missing",
            "1 MB",
            "1 MB without length",
            "2 MB",
            "2 MB without length",
        ],
    ],
)
def test_an_answer_is_judged_when_the_connection_ends(answer: bytes, reason: str | None) -> None:
    with serving(answer) as server:
        assert reason == check_once(server.port)


def test_an_answer_that_comes_in_small_pieces_is_put_together() -> None:
    def in_pieces(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in WITH_LENGTH + HEALTHY:
            connection.sendall(bytes([byte]))

    with serving(in_pieces) as server:
        assert None is check_once(server.port)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (WITH_LENGTH + HEALTHY, None),
        (CHUNKED, None),
        (b"HTTP/1.1 503 No\r\nContent-Length: 9\r\n\r\n", "status 503"),
    ],
    ids=["its length is known", "its last chunk is there", "its status is a refusal"],
)
def test_a_connection_that_is_kept_alive_is_not_waited_for_when_the_verdict_is_clear(
    answer: bytes, reason: str | None
) -> None:
    def keeping_alive(connection: socket.socket) -> None:
        connection.sendall(answer)
        until_hung_up(connection)

    with serving(keeping_alive) as server:
        assert reason == check_once(server.port)


def test_nobody_who_listens_is_a_failure() -> None:
    with socket.socket() as taken:  # bound, so that nobody else gets the port, and not listening
        taken.bind(("127.0.0.1", 0))
        told = check_once(taken.getsockname()[1])
    assert "no connection: Connection refused" == told


def test_a_connection_that_is_reset_is_a_failure() -> None:
    def resetting(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    with serving(resetting) as server:
        assert "no connection: Connection reset by peer" == check_once(server.port)


@pytest.mark.parametrize(
    "said",
    [b"", HEAD, WITH_LENGTH, WITH_LENGTH + HEALTHY[:-1], HEAD + b"\r\n" + HEALTHY, CHUNKED[:-5]],
)
def test_an_answer_that_stalls_is_a_failure_when_its_time_is_over(said: bytes) -> None:
    stalled = threading.Event()

    def stalling(connection: socket.socket) -> None:
        connection.sendall(said)
        stalled.set()
        until_hung_up(connection)

    clock = FakeClock()
    with serving(stalling) as server, EventLoopThread() as loop:
        asking = loop.spawn(http(server.port, clock, timeout=5.0).check())
        assert stalled.wait(TIMEOUT)
        clock.await_parked(1)
        clock.advance(4.9)
        assert not asking.done()
        clock.advance(0.1, parked=0)
        assert "no full answer in 5 s" == asking.result(TIMEOUT)


def test_an_answer_that_drips_is_a_failure_when_its_time_is_over() -> None:
    dripped, hung_up = threading.Semaphore(0), threading.Event()

    def dripping(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(HEAD + b"Content-Length: 1000000\r\n\r\n")
        connection.settimeout(0.001)
        while not hung_up.is_set():
            connection.sendall(b" ")
            dripped.release()
            try:
                if not connection.recv(1):
                    hung_up.set()
            except TimeoutError:
                continue

    clock = FakeClock()
    with serving(dripping) as server, EventLoopThread() as loop:
        asking = loop.spawn(http(server.port, clock, timeout=5.0).check())
        clock.await_parked(1)
        for second in range(1, 6):
            assert all(dripped.acquire(timeout=TIMEOUT) for _ in range(3))
            assert not asking.done()
            clock.advance(1.0, parked=1 if second < 5 else 0)
        assert "no full answer in 5 s" == asking.result(TIMEOUT)


def test_a_check_that_cannot_even_ask_is_a_failure() -> None:
    with serving(b"") as server, EventLoopThread() as loop:
        told = loop.call(http(server.port, SystemClock(), path="/\udcff").check(), timeout=TIMEOUT)
    assert told is not None
    assert told.startswith("the check itself failed: UnicodeEncodeError: ")


def test_a_check_that_is_cancelled_hangs_up() -> None:
    hung_up = threading.Event()

    def waiting(connection: socket.socket) -> None:
        until_hung_up(connection)
        hung_up.set()

    with serving(waiting) as server, EventLoopThread() as loop:
        asking = loop.spawn(http(server.port, FakeClock()).check())
        assert eventually(lambda: 1 == server.requests)
        asking.cancel()
        assert hung_up.wait(TIMEOUT)


class WatchRun:
    """A watch under a fake clock, and what it has heard."""

    def __init__(self, loop: EventLoopThread, server: HttpServer, **policy: Any) -> None:
        self.clock = FakeClock()
        self.results: list[tuple[bool, int]] = []
        self._loop = loop
        checker = http(server.port, self.clock, **policy)
        self.ending = loop.spawn(
            checker.watch(lambda reason, failures: self.results.append((reason is None, failures)))
        )
        self.clock.await_parked(1)

    def wait_for_results(self, count: int) -> None:
        assert eventually(lambda: count == len(self.results)), self.results
        run_loop(self._loop)


def test_a_watch_asks_until_it_was_failed_often_enough_and_says_why_it_has_to_go() -> None:
    answers = iter([HEALTHY, b"{}", HEALTHY, b"{}", b"{}", b"{}"])

    def answering(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n" + next(answers))

    with serving(answering) as server, EventLoopThread() as loop:
        watched = WatchRun(loop, server, interval=30.0, failures=3, start_grace=10.0)
        watched.clock.advance(9.9, parked=1)
        assert 0 == server.requests
        watched.clock.advance(0.1, parked=1)
        for count in range(1, 6):
            watched.wait_for_results(count)
            watched.clock.advance(29.9, parked=1)
            assert count == server.requests
            watched.clock.advance(0.1, parked=1 if count < 5 else 0)
        assert (
            '3 failed health checks in a row: "status" is null, not "healthy"'
            == watched.ending.result(TIMEOUT)
        )
    assert [(True, 0), (False, 1), (True, 0), (False, 1), (False, 2), (False, 3)] == watched.results


def test_questions_never_overlap_though_an_answer_takes_longer_than_the_interval() -> None:
    with serving(until_hung_up) as server, EventLoopThread() as loop:
        watched = WatchRun(loop, server, interval=1.0, timeout=5.0, failures=3, start_grace=1.0)
        watched.clock.advance(1.0, parked=1)
        for count in range(1, 4):
            assert eventually(lambda count=count: count == server.requests)  # type: ignore[misc]
            watched.clock.await_parked(1)
            watched.clock.advance(4.9, parked=1)
            assert (count, count - 1) == (server.requests, len(watched.results))
            watched.clock.advance(0.1, parked=1 if count < 3 else 0)
        assert "3 failed health checks in a row: no full answer in 5 s" == watched.ending.result(
            TIMEOUT
        )


def test_the_failures_of_one_watch_do_not_count_for_the_next() -> None:
    with serving(HEAD + b"\r\n{}") as server, EventLoopThread() as loop:
        first = WatchRun(loop, server, interval=30.0, failures=3, start_grace=0.5)
        first.clock.advance(0.5, parked=1)
        first.wait_for_results(1)
        first.clock.advance(30.0, parked=1)
        first.wait_for_results(2)
        first.ending.cancel()
        second = WatchRun(loop, server, interval=30.0, failures=3, start_grace=0.5)
        second.clock.advance(0.5, parked=1)
        second.wait_for_results(1)
        assert not second.ending.done()
        second.ending.cancel()
    assert [(False, 1), (False, 2)] == first.results
    assert [(False, 1)] == second.results


def run_loop(loop: EventLoopThread) -> None:
    """Let what follows an answer happen."""

    async def turn() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    loop.call(turn(), timeout=TIMEOUT)
