"""Health checks of `longwatch up`: whoever turns bad is started again, by each kind of check,
and no check waits for another.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from up_process import NO_BACKOFF, NOTIFY_PRELUDE, SLEEPER, Facts, py, sh, start_up, unused_port

OFTEN = {
    "interval": 0.1,
    "timeout": 0.5,
    "start_grace": 0.0,
    "failures": 3,
    "startup": 20.0,
    "startup_interval": 0.02,
}
SERVER = r"""
import os, socket, sys
port, what = int(sys.argv[1]), sys.argv[2]
healthy = b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"status": "healthy"}'
sick = {
    "stalls": b"HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n",
    "says no": healthy.replace(b"healthy", b"failing"),
    "fails": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
}
server = socket.create_server(("127.0.0.1", port))
open_ones = []
while what != "closes" or not os.path.exists("bad"):
    connection, _ = server.accept()
    bad = os.path.exists("bad")
    open_ones.append(connection)
    if what == "hangs" and bad:
        continue
    connection.sendall(sick.get(what, healthy) if bad else healthy)
    if not (what == "stalls" and bad):
        connection.close()
server.close()
os.kill(os.getpid(), 19)
"""
"""Is well until the file `bad` is there; then it does what it was told to do, and never answers
well again.
"""
BEATER = (
    NOTIFY_PRELUDE
    + """
assert os.environ["WATCHDOG_USEC"].isdigit()
while True:
    if not os.path.exists("bad"):
        notify("WATCHDOG=1")
    time.sleep(0.02)
"""
)


def kinds(port: int) -> dict[str, Facts]:
    http = {"kind": "http", "port": port, **OFTEN}
    return {
        "http, stalls after the headers": py(SERVER, str(port), "stalls", health=http),
        "http, does not answer": py(SERVER, str(port), "hangs", health=http),
        "http, says no": py(SERVER, str(port), "says no", health=http),
        "http, fails": py(SERVER, str(port), "fails", health=http),
        "tcp": py(SERVER, str(port), "closes", health={"kind": "tcp", "port": port, **OFTEN}),
        "exec": {**SLEEPER, "health": {"command": "sh -c '! test -e bad'", **OFTEN}},
        "heartbeat": py(BEATER, health={**OFTEN, "kind": "heartbeat", "interval": 0.3}),
    }


@pytest.mark.parametrize("kind", kinds(0))
def test_a_program_that_turns_bad_is_started_again_and_is_well(
    longwatch_bin: Path, tmp_path: Path, kind: str
) -> None:
    program = {**kinds(unused_port())[kind], **NO_BACKOFF, "stop_grace": 0.2}
    with start_up(longwatch_bin, tmp_path, {"a": program, "other": SLEEPER}) as run:
        first = run.wait_for_event("health_check_passed", program="a")["pid"]
        assert run.wait_for_status("a", ready=True)["up"]
        (tmp_path / "bad").touch()
        ended = run.wait_for_event("health_check_restart", program="a", restart=True)
        (tmp_path / "bad").unlink()
        second = run.wait_for_event("health_check_passed", program="a", times=2)["pid"]
        run.signal(signal.SIGTERM)
        run.wait()
    assert first == ended["pid"] != second
    counted = [
        failed["failures"] for failed in run.events("health_check_failed") if failed["pid"] == first
    ]
    assert [1, 2, 3] == counted[-3:]


def test_one_that_is_slow_to_start_delays_no_check_of_another(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """Its check stays open until another program was found sick, restarted and found well again."""
    programs = {
        "slow": {
            **SLEEPER,
            "health": {
                "command": "sh -c 'until test -e go; do sleep 0.05; done'",
                **OFTEN,
                "timeout": 25,
            },
        },
        "quick": {**SLEEPER, **NO_BACKOFF, "health": {"command": "sh -c '! test -e bad'", **OFTEN}},
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        run.wait_for_event("health_check_passed", program="quick")
        (tmp_path / "bad").touch()
        run.wait_for_event("health_check_restart", program="quick")
        (tmp_path / "bad").unlink()
        run.wait_for_event("health_check_passed", program="quick", times=2)
        assert ("up", False) == tuple(run.status("slow")[key] for key in ("state", "ready"))
        (tmp_path / "go").touch()
        run.wait_for_event("health_check_passed", program="slow")
        run.stop_cleanly()


def test_one_that_is_not_ready_in_time_is_started_again(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    never = {"command": ["false"], "startup": 0.2, "startup_interval": 0.05}
    programs = {
        "asked": {**SLEEPER, **NO_BACKOFF, "health": never, "breaker": {"restarts": 1}},
        "awaited": {
            **SLEEPER,
            **NO_BACKOFF,
            "ready": "notify",
            "ready_timeout": 0.2,
            "breaker": {"restarts": 1},
        },
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        for name in programs:
            run.wait_for_event("health_check_restart", program=name)
            assert "broken" == run.wait_for_status(name, state="broken")["state"]
        run.stop_cleanly()


@pytest.mark.parametrize(
    ("value", "asked"), [("false", False), ("0", False), ("no", False), ("true", True)]
)
def test_the_environment_can_turn_every_check_off(
    longwatch_bin: Path, tmp_path: Path, value: str, *, asked: bool
) -> None:
    """Nobody listens: every question that is asked fails."""
    always = {"interval": 0.02, "start_grace": 0, "failures": 1000}
    programs = {
        "a": sh("sleep 0.3; exit 101", health={**always, "port": unused_port()}),
        "b": SLEEPER,
    }
    with start_up(longwatch_bin, tmp_path, programs, env={"HEALTH_CHECK_ENABLED": value}) as run:
        run.wait_for_event("fatal_error_no_restart", program="a")
        run.stop_cleanly()
    assert asked == bool(run.events("health_check_failed"))


def test_the_port_of_the_environment_is_asked_and_passed_on(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    port = unused_port()
    script = SERVER.replace("int(sys.argv[1])", "int(os.environ['PORT'])")
    program = py(script, "-", "says no", health=OFTEN)
    with start_up(longwatch_bin, tmp_path, {"a": program}, env={"PORT": str(port)}) as run:
        run.wait_for_event("health_check_passed", program="a")
        run.stop_cleanly()
