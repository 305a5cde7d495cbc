from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import pytest

from guardian_fixture import TIMEOUT
from leaks import no_leaks
from longwatch.core.clock import Clock, SystemClock
from longwatch.core.events.base import Events
from longwatch.core.events.supervisor import ControlCommandFailed
from longwatch.errors import (
    DeadlineExceededError,
    LongwatchError,
    NeedsOperatorError,
    TryAgainError,
    UsageError,
)
from longwatch.host.loop import EventLoopThread
from longwatch.supervisor.client import send_request
from longwatch.supervisor.control import (
    IDLE_TIMEOUT,
    MAX_CONNECTIONS,
    MAX_REQUEST_BYTES,
    ControlServer,
)
from longwatch.testing import FakeClock, RecordingObserver
from polling import eventually
from snippet import run_snippet

Facts = dict[str, Any]
NOBODY = 65534
NOT_JSON = 'expected one line with one JSON object, such as {"do": "status"}'


class RunningServer:
    """A control server, its loop, and what a test may want to know of them."""

    def __init__(
        self,
        server: ControlServer,
        loop: EventLoopThread,
        observer: RecordingObserver,
        loop_errors: list[str],
    ) -> None:
        self.server = server
        self.loop = loop
        self.observer = observer
        self.loop_errors = loop_errors

    @property
    def path(self) -> Path:
        return self.server.path

    def request(self, *, timeout: float = TIMEOUT, **request: Any) -> Facts:
        return send_request(self.path, request, timeout=timeout)

    def start_request(self, **request: Any) -> Iterator[Facts]:
        """Ask in a thread; the answer comes when it is taken from the iterator."""
        answers: list[Facts] = []
        thread = threading.Thread(target=lambda: answers.append(self.request(**request)))
        thread.start()

        def taken() -> Iterator[Facts]:
            thread.join(TIMEOUT)
            yield from answers

        return taken()


class Connection:
    """A connection that says and hears what the test wants."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TIMEOUT)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> Facts | None:
        """The next answer; None when the other side has hung up."""
        try:
            line = self._file.readline()
        except ConnectionResetError:
            return None
        return json.loads(line) if line else None

    def finish_sending(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def fill(self, line: bytes) -> None:
        """Send until nothing more is taken."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while self._socket.send(line):
                pass
        self._socket.settimeout(TIMEOUT)


async def echo(request: Facts) -> Facts:
    return {"heard": request}


@contextmanager
def serving(
    path: Path,
    answer: Callable[[Facts], Awaitable[Facts]] = echo,
    *,
    clock: Clock | None = None,
    **limits: Any,
) -> Iterator[RunningServer]:
    observer = RecordingObserver()
    complaints: list[str] = []
    server = ControlServer(
        path, answer, clock=clock or SystemClock(), events=Events(observer), **limits
    )
    with EventLoopThread() as loop:
        loop.loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
        loop.call(server.open(), timeout=TIMEOUT)
        try:
            yield RunningServer(server, loop, observer, complaints)
        finally:
            loop.call(server.close(), timeout=TIMEOUT)
    assert [] == complaints


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path that others can get to."""
    directory = Path(tempfile.mkdtemp(dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


class GatedReply:
    """An answer that a test lets through; `status` is answered at once."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.finished = threading.Semaphore(0)
        self._open: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, request: Facts) -> Facts:
        if request["do"] == "status":
            return {"ok": True}
        self._loop = asyncio.get_running_loop()
        self._open = self._open or asyncio.Event()
        self.entered.release()
        await self._open.wait()
        self.finished.release()
        return {"ok": True, "done": request["do"]}

    def open(self) -> None:
        assert self._loop is not None
        assert self._open is not None
        self._loop.call_soon_threadsafe(self._open.set)


# --- asking and answering ---


def test_a_request_is_answered(path: Path) -> None:
    with serving(path) as supervisor:
        assert {"ok": True, "heard": {"do": "status", "programs": ["wéb\n"]}} == supervisor.request(
            do="status", programs=["wéb\n"]
        )


def test_many_requests_go_over_one_connection_also_when_they_are_sent_at_once(path: Path) -> None:
    with serving(path) as supervisor, Connection(supervisor.path) as line:
        line.send(b'{"n": 1}\n{"n": 2}\n{"n"')
        assert [{"n": 1}, {"n": 2}] == [(line.receive() or {})["heard"] for _ in range(2)]
        line.send(b": 3}\n")
        assert {"ok": True, "heard": {"n": 3}} == line.receive()


def test_who_has_said_his_last_word_still_gets_his_answer_and_then_the_end(path: Path) -> None:
    with serving(path) as supervisor, Connection(supervisor.path) as line:
        line.send(b'{"n": 1}\n')
        line.finish_sending()
        assert {"ok": True, "heard": {"n": 1}} == line.receive()
        assert None is line.receive()


def test_half_a_line_before_the_end_is_no_request(path: Path) -> None:
    asked: list[Facts] = []

    async def answer(request: Facts) -> Facts:
        asked.append(request)
        return {"ok": True}

    with serving(path, answer) as supervisor, Connection(supervisor.path) as line:
        line.send(b'{"do": "stop"}')
        line.finish_sending()
        assert None is line.receive()
    assert [] == asked


def test_an_answer_of_megabytes_arrives_whole(path: Path) -> None:
    async def answer(request: Facts) -> Facts:
        return {"ok": True, "programs": ["x" * 100] * 50_000}

    with serving(path, answer) as supervisor:
        assert 50_000 == len(supervisor.request(do="status")["programs"])


@pytest.mark.parametrize(
    "error",
    [
        UsageError("no program 'wbe'; did you mean web?"),
        TryAgainError("later"),
        NeedsOperatorError("no"),
    ],
)
def test_an_error_of_ours_is_answered_with_its_words_and_its_code(
    path: Path, error: LongwatchError
) -> None:
    async def answer(request: Facts) -> Facts:
        raise error

    with serving(path, answer) as supervisor:
        assert {
            "ok": False,
            "error": str(error),
            "exit_code": error.exit_code,
        } == supervisor.request(do="stop")
        assert [] == supervisor.observer.events


@pytest.mark.parametrize(
    "fault",
    [lambda: 1 / 0, lambda: {"x": object()}, lambda: {"x": float("nan")}],
    ids=["raises", "no JSON", "nan"],
)
def test_a_fault_of_ours_is_one_line_and_an_event_and_the_server_lives(
    path: Path, fault: Callable[[], Facts]
) -> None:
    async def answer(request: Facts) -> Facts:
        return {"ok": True} if request["do"] == "status" else fault()

    with serving(path, answer) as supervisor, Connection(supervisor.path) as line:
        line.send(b'{"do": "stop"}\n')
        told = line.receive() or {}
        assert (False, 1) == (told["ok"], told["exit_code"])
        assert "\n" not in told["error"]
        assert [
            ControlCommandFailed(command="stop", error=told["error"])
        ] == supervisor.observer.events
        line.send(b'{"do": "status"}\n')
        assert {"ok": True} == line.receive()


def test_a_slow_command_does_not_delay_others(path: Path) -> None:
    gate = GatedReply()
    with serving(path, gate) as supervisor:
        slow = supervisor.start_request(do="stop")
        assert gate.entered.acquire(timeout=TIMEOUT)
        assert {"ok": True} == supervisor.request(do="status")
        gate.open()
        assert [{"ok": True, "done": "stop"}] == list(slow)


def test_what_was_asked_for_is_done_though_the_one_who_asked_has_left(path: Path) -> None:
    gate = GatedReply()
    with serving(path, gate) as supervisor:
        with Connection(supervisor.path) as line:
            line.send(b'{"do": "stop"}\n')
            assert gate.entered.acquire(timeout=TIMEOUT)
        gate.open()
        assert gate.finished.acquire(timeout=TIMEOUT)
        assert {"ok": True} == supervisor.request(do="status")


def test_an_answer_may_say_no_with_facts_of_its_own(path: Path) -> None:
    told = {
        "ok": False,
        "error": "web is not ready",
        "exit_code": 75,
        "programs": [{"name": "web"}],
    }

    async def answer(request: Facts) -> Facts:
        return told

    with serving(path, answer) as supervisor:
        assert told == supervisor.request(do="start")


# --- bad input ---


@pytest.mark.parametrize(
    "line",
    [
        b"status",
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b"\xff\xfe",
        b"\0",
        b"[" * 60_000,
        b"1" * 10_000,
        b'{"a": 1} {"b": 2}',
    ],
    ids=lambda line: repr(line[:8]),
)
def test_a_line_that_is_no_object_is_refused_and_the_next_is_heard(path: Path, line: bytes) -> None:
    with serving(path) as supervisor, Connection(supervisor.path) as connection:
        connection.send(line + b'\n{"n": 1}\n')
        assert {"ok": False, "error": NOT_JSON, "exit_code": 2} == connection.receive()
        assert {"ok": True, "heard": {"n": 1}} == connection.receive()


def test_a_request_may_have_64_kib_and_not_a_byte_more(path: Path) -> None:
    with serving(path) as supervisor, Connection(supervisor.path) as connection:
        request = b'{"pad": "' + b"x" * (MAX_REQUEST_BYTES - 11) + b'"}'
        assert MAX_REQUEST_BYTES == len(request)
        connection.send(request + b"\n")
        assert True is (connection.receive() or {})["ok"]
        connection.send(request + b" \n")
        assert {
            "ok": False,
            "error": "expected a request of at most 65536 bytes, got more",
            "exit_code": 2,
        } == connection.receive()
        assert None is connection.receive()
        assert True is supervisor.request(do="status")["ok"]


def test_the_client_tells_the_refusal_of_a_request_that_it_could_not_even_send(path: Path) -> None:
    with serving(path) as supervisor:
        assert (
            "expected a request of at most 65536 bytes, got more"
            == supervisor.request(do="stop", programs=["x" * 5_000_000])["error"]
        )


def test_an_endless_line_is_cut_off(path: Path) -> None:
    with serving(path) as supervisor, Connection(supervisor.path) as connection:
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.send(b"x" * 100_000_000)
        assert True is supervisor.request(do="status")["ok"]


# --- those who say nothing, or do not listen ---


@pytest.mark.parametrize("said", [b"", b'{"do": "sta'], ids=["nothing", "half a line"])
def test_who_is_silent_for_too_long_is_hung_up_on(path: Path, said: bytes) -> None:
    clock = FakeClock()
    with serving(path, clock=clock) as supervisor, Connection(supervisor.path) as connection:
        connection.send(said)
        clock.await_parked(1)
        clock.advance(IDLE_TIMEOUT - 0.1)
        assert 1 == len(supervisor.server._connections)
        clock.advance(0.1, parked=0)
        assert None is connection.receive()
        assert eventually(lambda: not supervisor.server._connections)


def test_one_byte_now_and_then_does_not_keep_a_connection(path: Path) -> None:
    clock = FakeClock()
    with serving(path, clock=clock) as supervisor, Connection(supervisor.path) as connection:
        clock.await_parked(1)
        for _ in range(5):
            connection.send(b"x")
            clock.advance(IDLE_TIMEOUT / 6)
        clock.advance(IDLE_TIMEOUT / 6 + 1, parked=0)
        assert None is connection.receive()


def test_each_answer_gives_a_connection_its_time_anew(path: Path) -> None:
    clock = FakeClock()
    with serving(path, clock=clock) as supervisor, Connection(supervisor.path) as connection:
        for _ in range(3):
            connection.send(b"{}\n")
            assert {"ok": True, "heard": {}} == connection.receive()
            run_loop(supervisor.loop)
            clock.advance(IDLE_TIMEOUT - 1)
        assert 1 == len(supervisor.server._connections)


def test_a_slow_command_is_not_silence(path: Path) -> None:
    clock, gate = FakeClock(), GatedReply()
    with serving(path, gate, clock=clock) as supervisor:
        slow = supervisor.start_request(do="stop")
        assert gate.entered.acquire(timeout=TIMEOUT)
        clock.await_parked(0)
        clock.advance(10 * IDLE_TIMEOUT)
        gate.open()
        assert [{"ok": True, "done": "stop"}] == list(slow)


def test_who_asks_and_never_reads_is_answered_a_bounded_number_of_times_and_then_hung_up_on(
    path: Path,
) -> None:
    clock = FakeClock()
    asked = 0

    async def answer(request: Facts) -> Facts:
        nonlocal asked
        asked += 1
        return {"ok": True, "pad": "x" * 100_000}

    with (
        serving(path, answer, clock=clock) as supervisor,
        Connection(supervisor.path) as connection,
    ):
        connection.fill(b'{"do": "status"}\n' * 100)
        run_loop(supervisor.loop)
        assert asked < 100
        [held] = supervisor.server._connections
        assert held.writer.transport.get_write_buffer_size() <= 200_000
        assert True is supervisor.request(do="status")["ok"]
        clock.await_parked(1)
        clock.advance(IDLE_TIMEOUT, parked=0)
        assert eventually(lambda: not supervisor.server._connections)
        assert True is supervisor.request(do="status")["ok"]


def test_a_hundred_silent_connections_keep_nobody_out_and_the_most_silent_ones_go_first(
    path: Path,
) -> None:
    clock = FakeClock()
    with serving(path, clock=clock) as supervisor, ExitStack() as stack:
        lines = []
        for number in range(100):
            lines.append(stack.enter_context(Connection(supervisor.path)))
            clock.await_parked(min(number + 1, MAX_CONNECTIONS))
            clock.advance(0.001)
        assert True is supervisor.request(do="status")["ok"]
        assert [None] * 37 == [line.receive() for line in lines[:37]]
        lines[37].send(b"{}\n")
        assert {"ok": True, "heard": {}} == lines[37].receive()


def test_who_has_asked_lately_stays(path: Path) -> None:
    clock = FakeClock()
    with serving(path, clock=clock, max_connections=2) as supervisor, ExitStack() as stack:
        lines = []
        for number in range(2):
            lines.append(stack.enter_context(Connection(path)))
            clock.await_parked(number + 1)
            clock.advance(1.0)
        for _ in range(2):
            lines[0].send(b"{}\n")
            assert {"ok": True, "heard": {}} == lines[0].receive()
            run_loop(supervisor.loop)
            assert True is supervisor.request(do="status")["ok"]
        assert None is lines[1].receive()


def test_who_waits_for_an_answer_is_not_silent_and_when_all_do_the_next_is_told_to_try_again(
    path: Path,
) -> None:
    gate = GatedReply()
    with serving(path, gate, max_connections=2) as supervisor:
        slow = [supervisor.start_request(do="stop") for _ in range(2)]
        assert all(gate.entered.acquire(timeout=TIMEOUT) for _ in slow)
        told = {
            "ok": False,
            "error": "the supervisor is busy with 2 requests; try again",
            "exit_code": 75,
        }
        assert told == supervisor.request(do="status")
        gate.open()
        assert [[{"ok": True, "done": "stop"}]] * 2 == [list(each) for each in slow]
        assert {"ok": True} == supervisor.request(do="status")


def test_those_who_left_while_they_were_being_answered_take_no_place(path: Path) -> None:
    gate = GatedReply()
    with serving(path, gate, max_connections=2) as supervisor:
        for _ in range(2):
            with Connection(supervisor.path) as line:
                line.send(b'{"do": "stop"}\n')
                assert gate.entered.acquire(timeout=TIMEOUT)
        assert {"ok": True} == supervisor.request(do="status")
        gate.open()
        assert all(gate.finished.acquire(timeout=TIMEOUT) for _ in range(2))


def test_nothing_is_left_open_after_a_thousand_connections(path: Path) -> None:
    with serving(path) as supervisor:
        supervisor.request(do="status")
        with no_leaks():
            for _ in range(1000):
                supervisor.request(do="status")
        assert eventually(lambda: not supervisor.server._tasks)


# --- the socket ---


def test_the_socket_is_for_its_owner_alone_and_gone_in_the_end(path: Path) -> None:
    with serving(path):
        assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert not path.exists()


def test_a_process_of_another_user_is_refused_whatever_the_mode_of_the_socket(short: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    code = f"""
        import os, socket
        os.setuid({NOBODY})
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(input())
        print(stranger.makefile().read())
        """
    short.chmod(0o755)
    with serving(short / "control") as supervisor, run_snippet(code) as stranger:
        supervisor.path.chmod(0o666)
        stranger.send_line(str(supervisor.path))
        told = f"user {NOBODY} may not control this supervisor; run as the user that started it"
        assert {"ok": False, "error": told, "exit_code": 2} == json.loads(stranger.read_line())
        assert set() == supervisor.server._connections


def test_a_socket_that_a_killed_supervisor_left_behind_is_replaced(path: Path) -> None:
    left = f"""
        import signal, socket
        s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen(); \
        print("listening"); signal.pause()
        """
    with run_snippet(left) as killed:
        killed.read_line()
        killed.signal(signal.SIGKILL)
        killed.wait()
    with pytest.raises(TryAgainError, match="no supervisor answers at"):
        send_request(path, {"do": "status"}, timeout=TIMEOUT)
    with serving(path) as supervisor:
        assert True is supervisor.request(do="status")["ok"]


def test_a_file_in_the_way_is_left_alone_and_told(path: Path) -> None:
    path.write_text("precious")
    server = ControlServer(path, echo, clock=SystemClock(), events=Events())
    with (
        EventLoopThread() as loop,
        pytest.raises(UsageError, match=r"cannot listen at .*: address already in use"),
    ):
        loop.call(server.open(), timeout=TIMEOUT)
    assert "precious" == path.read_text()


def test_a_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    server = ControlServer(
        tmp_path / "none" / "control", echo, clock=SystemClock(), events=Events()
    )
    with (
        EventLoopThread() as loop,
        pytest.raises(UsageError, match=r"cannot listen at .*: no such file or directory"),
    ):
        loop.call(server.open(), timeout=TIMEOUT)


def test_a_closed_server_hangs_up_also_on_those_who_wait_and_can_be_opened_again(
    path: Path,
) -> None:
    gate = GatedReply()
    with serving(path, gate) as supervisor, Connection(path) as waiting, Connection(path) as silent:
        waiting.send(b'{"do": "stop"}\n')
        assert gate.entered.acquire(timeout=TIMEOUT)
        for _ in range(2):
            supervisor.loop.call(supervisor.server.close(), timeout=TIMEOUT)
        assert [None, None] == [waiting.receive(), silent.receive()]
        assert set() == supervisor.server._tasks
        supervisor.loop.call(supervisor.server.open(), timeout=TIMEOUT)
        assert {"ok": True} == supervisor.request(do="status")


# --- the client ---


@contextmanager
def fake_supervisor(path: Path, act: Callable[[socket.socket], object]) -> Iterator[None]:
    """Something that listens, and does this with the one connection it gets."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(TIMEOUT)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                act(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join(TIMEOUT)


@pytest.mark.parametrize("said", [b"", b'{"ok": tr'], ids=["nothing", "half an answer"])
def test_a_supervisor_that_ends_before_it_has_answered_is_told(path: Path, said: bytes) -> None:
    with (
        fake_supervisor(path, lambda it: it.sendall(said)),
        pytest.raises(TryAgainError, match="before it answered"),
    ):
        send_request(path, {}, timeout=TIMEOUT)


def test_an_answer_that_is_none_is_told(path: Path) -> None:
    with (
        fake_supervisor(path, lambda it: it.sendall(b"[]\n")),
        pytest.raises(LongwatchError, match="has the same version"),
    ):
        send_request(path, {}, timeout=TIMEOUT)


def test_an_answer_in_pieces_is_put_together(path: Path) -> None:
    def in_pieces(connection: socket.socket) -> None:
        for byte in b'{"ok": true}\n':
            connection.sendall(bytes([byte]))

    with fake_supervisor(path, in_pieces):
        assert {"ok": True} == send_request(path, {}, timeout=TIMEOUT)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("stop", r"within 0\.05 s, but may still run the command; see `longwatch status`"),
        ("status", r"within 0\.05 s: its process is stopped, or this machine is overloaded"),
    ],
)
def test_no_answer_in_time_is_told(path: Path, command: str, said: str) -> None:
    with (
        fake_supervisor(path, lambda it: it.recv(1)),
        pytest.raises(DeadlineExceededError, match=said),
    ):
        send_request(path, {"do": command}, timeout=0.05)


def test_a_supervisor_that_accepts_nobody_is_told(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, ExitStack() as stack:
        listening.bind(str(path))
        listening.listen(0)
        waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
        waiting.connect(str(path))
        with pytest.raises(DeadlineExceededError):
            send_request(path, {}, timeout=0.05)


def test_a_socket_that_is_gone_is_told(path: Path) -> None:
    with pytest.raises(TryAgainError, match="no supervisor answers at"):
        send_request(path, {}, timeout=TIMEOUT)


def test_asking_imports_neither_an_event_loop_nor_a_library() -> None:
    code = """
        import sys
        import longwatch.supervisor.client, longwatch.supervisor.supervisor_lock
        print(sorted({"asyncio", "click", "msgspec", "tomllib"} & sys.modules.keys()))
        """
    with run_snippet(code) as child:
        assert "[]" == child.read_line()


def run_loop(loop: EventLoopThread) -> None:
    """Let what follows an answer happen."""

    async def turn() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    loop.call(turn(), timeout=TIMEOUT)
