"""A program that lives but does not answer is ended and started again."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervised import PYTHON, QUICK, supervise

SERVER = """
import os, signal, socket, sys
healthy_answers, then = int(sys.argv[1]), sys.argv[2]
body = b'{"status": "healthy"}'
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("listening", flush=True)
for _ in range(healthy_answers):
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\\\\r\\\\nContent-Length: %d\\\\r\\\\n\\\\r\\\\n" % len(body) + body)
    connection.close()
while then == "stalls":
    connection, _ = server.accept()
    connection.sendall(b"HTTP/1.1 200 OK\\\\r\\\\nContent-Length: 999\\\\r\\\\n\\\\r\\\\n{")
    kept = connection if "kept" not in dir() else (kept, connection)
signal.pause()
""".replace("\\\\", "\\")
"""Answers so many times that it is healthy, then never again: it `hangs`, or it `stalls` after sending half an answer."""

FAST = (*QUICK, "--health-interval", "0.05", "--health-timeout", "0.2", "--health-start-grace", "0.05", "--health-failures", "10")
"""Ten failures, so that a server which is slow to start on a busy machine is not ended before it listens."""


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free: int = server.getsockname()[1]
    yield free


@pytest.mark.parametrize("then", ["hangs", "stalls"])
def test_a_server_that_stops_answering_is_replaced(longwatch_bin: Path, tmp_path: Path, port: int, then: str) -> None:
    command = [*PYTHON, SERVER, "2", then]
    with supervise(longwatch_bin, tmp_path, command, options=FAST, env={"PORT": str(port)}) as run:
        first = run.event("health_check_passed")["pid"]
        ended = run.event("health_check_restart")
        second = run.event("health_check_passed")["pid"]
        run.event("health_check_failed")
        run.signal(signal.SIGTERM)
        assert 143 == run.end()
    assert (first, True, "signal 15") == (ended["pid"], ended["restart"], ended["cause"])
    assert [first, second] == [started["pid"] for started in run.logged("program_started")]
    hanging = [failed["failures"] for failed in run.logged("health_check_failed") if failed["pid"] == first][-10:]
    assert list(range(1, 11)) == hanging


def test_failures_are_counted_from_zero_after_a_restart(longwatch_bin: Path, tmp_path: Path, port: int) -> None:
    """It never answers: each start has all its failures before it is ended."""
    options = (*FAST, "--breaker-restarts", "2")
    with supervise(longwatch_bin, tmp_path, ["sleep", "1000"], options=options, env={"PORT": str(port)}) as run:
        assert 100 == run.end()
    counted = [failed["failures"] for failed in run.logged("health_check_failed")]
    assert list(range(1, 11)) * len(run.logged("program_started")) == counted
    assert {10} == {failed["allowed"] for failed in run.logged("health_check_failed")}
    assert 2 <= len(run.logged("health_check_restart"))


def test_a_deaf_server_that_hangs_is_killed_after_the_grace(longwatch_bin: Path, tmp_path: Path, port: int) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    options = (*FAST, "--stop-grace", "0.1", "--breaker-restarts", "1")
    with supervise(longwatch_bin, tmp_path, [*PYTHON, deaf], options=options, env={"PORT": str(port)}) as run:
        assert 100 == run.end()
    assert {"signal 9"} == {ended["cause"] for ended in run.logged("health_check_restart")}


NEVER_ANSWERS = ["sh", "-c", "sleep 1; exit 101"]
"""Lives long enough for many checks at the fast pace to fail, then ends by itself."""


@pytest.mark.parametrize(
    ("options", "env"),
    [
        ((), {}),
        (("--no-health",), {"PORT": "PORT"}),
        ((), {"PORT": "PORT", "HEALTH_CHECK_ENABLED": "false"}),
        ((), {"PORT": "PORT", "HEALTH_CHECK_ENABLED": "0"}),
        ((), {"PORT": "PORT", "HEALTH_CHECK_ENABLED": "no"}),
        (("--health",), {"PORT": "PORT", "HEALTH_CHECK_ENABLED": "no", "x": "the flag is stronger"}),
    ],
)
def test_health_is_asked_only_where_it_is_wanted(
    longwatch_bin: Path, tmp_path: Path, port: int, options: tuple[str, ...], env: dict[str, str]
) -> None:
    wanted = "--health" in options
    given = {name: str(port) if value == "PORT" else value for name, value in env.items()}
    fast = ("--health-interval", "0.05", "--health-start-grace", "0", "--health-failures", "1000")
    with supervise(longwatch_bin, tmp_path, NEVER_ANSWERS, options=(*fast, *options), env=given) as run:
        assert 101 == run.end()
    assert wanted == bool(run.logged("health_check_failed"))


def test_health_can_be_asked_on_another_port_than_PORT(longwatch_bin: Path, tmp_path: Path, port: int) -> None:
    options = (*FAST, "--health-port", str(port))
    with supervise(longwatch_bin, tmp_path, ["env", f"PORT={port}", *PYTHON, SERVER, "1000", "hangs"], options=options) as run:
        run.event("health_check_passed")
        run.signal(signal.SIGTERM)
        assert 143 == run.end()


def test_with_checks_a_run_is_stable_once_it_was_healthy_after_the_time(longwatch_bin: Path, tmp_path: Path, port: int) -> None:
    options = (*FAST, "--stable-after", "0.3")
    with supervise(
        longwatch_bin, tmp_path, [*PYTHON, SERVER, "1000", "hangs"], options=options, env={"PORT": str(port)}
    ) as run:
        assert 0.3 < run.event("program_stable")["lasted"]
        run.signal(signal.SIGTERM)
        assert 143 == run.end()
