from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from typing import Any

import pytest

from guardian_fixture import TIMEOUT
from leaks import no_leaks, open_descriptors
from longwatch.core.health import Aspect, CheckResult, HealthCheck, HealthReason
from longwatch.errors import LongwatchError, TryAgainError, UsageError
from longwatch.host import health_server as module
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.blocking_call import BlockingCall
from longwatch.host.health_http import MAX_HEAD_BYTES
from longwatch.host.health_server import HealthServer
from longwatch.host.service import Service
from longwatch.testing import check_service
from loopback import free_port
from polling import eventually
from snippet import run_snippet

LIVE, READY, STARTED = (frozenset({aspect}) for aspect in Aspect)
HEALTHY, UNHEALTHY = b'{"status": "healthy"}', b'{"status": "unhealthy"}'
JSON, TEXT, METRICS = (
    "application/json",
    "text/plain; charset=utf-8",
    "text/plain; version=0.0.4; charset=utf-8",
)
GET = b"GET /health/live HTTP/1.1\r\n\r\n"
GET_READY = b"GET /health/ready HTTP/1.1\r\n\r\n"

HttpReply = tuple[int, str | None, bytes]


@contextmanager
def serving(**options: Any) -> Iterator[HealthServer]:
    with HealthServer(**{"host": "127.0.0.1", "port": 0, **options}) as server:
        yield server


def where(server: HealthServer) -> tuple[str, int]:
    assert server.address is not None
    return server.address


def without_newline(kind: str | None, body: bytes) -> bytes:
    return body if kind == METRICS else body.removesuffix(b"\n")


def get(server: HealthServer, path: str, *, method: str = "GET") -> HttpReply:
    """Status, type and body of one answer, the body without its last newline."""
    connection = http.client.HTTPConnection(*where(server), timeout=TIMEOUT)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        kind = answer.getheader("Content-Type")
        return answer.status, kind, without_newline(kind, answer.read())
    finally:
        connection.close()


class RawClient:
    """A client that says what it wants, byte by byte."""

    def __init__(self, server: HealthServer, *said: bytes) -> None:
        self.socket = socket.create_connection(where(server), timeout=TIMEOUT)
        self._reading = self.socket.makefile("rb")
        self.send(*said)

    def send(self, *said: bytes) -> None:
        for each in said:
            self.socket.sendall(each)

    def receive(self) -> HttpReply:
        """The next answer on this connection, its body without its last newline."""
        status = int(self._reading.readline().split()[1])
        fields = dict(
            line.decode().rstrip("\r\n").split(": ", 1)
            for line in iter(self._reading.readline, b"\r\n")
        )
        kind, body = fields["Content-Type"], self._reading.read(int(fields["Content-Length"]))
        return status, kind, without_newline(kind, body)

    def read_to_end(self) -> bytes | None:
        """What comes until the end; None if the end is a reset."""
        try:
            return self._reading.read()
        except ConnectionResetError:
            return None

    def was_closed(self) -> bool:
        return not self.read_to_end()

    def close(self) -> None:
        self._reading.close()
        self.socket.close()


@contextmanager
def raw_client(server: HealthServer, *said: bytes) -> Iterator[RawClient]:
    caller = RawClient(server, *said)
    try:
        yield caller
    finally:
        caller.close()


class Hanging:
    """A probe, or metrics, that hangs until it is let go; then it says yes."""

    def __init__(self) -> None:
        self.calls = 0
        self.started, self._may_end = threading.Event(), threading.Event()

    def __call__(self) -> Any:
        self.calls += 1
        self.started.set()
        self._may_end.wait()
        return "told"

    def probe(self) -> bool:
        self()
        return True

    def release(self) -> None:
        self._may_end.set()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.release()


def check(
    probe: Callable[[], Any], aspects: frozenset[Aspect] = READY, **options: Any
) -> HealthCheck:
    return HealthCheck("store", probe, aspects, **options)


# --- what is answered ---


@pytest.mark.parametrize(
    ("path", "kind", "body"),
    [
        ("/health", JSON, HEALTHY),
        ("/health/live", JSON, HEALTHY),
        ("/health/ready", JSON, HEALTHY),
        ("/health/startup", JSON, HEALTHY),
        ("/livez", TEXT, b"OK"),
        ("/healthz", TEXT, b"OK"),
        ("/readyz", TEXT, b"Ready"),
        ("/startupz", TEXT, b"Started"),
        ("/health/ready?x=1&verbosely", JSON, HEALTHY),
        ("/readyz?verbose=no", TEXT, b"Ready"),
    ],
)
def test_each_path_of_a_healthy_server(path: str, kind: str, body: bytes) -> None:
    with serving(readiness_check=lambda: True, liveness_check=lambda: None) as server:
        assert (200, kind, body) == get(server, path)


UNHEALTHY_ANSWERS = {
    Aspect.LIVE: {
        "/health": UNHEALTHY,
        "/health/live": UNHEALTHY,
        "/livez": b"store: stale",
        "/healthz": b"store: stale",
    },
    Aspect.READY: {"/health/ready": UNHEALTHY, "/readyz": b"store: stale"},
    Aspect.STARTED: {"/health/startup": UNHEALTHY, "/startupz": b"store: stale"},
}
ALL_PATHS = [path for answers in UNHEALTHY_ANSWERS.values() for path in answers]


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "slow"])
@pytest.mark.parametrize("aspect", Aspect)
def test_a_check_that_says_no_fails_the_paths_of_its_aspect_and_no_others(
    aspect: Aspect,
    quick: bool,  # noqa: FBT001
) -> None:
    with serving(
        checks=[check(lambda: HealthReason.STALE, frozenset({aspect}), quick=quick)]
    ) as server:
        answers = {path: get(server, path) for path in ALL_PATHS}
    failed = {path: body for path, (status, _, body) in answers.items() if status == 503}
    assert UNHEALTHY_ANSWERS[aspect] == failed
    assert {200, 503} == {status for status, _, _ in answers.values()}


def test_the_two_probes_of_the_contract_have_their_paths_names_and_two_seconds() -> None:
    with serving(readiness_check=lambda: False, liveness_check=lambda: True) as server:
        assert [503, 200] == [get(server, path)[0] for path in ("/health/ready", "/health/live")]
        assert b"readiness_check: failed" == get(server, "/readyz")[2]
        assert [("readiness_check", 2.0), ("liveness_check", 2.0)] == [
            (each.name, each.timeout) for each in server._checks
        ]


SOME = [
    HealthCheck("loops", lambda: True, READY, quick=True),
    HealthCheck("store", lambda: HealthReason.UNREACHABLE, READY),
    HealthCheck("beats", lambda: True, LIVE),
]


def test_verbose_names_every_check_with_its_verdict_and_reason() -> None:
    told = {
        "status": "unhealthy",
        "checks": [
            {"name": "loops", "ok": True, "reason": "ok"},
            {"name": "store", "ok": False, "reason": "unreachable"},
        ],
    }
    with serving(checks=SOME) as server:
        status, kind, body = get(server, "/health/ready?verbose")
        assert (503, JSON, told) == (status, kind, json.loads(body))
        assert (503, TEXT, b"[+] loops: ok\n[-] store: unreachable\nfailed") == get(
            server, "/readyz?x=1&verbose"
        )
        assert (200, TEXT, b"[+] beats: ok\nOK") == get(server, "/livez?verbose")


def own_address() -> str:
    """Ours in the outside world; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, suppress(OSError):
        asking.connect(("203.0.113.1", 9))
        return str(asking.getsockname()[0])
    pytest.skip("this machine has no address but loopback")


def test_verbose_is_passed_over_for_clients_that_are_not_on_loopback() -> None:
    with serving(checks=SOME, host=own_address()) as server:
        assert (503, JSON, UNHEALTHY) == get(server, "/health/ready?verbose")
        assert (503, TEXT, b"store: unreachable") == get(server, "/readyz?verbose")


class Peer(asyncio.Transport):
    """A transport that only knows who is at its other end."""

    def __init__(self, *address: object) -> None:
        super().__init__({"peername": address or None})


PEERS = {
    Peer("127.0.0.1", 1): True,
    Peer("127.9.9.9", 1): True,
    Peer("::1", 1, 0, 0): True,
    Peer("::ffff:127.0.0.1", 1, 0, 0): True,
    Peer("::1%lo", 1, 0, 0): True,
    Peer("10.0.0.1", 1): False,
    Peer("::ffff:10.0.0.1", 1, 0, 0): False,
    Peer("fe80::1%eth0", 1, 0, 2): False,
    Peer(): False,
}


def test_who_is_on_loopback() -> None:
    clients = {peer: module.HealthConnection(None) for peer in PEERS}  # type: ignore[arg-type]  # nobody serves it
    for peer, client in clients.items():
        client._transport = peer
    assert PEERS == {peer: client._is_local() for peer, client in clients.items()}


@pytest.mark.parametrize(
    "path",
    ["/", "/health/", "/healthy", "/health/live/x", "//health", "/metrics", "*", "/health%2Flive"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_anything_else_is_not_found(path: str, method: str) -> None:
    with serving() as server:
        assert (404, JSON, b'{"error": "not found"}') == get(server, path, method=method)


@pytest.mark.parametrize("path", [*ALL_PATHS, "/metrics"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_wrong_method_is_not_allowed(path: str, method: str) -> None:
    with serving(metrics=lambda: "up 1\n") as server:
        assert (405, JSON, b'{"error": "method not allowed"}') == get(server, path, method=method)


@pytest.mark.parametrize("path", [*ALL_PATHS, "/metrics", "/nowhere"])
def test_head_is_get_without_its_body(path: str) -> None:
    with (
        serving(metrics=lambda: "up 1\n", readiness_check=lambda: False) as server,
        raw_client(server) as caller,
    ):
        caller.send(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        whole = caller.read_to_end()
        with raw_client(
            server, f"HEAD {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode()
        ) as another:
            head = another.read_to_end()
    assert whole is not None
    assert head == whole.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"


@pytest.mark.parametrize("path", [*ALL_PATHS, "/readyz?verbose", "/health?verbose", "/nowhere"])
@pytest.mark.parametrize("ready", [True, False], ids=["healthy", "unhealthy"])
def test_every_body_ends_with_one_newline(
    path: str,
    ready: bool,  # noqa: FBT001
) -> None:
    with serving(readiness_check=lambda: ready) as server, raw_client(server) as caller:
        caller.send(f"GET {path} HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
        whole = caller.read_to_end()
    assert whole is not None
    head, _, body = whole.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head.splitlines()
    assert body.rstrip(b"\n") + b"\n" == body


# --- checks that raise or hang ---


def dies(error: BaseException) -> Callable[[], Any]:
    def die() -> None:
        raise error

    return die


ERRORS = [
    OSError("password=hunter2"),
    StopIteration("password=hunter2"),
    SystemExit("password=hunter2"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_check_that_raises_is_a_503_and_none_of_its_words_get_out(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(checks=[check(dies(error))]) as server:
        answers = [
            get(server, path)
            for path in ("/health/ready", "/readyz", "/health/ready?verbose", "/readyz?verbose")
        ]
        assert [503] * 4 == [status for status, _, _ in answers]
        assert b"store: raised" == answers[1][2]
    assert "hunter2" not in str(answers) + caplog.text


def test_a_check_that_hangs_is_a_503_in_its_time_and_other_paths_are_answered_meanwhile(
    hanging: Hanging,
) -> None:
    with (
        serving(checks=[check(hanging.probe, timeout=0.05)]) as server,
        raw_client(server, GET_READY) as caller,
    ):
        assert hanging.started.wait(TIMEOUT)
        assert [200, 404] == [get(server, path)[0] for path in ("/health/live", "/nowhere")]
        assert (503, JSON, UNHEALTHY) == caller.receive()
        assert b"store: timed_out" == get(server, "/readyz")[2]


def test_a_check_that_hangs_is_not_asked_again_until_it_comes_back(hanging: Hanging) -> None:
    with serving(checks=[check(hanging.probe, timeout=0.05)]) as server:
        assert [503] * 5 == [get(server, "/health/ready")[0] for _ in range(5)]
        assert 1 == hanging.calls
        hanging.release()
        assert eventually(lambda: get(server, "/health/ready")[0] == 200)


def question_of(server: HealthServer) -> BlockingCall[CheckResult]:
    assert server._running is not None
    return server._running._slow[0].call


def test_whoever_asks_while_a_check_overruns_is_told_so_without_waiting(hanging: Hanging) -> None:
    with serving(checks=[check(hanging.probe, timeout=0.05)]) as server:
        assert b"store: timed_out" == get(server, "/readyz")[2]
        question_of(server)._timeout = inf
        assert b"store: timed_out" == get(server, "/readyz")[2]


def test_all_who_ask_at_once_get_the_same_answer_also_after_an_overrun(hanging: Hanging) -> None:
    turns = iter([overrun := Hanging(), hanging])
    with (
        serving(checks=[check(lambda: next(turns).probe(), timeout=0.05)]) as server,
        ExitStack() as callers,
    ):
        assert b"store: timed_out" == get(server, "/readyz")[2]
        overrun.release()
        assert eventually(lambda: question_of(server)._pending is None)
        question_of(server)._timeout = inf
        asking = [callers.enter_context(raw_client(server, GET_READY)) for _ in range(5)]
        assert eventually(lambda: [True] * 5 == [client.busy for client in clients_of(server)])
        hanging.release()
        assert 1 == len({caller.receive() for caller in asking})
    assert 1 == hanging.calls


def test_the_threads_of_checks_and_metrics_end_with_the_server() -> None:
    with no_leaks(), serving(checks=[check(lambda: True)], metrics=str) as server:
        assert [200, 200] == [get(server, path)[0] for path in ("/health/ready", "/metrics")]


def test_one_check_that_hangs_takes_no_time_from_another(hanging: Hanging) -> None:
    checks = [
        check(hanging.probe, timeout=0.05),
        HealthCheck("queue", lambda: HealthReason.UNREACHABLE, READY, timeout=0.05),
    ]
    with serving(checks=checks) as server:
        assert b"store: timed_out; queue: unreachable" == get(server, "/readyz")[2]


def test_a_slow_check_is_not_asked_when_a_quick_one_has_said_no_unless_somebody_wants_to_see_all(
    hanging: Hanging,
) -> None:
    quick = HealthCheck("loops", lambda: HealthReason.DRAINING, READY, quick=True)
    with serving(checks=[quick, check(hanging.probe, timeout=0.05)]) as server:
        assert (503, 0) == (get(server, "/health/ready")[0], hanging.calls)
        assert (503, 1) == (get(server, "/health/ready?verbose")[0], hanging.calls)


def test_quick_checks_are_asked_on_the_spot_and_each_other_in_a_thread_of_its_own() -> None:
    names: dict[str, str] = {}

    def note(check: str) -> Callable[[], None]:
        return lambda: names.update({check: threading.current_thread().name})

    checks = [
        HealthCheck(name, note(name), READY, quick=name == "quick")
        for name in ("quick", "slow", "other")
    ]
    with serving(checks=checks) as server:
        assert 200 == get(server, "/health/ready")[0]
    assert {"quick": "longwatch-health", "slow": "check-slow", "other": "check-other"} == names


def test_a_check_that_hangs_does_not_hold_up_stop_and_a_new_start_asks_anew(
    hanging: Hanging,
) -> None:
    server = HealthServer(host="127.0.0.1", port=0, checks=[check(hanging.probe, timeout=TIMEOUT)])
    for times in (1, 2):
        hanging.started.clear()
        server.start()
        with raw_client(server, GET_READY) as caller:
            assert hanging.started.wait(TIMEOUT)
            assert server.stop()
            assert (True, times) == (caller.was_closed(), hanging.calls)


def test_a_quick_check_that_hangs_nevertheless_holds_up_stop_only_as_long_as_it_may(
    hanging: Hanging,
) -> None:
    server = HealthServer(host="127.0.0.1", port=0, checks=[check(hanging.probe, quick=True)])
    server.start()
    with raw_client(server, GET_READY):
        assert hanging.started.wait(TIMEOUT)
        assert not server.stop(timeout=0.05)
        hanging.release()
        assert server.stop()


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "slow"])
def test_a_check_that_stops_its_own_server_does_not_wait_for_ever(quick: bool) -> None:  # noqa: FBT001 - parametrized
    with serving(checks=[check(lambda: server.stop(), quick=quick)]) as server:  # noqa: PLW0108 - not there yet
        with raw_client(server, GET_READY) as caller:
            caller.read_to_end()
        assert server.wait_stopped(TIMEOUT)


def test_a_check_for_which_there_is_no_thread_fails_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: BackgroundThread, **_: object) -> None:
        raise RuntimeError("can't start new thread")

    with serving(checks=[check(lambda: True)]) as server:
        with monkeypatch.context() as patching:
            patching.setattr(BackgroundThread, "start", refuse)
            assert [b"store: raised"] * 2 == [get(server, "/readyz")[2] for _ in range(2)]
        assert b"Ready" == get(server, "/readyz")[2]


def test_a_check_of_any_name_can_be_told() -> None:
    with serving(checks=[HealthCheck("\udcff", lambda: False, READY)]) as server:
        assert b"\\udcff: failed" == get(server, "/readyz")[2]
        assert 503 == get(server, "/health/ready?verbose")[0]


# --- metrics ---


@pytest.mark.parametrize("text", ["up 1\n", "# HELP é\n", b"up 1\n", ""], ids=repr)
def test_metrics_are_told_as_they_are_given(text: str | bytes) -> None:
    with serving(metrics=lambda: text) as server:
        assert (200, METRICS, text if isinstance(text, bytes) else text.encode()) == get(
            server, "/metrics?x"
        )


@pytest.mark.parametrize(
    "bad",
    [*map(dies, ERRORS), lambda: None, lambda: "\udcff"],
    ids=["OSError", "Stop", "Exit", "none", "odd"],
)
def test_metrics_that_raise_or_are_none_are_a_503_until_they_work_again(
    bad: Callable[[], Any],
) -> None:
    turns = iter([bad, bad])

    def turn() -> Any:
        return next(turns, lambda: "up 1\n")()

    with serving(metrics=turn) as server:
        assert [(503, TEXT, b"metrics could not be collected")] * 2 == [
            get(server, "/metrics") for _ in range(2)
        ]
        assert (200, METRICS, b"up 1\n") == get(server, "/metrics")


def test_metrics_that_hang_are_a_503_and_hold_up_neither_health_nor_stop(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "METRICS_TIMEOUT", 0.05)
    with serving(metrics=hanging, readiness_check=lambda: True) as server:
        with raw_client(server, b"GET /metrics HTTP/1.1\r\n\r\n") as caller:
            assert hanging.started.wait(TIMEOUT)
            assert 200 == get(server, "/health/ready")[0]
            assert 503 == caller.receive()[0]
        assert (503, 1) == (get(server, "/metrics")[0], hanging.calls)
        assert server.stop()


def test_a_long_exposition_arrives_whole_also_at_a_slow_reader_that_stays() -> None:
    text = b"x" * 20_000_000
    with (
        serving(metrics=lambda: text) as server,
        raw_client(server, b"GET /metrics HTTP/1.1\r\n\r\n") as caller,
    ):
        assert eventually(lambda: unread(server) > 0)
        assert (200, METRICS, text) == caller.receive()
        caller.send(GET)
        assert (200, JSON, HEALTHY) == caller.receive()


# --- clients ---


def clients_of(server: HealthServer) -> list[module.HealthConnection]:
    served = server._running
    return [] if served is None else list(served.clients)


def unread(server: HealthServer) -> int:
    """Bytes of answers that wait here because a client does not read."""
    transports = [client._transport for client in clients_of(server)]
    return sum(
        transport.get_write_buffer_size() for transport in transports if transport is not None
    )


def test_idle_clients_and_one_that_says_a_byte_now_and_then_delay_nobody() -> None:
    with serving() as server, ExitStack() as callers:
        for _ in range(100):
            callers.enter_context(raw_client(server))
        slow = callers.enter_context(raw_client(server))
        for number in range(len(GET)):
            slow.send(GET[number : number + 1])
            assert (200, JSON, HEALTHY) == get(server, "/health/live")
        assert (200, JSON, HEALTHY) == slow.receive()


def test_a_client_that_says_nothing_for_too_long_is_sent_away_and_one_that_speaks_is_not() -> None:
    with (
        serving(idle_timeout=0.5) as server,
        raw_client(server) as silent,
        raw_client(server) as lively,
    ):
        assert eventually(lambda: len(clients_of(server)) == 2)
        while len(clients_of(server)) == 2:
            lively.send(GET)
            assert (200, JSON, HEALTHY) == lively.receive()
        assert silent.was_closed()
        lively.send(GET)
        assert (200, JSON, HEALTHY) == lively.receive()


def test_a_client_that_never_finishes_what_it_says_is_sent_away() -> None:
    def still_taken(caller: RawClient) -> bool:
        try:
            caller.send(b"x")
        except OSError:
            return False
        return True

    with serving(idle_timeout=0.1) as server, raw_client(server, b"GET /") as slow:
        assert eventually(lambda: not still_taken(slow))
        assert [] == clients_of(server)


def test_a_client_that_waits_for_its_answer_is_not_silent(hanging: Hanging) -> None:
    checks = [check(hanging.probe, timeout=TIMEOUT)]
    with (
        serving(checks=checks, idle_timeout=0.01) as server,
        raw_client(server, GET_READY) as waiting,
        raw_client(server) as silent,
    ):
        assert silent.was_closed()
        hanging.release()
        assert (200, JSON, HEALTHY) == waiting.receive()


def test_a_client_that_leaves_its_answer_unread_is_sent_away_also_if_it_was_the_last_one_it_wanted() -> (  # noqa: E501 - one name
    None
):
    asked = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n"
    with (
        serving(metrics=lambda: b"x" * 20_000_000, idle_timeout=inf) as server,
        raw_client(server, asked),
    ):
        assert eventually(lambda: unread(server) > 0)
        descriptors, server.idle_timeout = len(open_descriptors()), 0.0
        assert eventually(lambda: len(open_descriptors()) < descriptors)
        assert [] == clients_of(server)


def test_a_client_that_asks_on_and_on_and_reads_nothing_is_sent_away() -> None:
    with (
        serving(metrics=lambda: b"x" * 1_000_000, idle_timeout=inf) as server,
        raw_client(server, GET) as caller,
    ):
        caller.receive()
        with suppress(OSError):
            for _ in range(1000):
                caller.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert eventually(lambda: [] == clients_of(server))


def test_when_there_are_too_many_the_one_that_has_been_silent_longest_goes() -> None:
    with serving(max_clients=3) as server, ExitStack() as callers:
        first, second, third = (callers.enter_context(raw_client(server)) for _ in range(3))
        assert eventually(lambda: len(clients_of(server)) == 3)
        first.send(GET)
        assert (200, JSON, HEALTHY) == first.receive()
        assert (200, JSON, HEALTHY) == get(server, "/health/live")
        assert second.was_closed()
        for caller in (first, third):
            caller.send(GET)
            assert (200, JSON, HEALTHY) == caller.receive()


def test_of_too_many_one_that_waits_for_its_answer_goes_only_if_all_do(hanging: Hanging) -> None:
    checks = [check(hanging.probe, timeout=TIMEOUT)]
    with serving(checks=checks, max_clients=2) as server, raw_client(server, GET_READY) as waiting:
        assert hanging.started.wait(TIMEOUT)
        with raw_client(server) as silent:
            assert eventually(lambda: len(clients_of(server)) == 2)
            assert 200 == get(server, "/health/live")[0]
            assert silent.was_closed()
        with raw_client(server, GET_READY) as patient:
            assert eventually(
                lambda: [True, True] == [client.busy for client in clients_of(server)]
            )
            assert 200 == get(server, "/health/live")[0]
            assert waiting.was_closed()
            hanging.release()
            assert (200, JSON, HEALTHY) == patient.receive()


def test_a_connection_serves_one_request_after_another() -> None:
    with serving() as server, raw_client(server) as caller:
        for _ in range(3):
            caller.send(GET)
            assert (200, JSON, HEALTHY) == caller.receive()


@pytest.mark.parametrize(
    "said",
    [
        b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET /livez HTTP/1.0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nContent-Length: 20\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    ],
    ids=["asked for", "old", "with a body"],
)
def test_a_connection_that_is_to_be_closed_is_closed_after_its_answer(said: bytes) -> None:
    with serving() as server, raw_client(server, said) as caller:
        answer = caller.read_to_end()
    assert answer is not None
    assert (1, True) == (
        answer.count(b"HTTP/1.1 "),
        answer.endswith(b"Connection: close\r\n\r\nOK\n"),
    )


def test_requests_that_come_together_are_answered_in_their_order() -> None:
    with serving(checks=[check(lambda: False)]) as server, raw_client(server) as caller:
        caller.send(
            GET + GET_READY + b"GET /nowhere HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\n" + GET[:5],
            GET[5:],
        )
        assert [200, 503, 404] == [caller.receive()[0] for _ in range(3)]
        assert caller._reading.readline().startswith(b"HTTP/1.1 404 ")


def test_many_requests_that_come_together_are_not_one_that_is_too_long() -> None:
    with serving() as server, raw_client(server) as caller:
        caller.send(GET * 2000)
        assert {(200, JSON, HEALTHY)} == {caller.receive() for _ in range(2000)}


def test_one_with_many_requests_lets_others_have_their_turn() -> None:
    asked: list[str] = []
    begun, may_go_on = threading.Event(), threading.Event()

    def of_many() -> None:
        asked.append("many")
        begun.set()
        may_go_on.wait()

    checks = [
        HealthCheck("many", of_many, READY, quick=True),
        HealthCheck("one", lambda: asked.append("one"), LIVE, quick=True),
    ]
    with serving(checks=checks) as server, raw_client(server) as many, raw_client(server) as one:
        assert eventually(lambda: len(clients_of(server)) == 2)
        many.send(GET_READY * 1000)
        assert begun.wait(TIMEOUT)
        one.send(GET)
        may_go_on.set()
        assert (200, JSON, HEALTHY) == one.receive()
        assert {(200, JSON, HEALTHY)} == {many.receive() for _ in range(1000)}
    assert (1001, True) == (len(asked), asked.index("one") < 10)


def head_of(length: int) -> bytes:
    return b"GET /livez HTTP/1.1\r\nX: ".ljust(length, b"x") + b"\r\n\r\n"


def test_the_longest_head_is_taken() -> None:
    with serving() as server, raw_client(server, head_of(MAX_HEAD_BYTES)) as caller:
        assert (200, TEXT, b"OK") == caller.receive()


@pytest.mark.parametrize("pieces", [1, 10], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "head", [head_of(MAX_HEAD_BYTES + 1), b"x" * 10_000], ids=["complete", "without end"]
)
def test_a_longer_one_is_refused_and_the_connection_closed(head: bytes, pieces: int) -> None:
    size = len(head) // pieces + 1
    with serving() as server, raw_client(server) as caller:
        with suppress(OSError):
            caller.send(*(head[start : start + size] for start in range(0, len(head), size)))
        assert (431, JSON, b'{"error": "request header too large"}') == caller.receive()
        assert caller.was_closed()


@pytest.mark.parametrize(
    "nonsense",
    [b"\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/1.1\r\nx\r\n\r\n", b"\x16\x03\x01\r\n\r\n"],
    ids=repr,
)
def test_a_malformed_head_is_refused_and_the_connection_closed(nonsense: bytes) -> None:
    with serving() as server, raw_client(server, nonsense) as caller:
        assert (400, JSON, b'{"error": "bad request"}') == caller.receive()
        assert caller.was_closed()


def test_a_client_that_has_said_its_last_word_still_gets_its_answer(hanging: Hanging) -> None:
    with (
        serving(checks=[check(hanging.probe, timeout=TIMEOUT)]) as server,
        raw_client(server, GET_READY) as caller,
    ):
        caller.socket.shutdown(socket.SHUT_WR)
        assert hanging.started.wait(TIMEOUT)
        hanging.release()
        assert (200, JSON, HEALTHY) == caller.receive()
        assert caller.was_closed()


@pytest.mark.parametrize(
    "said", [b"", b"GET /", GET_READY, GET_READY * 3], ids=["nothing", "half", "all", "more"]
)
def test_clients_that_go_away_leave_nothing_behind(
    said: bytes, hanging: Hanging, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(checks=[check(hanging.probe, timeout=0.05)]) as server:
        before = len(open_descriptors())
        for linger in (b"\0" * 8, b"\1\0\0\0\0\0\0\0"):
            with raw_client(server, said) as caller:
                caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert eventually(lambda: len(open_descriptors()) <= before)
        assert [] == clients_of(server)
    assert [] == caplog.records


def test_answers_are_sent_without_delay() -> None:
    with serving() as server, raw_client(server):
        assert eventually(lambda: len(clients_of(server)) == 1)
        [client] = clients_of(server)
        assert client._transport is not None
        assert 0 != client._transport.get_extra_info("socket").getsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY
        )


def test_128_clients_can_come_while_it_is_busy(hanging: Hanging) -> None:
    with (
        serving(checks=[check(hanging.probe, quick=True, timeout=TIMEOUT)]) as server,
        raw_client(server, GET_READY) as first,
    ):
        assert hanging.started.wait(TIMEOUT)
        with ExitStack() as callers:
            crowd = [callers.enter_context(raw_client(server, GET)) for _ in range(128)]
            hanging.release()
            assert {(200, JSON, HEALTHY)} == {caller.receive() for caller in (first, *crowd)}


# --- its life ---


def test_its_address_is_where_it_really_listens() -> None:
    server = HealthServer(host="127.0.0.1", port=0)
    before = server.address
    with server:
        host, port = where(server)
        assert (200, "127.0.0.1", True) == (get(server, "/health")[0], host, port > 0)
    assert (None, None) == (before, server.address)


def test_by_default_everybody_can_ask_at_8080() -> None:
    server = HealthServer()
    assert ("0.0.0.0", 8080) == (server.host, server.port)


def test_it_listens_on_ipv6_too() -> None:
    if not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"):  # noqa: PTH110 - one look
        pytest.skip("this machine has no IPv6")
    with serving(host="::1", checks=SOME) as server:
        assert ("::1", 2) == (
            where(server)[0],
            len(json.loads(get(server, "/health/ready?verbose")[2])["checks"]),
        )


def test_a_host_can_be_named() -> None:
    with serving(host="localhost") as server:
        assert 200 == get(server, "/health")[0]


def test_the_port_can_be_bound_again_right_after_a_stop() -> None:
    server = HealthServer(host="127.0.0.1", port=free_port())
    for _ in range(5):
        server.start()
        with (
            raw_client(server, b"GET /livez HTTP/1.0\r\n\r\n") as closed,
            raw_client(server, GET) as kept,
        ):
            closed.read_to_end()
            kept.receive()
            assert server.stop()
            assert kept.was_closed()


@pytest.mark.parametrize("said", [GET, GET_READY, GET_READY * 5], ids=["quick", "slow", "many"])
def test_a_stop_leaves_no_client_no_descriptor_and_no_thread_whenever_it_comes(said: bytes) -> None:
    with serving(checks=[check(lambda: True)]) as server, raw_client(server):
        pass
    with no_leaks():
        for number in range(20):
            with serving(checks=[check(lambda: True)]) as server, ExitStack() as callers:
                for _ in range(number):
                    callers.enter_context(raw_client(server, said))
                assert server.stop()


def test_what_is_asked_in_the_middle_of_a_stop_is_not_begun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its thread would be left behind."""
    let_go, asked = module._close_listener, []

    async def meanwhile(listening: asyncio.Server) -> None:
        with suppress(OSError):
            caller.send(GET_READY)
        await asyncio.sleep(0.05)
        await let_go(listening)

    with (
        serving(checks=[check(lambda: asked.append("asked"))]) as server,
        raw_client(server, GET) as caller,
    ):
        caller.receive()
        monkeypatch.setattr(module, "_close_listener", meanwhile)
        assert server.stop()
    assert [] == asked


def test_a_port_in_use_is_told_and_the_start_can_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HealthServer(host="127.0.0.1", port=port)
        with pytest.raises(UsageError) as refused:
            server.start()
    assert (
        f"the health port {port} on 127.0.0.1 is in use; choose another, or stop the process that "
        f"listens there" == str(refused.value)
    )
    with server:
        assert 200 == get(server, "/health")[0]


def test_an_error_calls_the_port_by_its_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HealthServer(host="127.0.0.1", port=port, port_name="metrics port")
        with pytest.raises(UsageError, match=rf"^the metrics port {port} on 127.0.0.1 is in use;"):
            server.start()


REFUSALS: dict[str, tuple[Exception, type[LongwatchError], str]] = {
    "privileges": (
        PermissionError(errno.EACCES, "x"),
        UsageError,
        "the health port 80 on h needs privileges; choose one above 1023",
    ),
    "descriptors": (
        OSError(errno.EMFILE, "Too many"),
        TryAgainError,
        "the health port 80 cannot be opened: Too many; try again",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_other_refusals_are_told_with_their_cure(case: str) -> None:
    error, kind, words = REFUSALS[case]
    assert isinstance(error, OSError)
    refusal = module._bind_error(error, "h", 80)
    assert (kind, words) == (type(refusal), str(refusal))


@pytest.mark.parametrize(
    "host", ["203.0.113.1", "a..b", "x" * 100], ids=["not ours", "no name", "too long"]
)
def test_a_host_that_cannot_be_listened_on_is_told_and_nothing_is_left_running(host: str) -> None:
    server = HealthServer(host=host, port=0)
    with no_leaks(), pytest.raises(UsageError, match=host.replace(".", r"\.")):
        server.start()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(
        UsageError,
        match=rf"^a health port is a number from 0 \(any free one\) to 65535, not {port}$",
    ):
        HealthServer(port=port)


def test_two_checks_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one is called store"):
        HealthServer(checks=[check(lambda: True, quick=True), check(lambda: True, LIVE)])


def test_it_keeps_the_contract_of_a_service() -> None:
    port = free_port()

    def server() -> HealthServer:
        return HealthServer(
            host="127.0.0.1", port=port, readiness_check=lambda: True, metrics=lambda: ""
        )

    @contextmanager
    def port_in_use(_: Service) -> Iterator[None]:
        with socket.create_server(("127.0.0.1", port)):
            yield

    check_service(server, broken=port_in_use)


def test_nothing_is_logged_about_requests(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(0)
    with serving(metrics=dies(OSError()), readiness_check=dies(OSError())) as server:
        for path in ("/health", "/health/ready", "/metrics", "/nowhere"):
            get(server, path)
        with raw_client(server, b"nonsense\r\n\r\n") as caller:
            caller.read_to_end()
    assert ([], ("", "")) == (
        [each for each in caplog.records if each.name != "asyncio"],
        capfd.readouterr(),
    )


FORKS = """
    import http.client, os, signal, socket, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
    os.register_at_fork(
        after_in_child=lambda: signal.alarm(60)
    )  # a test that went wrong leaves nothing for good
    from longwatch.host.health_server import HealthServer

    def status(server):
        connection = http.client.HTTPConnection(*server.address, timeout=30)
        connection.request("GET", "/health/ready")
        return connection.getresponse().status

    server = HealthServer(host="127.0.0.1", port=0, readiness_check=lambda: True)
"""


@pytest.mark.parametrize("before", ["", "server.start()"], ids=["built before", "started before"])
def test_a_server_from_before_a_fork_can_be_started_in_the_child(before: str) -> None:
    code = f"""
    {before}
    child = os.fork()
    if child == 0:
        first = server.address
        server.start()
        os._exit(0 if first is None and status(server) == 200 and server.stop() else 1)
    print(os.waitpid(child, 0)[1])
    server.start()
    print(status(server), server.stop())
    """
    with run_snippet(FORKS + code) as snippet:
        assert (0, "") == snippet.wait()
        assert ["0", "200 True"] == [snippet.read_line(), snippet.read_line()]


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_port() -> None:
    code = """
    server.start()
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    server.port = server.address[1]
    server.stop()
    try:
        socket.create_connection(("127.0.0.1", server.port), timeout=30)
    except ConnectionRefusedError:
        print("refused")
    server.start()
    print(status(server), server.stop())
    """
    with run_snippet(FORKS + code) as snippet:
        assert (0, "") == snippet.wait()
        assert ["refused", "200 True"] == [snippet.read_line(), snippet.read_line()]


def test_a_program_ends_whatever_its_clients_and_checks_do() -> None:
    code = """
    began = threading.Event()

    def hang():
        began.set()
        threading.Event().wait()

    server = HealthServer(host="127.0.0.1", port=0, readiness_check=hang, metrics=hang)
    server.start()
    for path in (b"/health/ready", b"/metrics", b""):
        client = socket.create_connection(server.address)
        client.sendall(b"GET " + path + b" HTTP/1.1\\r\\n\\r\\n")
        globals()[path] = client
    began.wait()
    print("the end")
    """
    with run_snippet(FORKS + code) as snippet:
        assert 0 == snippet.wait()[0]
        assert "the end" == snippet.read_line()
