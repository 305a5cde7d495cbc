from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from den import PATIENCE, eventually
from longwatch.core.clock import SystemClock
from longwatch.host.loop import LoopThread
from longwatch.supervisor.healthcheck import HealthPolicy, HttpCheck, watch
from longwatch.testing import FakeClock

HEALTHY = b'{"status": "healthy"}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
WITH_LENGTH = HEAD + b"Content-Length: 21\r\n\r\n"

Answer = Callable[[socket.socket], None]


class Server:
    """Answers every connection as the test says, byte by byte if need be, each in a thread of its own."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._ending = threading.Event()
        self.asked = 0
        self.request = b""
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def close(self) -> None:
        self._ending.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self.threads:
            thread.join(PATIENCE)
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
            self.asked += 1
            try:
                self._answer(connection)
            except OSError:
                return  # the one who asked has hung up


@contextmanager
def serving(answer: Answer | bytes) -> Iterator[Server]:
    def say(connection: socket.socket) -> None:
        if isinstance(answer, bytes):
            connection.sendall(answer)
        else:
            answer(connection)

    server = Server(say)
    try:
        yield server
    finally:
        server.close()


def until_hung_up(connection: socket.socket) -> None:
    while connection.recv(100):
        pass


def asked(port: int) -> str | None:
    """What one check says."""
    check = HttpCheck(HealthPolicy(port=port, timeout=PATIENCE), SystemClock())
    with LoopThread() as loop:
        return loop.call(check.ask(), timeout=2 * PATIENCE)


def test_a_healthy_answer_is_healthy_and_the_question_is_plain_http() -> None:
    with serving(WITH_LENGTH + HEALTHY) as server:
        assert None is asked(server.port)
        first, *headers = server.request.decode().split("\r\n")
    assert "GET /health HTTP/1.0" == first
    assert [f"Host: 127.0.0.1:{server.port}", "Connection: close", "", ""] == headers


def test_another_path_can_be_asked_for() -> None:
    with serving(WITH_LENGTH + HEALTHY) as server, LoopThread() as loop:
        check = HttpCheck(HealthPolicy(port=server.port, path="/live?deep=1"), SystemClock())
        assert None is loop.call(check.ask(), timeout=PATIENCE)
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
        (HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 1_000_000, "the answer was cut short"),
        (HEAD + b"\r\n" + b'{"status": "healthy", "pad": "' + b"x" * 1_000_000 + b'"}', "the body is not JSON"),
    ],
    ids=["no length", "503", "wrong status", "no JSON", "cut", "half a head", "nothing", "no HTTP", "1 MB", "1 MB without length"],
)
def test_an_answer_is_judged_when_the_connection_ends(answer: bytes, reason: str | None) -> None:
    with serving(answer) as server:
        assert reason == asked(server.port)


def test_an_answer_that_comes_in_small_pieces_is_put_together() -> None:
    def in_pieces(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in WITH_LENGTH + HEALTHY:
            connection.sendall(bytes([byte]))

    with serving(in_pieces) as server:
        assert None is asked(server.port)


def test_a_connection_that_is_kept_alive_is_not_waited_for_when_the_length_is_known() -> None:
    def keeping_alive(connection: socket.socket) -> None:
        connection.sendall(WITH_LENGTH + HEALTHY)
        until_hung_up(connection)

    with serving(keeping_alive) as server:
        assert None is asked(server.port)


def test_nobody_who_listens_is_a_failure() -> None:
    with socket.socket() as taken:  # bound, so that nobody else gets the port, and not listening
        taken.bind(("127.0.0.1", 0))
        told = asked(taken.getsockname()[1])
    assert told is not None
    assert told.startswith("no connection: ")


def test_a_connection_that_is_reset_is_a_failure() -> None:
    def resetting(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    with serving(resetting) as server:
        assert "no connection: Connection reset by peer" == asked(server.port)


@pytest.mark.parametrize("said", [b"", HEAD, WITH_LENGTH, WITH_LENGTH + HEALTHY[:-1], HEAD + b"\r\n" + HEALTHY])
def test_an_answer_that_stalls_is_a_failure_when_its_time_is_over(said: bytes) -> None:
    stalled = threading.Event()

    def stalling(connection: socket.socket) -> None:
        connection.sendall(said)
        stalled.set()
        until_hung_up(connection)

    clock = FakeClock()
    with serving(stalling) as server, LoopThread() as loop:
        asking = loop.spawn(HttpCheck(HealthPolicy(port=server.port, timeout=5.0), clock).ask())
        assert stalled.wait(PATIENCE)
        clock.await_parked(1)
        clock.advance(4.9)
        assert not asking.done()
        clock.advance(0.1, parked=0)
        assert "no full answer in 5 s" == asking.result(PATIENCE)


def test_a_check_that_is_cancelled_hangs_up() -> None:
    hung_up = threading.Event()

    def waiting(connection: socket.socket) -> None:
        until_hung_up(connection)
        hung_up.set()

    with serving(waiting) as server, LoopThread() as loop:
        asking = loop.spawn(HttpCheck(HealthPolicy(port=server.port), FakeClock()).ask())
        assert eventually(lambda: 1 == server.asked)
        asking.cancel()
        assert hung_up.wait(PATIENCE)


def test_a_watch_asks_until_it_was_failed_often_enough_and_never_twice_at_a_time() -> None:
    clock = FakeClock()
    answers = iter([HEALTHY, b"{}", HEALTHY, b"{}", b"{}", b"{}"])
    heard: list[tuple[bool, int]] = []

    def answering(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n" + next(answers))

    with serving(answering) as server, LoopThread() as loop:
        check = HttpCheck(HealthPolicy(port=server.port, interval=30.0, failures=3, start_grace=10.0), clock)
        watching = loop.spawn(watch(check, clock, lambda reason, failures: heard.append((reason is None, failures))))
        clock.await_parked(1)
        clock.advance(10.0, parked=1)
        for count in range(1, 6):
            assert eventually(lambda count=count: len(heard) == count == server.asked)  # type: ignore[misc]
            settle(loop)
            clock.advance(29.9, parked=1)
            assert count == server.asked
            clock.advance(0.1, parked=1 if count < 5 else 0)
        watching.result(PATIENCE)
    assert [(True, 0), (False, 1), (True, 0), (False, 1), (False, 2), (False, 3)] == heard


def settle(loop: LoopThread) -> None:
    """Let what follows an answer happen."""

    async def turn() -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    loop.call(turn(), timeout=PATIENCE)
