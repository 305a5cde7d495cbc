"""A program that lives but does not answer is ended and started again."""

from __future__ import annotations

import secrets
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from run_process import NO_BACKOFF_OPTIONS, PYTHON, start_run

SERVER = r"""
import os, signal, socket, sys
healthy_answers, then = int(sys.argv[1]), sys.argv[2]
body = b'{"status": "healthy"}'
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
for _ in range(healthy_answers):
    connection, _ = server.accept()
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    connection.close()
stalled = []
while then == "stalls":
    stalled.append(server.accept()[0])
    stalled[-1].sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n{")
signal.pause()
"""
"""Answers so many times that it is healthy, then never again: it `hangs`, or it `stalls` after
sending half an answer.
"""

FAST = (
    *NO_BACKOFF_OPTIONS,
    "--health-interval",
    "0.05",
    "--health-timeout",
    "0.2",
    "--health-start-grace",
    "0.05",
    "--health-failures",
    "10",
)
"""Ten failures, so that a server which is slow to start on a busy machine is not ended before it
listens.
"""


@pytest.fixture
def port() -> int:
    """One that nobody has, below those that the kernel hands out to connections of other tests."""
    while True:
        candidate = 20_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", candidate)):
            return candidate


@pytest.mark.parametrize("then", ["hangs", "stalls"])
def test_a_server_that_stops_answering_is_replaced(
    longwatch_bin: Path, tmp_path: Path, port: int, then: str
) -> None:
    command = [*PYTHON, SERVER, "2", then]
    with start_run(longwatch_bin, tmp_path, command, options=FAST, env={"PORT": str(port)}) as run:
        first = run.next_event("health_check_passed")["pid"]
        ended = run.next_event("health_check_restart")
        second = run.next_event("health_check_passed")["pid"]
        run.next_event("health_check_failed")
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
    assert (first, True, "signal 15") == (ended["pid"], ended["restart"], ended["cause"])
    assert [first, second] == [started["pid"] for started in run.logged_events("program_started")]
    hanging = [
        failed["failures"]
        for failed in run.logged_events("health_check_failed")
        if failed["pid"] == first
    ][-10:]
    assert list(range(1, 11)) == hanging


def test_failures_are_counted_from_zero_after_a_restart(
    longwatch_bin: Path, tmp_path: Path, port: int
) -> None:
    """It never answers: each start has all its failures before it is ended."""
    options = (*FAST, "--breaker-restarts", "2")
    with start_run(
        longwatch_bin, tmp_path, ["sleep", "1000"], options=options, env={"PORT": str(port)}
    ) as run:
        assert 100 == run.wait()
    counted = [failed["failures"] for failed in run.logged_events("health_check_failed")]
    assert list(range(1, 11)) * len(run.logged_events("program_started")) == counted
    assert {10} == {failed["threshold"] for failed in run.logged_events("health_check_failed")}
    assert 2 <= len(run.logged_events("health_check_restart"))


def test_a_deaf_server_that_hangs_is_killed_after_the_grace(
    longwatch_bin: Path, tmp_path: Path, port: int
) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
    options = (*FAST, "--stop-grace", "0.1", "--breaker-restarts", "1")
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, deaf], options=options, env={"PORT": str(port)}
    ) as run:
        assert 100 == run.wait()
    assert {"signal 9"} == {ended["cause"] for ended in run.logged_events("health_check_restart")}


@pytest.mark.parametrize(
    ("wanted", "options", "environ"),
    [
        (True, ("--health", "--health-port", "{port}"), {}),
        (True, (), {"PORT": "{port}", "HEALTH_CHECK_ENABLED": "true"}),
        (False, (), {}),
        (False, (), {"HEALTH_CHECK_ENABLED": "true"}),
        (False, ("--no-health",), {"PORT": "{port}"}),
        (False, (), {"PORT": "{port}", "HEALTH_CHECK_ENABLED": "false"}),
        (False, (), {"PORT": "{port}", "HEALTH_CHECK_ENABLED": "0"}),
        (False, (), {"PORT": "{port}", "HEALTH_CHECK_ENABLED": "no"}),
    ],
)
def test_health_is_asked_only_where_it_is_wanted(  # noqa: PLR0913 - half of them are fixtures
    longwatch_bin: Path,
    tmp_path: Path,
    port: int,
    options: tuple[str, ...],
    environ: dict[str, str],
    *,
    wanted: bool,
) -> None:
    """Nobody listens: while the program lives, every question that is asked fails."""
    fast = ("--health-interval", "0.05", "--health-start-grace", "0", "--health-failures", "1000")
    given = [option.format(port=port) for option in options]
    env = {name: value.format(port=port) for name, value in environ.items()}
    with start_run(
        longwatch_bin,
        tmp_path,
        ["sh", "-c", "sleep 0.4; exit 101"],
        options=(*fast, *given),
        env=env,
    ) as run:
        assert 101 == run.wait()
    assert wanted == bool(run.logged_events("health_check_failed"))


def test_health_can_be_asked_on_a_port_of_its_own(
    longwatch_bin: Path, tmp_path: Path, port: int
) -> None:
    options = (*FAST, "--health-port", str(port))
    with start_run(
        longwatch_bin,
        tmp_path,
        ["env", f"PORT={port}", *PYTHON, SERVER, "1000", "hangs"],
        options=options,
    ) as run:
        run.next_event("health_check_passed")
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()


def test_with_checks_a_run_is_stable_once_it_was_healthy_after_the_time(
    longwatch_bin: Path, tmp_path: Path, port: int
) -> None:
    options = (*FAST, "--stable-after", "0.3")
    with start_run(
        longwatch_bin,
        tmp_path,
        [*PYTHON, SERVER, "1000", "hangs"],
        options=options,
        env={"PORT": str(port)},
    ) as run:
        assert 0.3 < run.next_event("program_stable")["lasted"]
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
