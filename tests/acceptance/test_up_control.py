"""The commands against a real supervisor, and what it remembers when it was killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from longwatch.errors import LongwatchError
from polling import eventually
from run_process import TIMEOUT, run_longwatch
from up_process import NO_BACKOFF, SLEEPER, UpProcess, py, sh, start_up

FACTS = {
    "name",
    "state",
    "desired",
    "up",
    "ready",
    "unready_reason",
    "pid",
    "last_start",
    "uptime",
    "consecutive_failures",
    "restart_history",
    "total_restarts",
    "current_backoff",
    "next_start",
    "health_failures",
    "kind",
    "last_error",
    "probes",
    "breaker",
    "last_end",
    "waiting_for",
    "status_text",
    "critical",
    "log",
    "group",
    "supervisor",
    "cpu_percent",
    "cpu_seconds",
    "memory_bytes",
    "processes",
}
ABOUT = {
    "ok",
    "programs",
    "supervisors",
    "command",
    "pid",
    "guardian_pid",
    "version",
    "started_at",
    "state_dir",
}


def one_line(done: subprocess.CompletedProcess[str], *, code: int) -> str:
    """The one line of a refusal, without its `longwatch: `."""
    assert (code, "") == (done.returncode, done.stdout), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("longwatch: ")
    return line.removeprefix("longwatch: ")


def kill_supervisor(run: UpProcess) -> None:
    run.signal(signal.SIGKILL)
    run.process.wait(TIMEOUT)
    run.err.read_to_end(time.monotonic() + TIMEOUT)


def test_a_misspelled_request_stops_nothing(tmp_path: Path, longwatch_bin: Path) -> None:
    """A request with an unknown key is refused with the nearest key."""
    with start_up(longwatch_bin, tmp_path, {"web": SLEEPER}) as run:
        run.wait_for_status("web", up=True)
        assert {
            "ok": False,
            "error": 'unknown key "program" in a stop request; did you mean programs?',
            "exit_code": 2,
        } == run.request("stop", program=["web"])
        assert run.status("web")["up"]


def test_status_json_tells_everything_about_each_program_and_about_us(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "a": SLEEPER,
        "b": sh("exit 7", no_restart_codes=[7]),
        "c": {**SLEEPER, "autostart": False, "critical": True},
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        pid = run.wait_for_event("program_started", program="a")["pid"]
        run.wait_for_status("b", state="ended")
        done = run.run_command("status", "--json")
        assert "" == done.stderr
        told = json.loads(done.stdout)
        run.stop_cleanly()
    assert 1 == done.returncode, "b is not as it is wanted"
    assert ABOUT == told.keys()
    assert (run.pid, str(run.state_dir)) == (told["pid"], told["state_dir"])
    assert [FACTS] * 3 == [facts.keys() for facts in told["programs"]]
    facts = {facts["name"]: facts for facts in told["programs"]}
    assert (pid, "up", True, True) == tuple(
        facts["a"][key] for key in ("pid", "desired", "up", "ready")
    )
    assert {"phase", "reason", "cooldown_left"} == facts["a"]["breaker"].keys()
    assert ("exit 7", "unexpected_exit") == (
        facts["b"]["last_end"]["cause"],
        facts["b"]["last_end"]["verdict"],
    )
    assert ("stopped", "stopped", None, True) == tuple(
        facts["c"][key] for key in ("state", "desired", "pid", "critical")
    )
    assert facts["a"]["log"] == str(run.logs / "a.log")


def test_stop_start_and_restart_do_what_they_say_and_say_what_they_did(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}) as run:
        first = run.wait_for_event("program_started", program="a")["pid"]
        b = run.wait_for_event("program_started", program="b")["pid"]
        stopped = run.run_command("stop", "a")
        assert (0, "a is stopped\n") == (stopped.returncode, stopped.stdout)
        assert ("stopped", None) == (run.status("a")["desired"], run.status("a")["pid"])
        started = run.run_command("start", "a")
        second = run.status("a")["pid"]
        assert (0, f"a is up, pid {second}, ready\n") == (started.returncode, started.stdout)
        restarted = run.run_command("restart", "--all", "--json")
        pids = {facts["name"]: facts["pid"] for facts in json.loads(restarted.stdout)["programs"]}
        assert run.pids() == pids
        assert 5 == len({first, second, pids["a"], b, pids["b"]})
        run.stop_cleanly()
    assert ["stop", "start", "restart"] == [
        told["command"] for told in run.logged_events("control_command_received")
    ]


COUNTS_SIGTERM = """
import os, signal, time
heard = []
signal.signal(signal.SIGTERM, lambda *_: (heard.append(1), os.write(1, b"heard\\n")))
print("ready")
while not os.path.exists("go"):
    time.sleep(0.01)
print("signals:", len(heard))
"""


@pytest.mark.parametrize("command", ["stop", "restart"])
def test_a_program_that_is_being_stopped_gets_one_signal_however_often_it_is_stopped(
    longwatch_bin: Path, tmp_path: Path, command: str
) -> None:
    """A command, the same command again and the end of the supervisor are one stop for the
    program. Many programs take a second SIGTERM for "quit now".
    """

    def request() -> None:
        with suppress(LongwatchError):  # the supervisor ends before it has an answer
            run.request(command, "a")

    requests = [threading.Thread(target=request) for _ in range(2)]
    with start_up(longwatch_bin, tmp_path, {"a": py(COUNTS_SIGTERM, stop_grace=1000)}) as run:
        run.wait_for_output("a | ready")
        for number, each in enumerate(requests, 1):
            each.start()
            run.wait_for_event("control_command_received", command=command, times=number)
        run.wait_for_output("a | heard")
        run.signal(signal.SIGTERM)
        run.wait_for_event("signal_received", action="stop")
        (tmp_path / "go").touch()
        assert 0 == run.wait()
        for each in requests:
            each.join(TIMEOUT)
    assert ("a", "signals: 1") in run.printed_lines()
    assert [15] == [told["signal"] for told in run.events("program_stopping")]


def test_an_unknown_program_gets_the_nearest_name(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(longwatch_bin, tmp_path, {"worker": SLEEPER}) as run:
        run.wait_for_event("program_started")
        for command in ("status", "stop", "start", "restart", "reset"):
            assert "no program 'wroker'; did you mean worker?" == one_line(
                run.run_command(command, "wroker"), code=2
            )
        assert run.status("worker")["up"]
        run.stop_cleanly()


# --- what survives kill -9 ---


def test_an_operators_stop_and_an_open_breaker_survive_kill_9_of_the_supervisor(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "held": SLEEPER,
        "up": SLEEPER,
        "crash": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 1}),
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        up = run.wait_for_event("program_started", program="up")["pid"]
        run.wait_for_event("program_started", program="held")
        run.wait_for_status("crash", state="broken")
        run.run_command("stop", "held")
        kill_supervisor(run)
        dead = run.run_command("status")
        assert "was killed; start it again with `longwatch up`" in one_line(dead, code=75)
        assert eventually(lambda: not Path(f"/proc/{up}").exists())
    with start_up(longwatch_bin, tmp_path) as run:
        run.wait_for_status("up", up=True, total_restarts=0)
        assert ("stopped", "stopped") == tuple(
            run.status("held")[key] for key in ("state", "desired")
        )
        assert ("open", 1) == (
            run.wait_for_status("crash", state="broken")["breaker"]["phase"],
            run.status("crash")["total_restarts"],
        )
        run.signal(signal.SIGHUP)
        run.wait_for_event("config_reloaded")
        assert "stopped" == run.status("held")["state"], "nor does a reload undo it"
        assert {"up"} == {record["program"] for record in run.events("program_started")}
        run.stop_cleanly()


def test_the_socket_of_a_dead_supervisor_and_none_at_all_are_told_in_one_line(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        assert run.wait_for_status("a", up=True)
        kill_supervisor(run)
        for words in (
            ("status",),
            ("stop", "a"),
            ("start", "--all"),
            ("restart", "a"),
            ("reset", "a"),
            ("reload",),
        ):
            said = one_line(run.run_command(*words), code=75)
            assert f"(pid {run.pid}) was killed; start it again with `longwatch up`" in said
        assert 0 == run.run_command("logs", "a").returncode, "files can be read without anybody"
    with start_up(longwatch_bin, tmp_path) as run:
        run.wait_for_status("a", up=True)
        run.stop_cleanly()
    assert "no supervisor runs on .longwatch; start one" in one_line(
        run_longwatch(longwatch_bin, tmp_path, "status"), code=75
    )


def test_a_second_up_on_the_same_state_directory_is_refused_and_the_first_goes_on(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        pid = run.wait_for_event("program_started")["pid"]
        said = one_line(run.run_command("up"), code=75)
        assert f"pid {run.pid} is supervising on" in said
        assert "use `longwatch status`, end it with `longwatch down`" in said
        assert pid == run.status("a")["pid"]
        with start_up(longwatch_bin, tmp_path, options=("--state-dir", "elsewhere")) as other:
            assert pid != other.wait_for_event("program_started")["pid"]
            other.stop_cleanly()
        run.stop_cleanly()
    assert 1 == len(run.logged_events("supervisor_started")), (
        "the second has not written into the log of the first"
    )


def test_a_ledger_that_cannot_be_read_is_kept_aside_and_told_and_one_begun_anew(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    garbage = b"this is no ledger at all, " * 1000
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER, "b": SLEEPER}) as run:
        run.wait_for_status("a", up=True)
        run.request("stop", "b")
        run.stop_cleanly()
    ledger = tmp_path / ".longwatch" / "supervisor.db"
    ledger.write_bytes(garbage)
    with start_up(longwatch_bin, tmp_path) as run:
        told = run.wait_for_event("state_file_quarantined")
        assert ("error", str(ledger)) == (told["level"], told["path"])
        run.wait_for_status("b", up=True)
        run.request("stop", "a")
        run.stop_cleanly()
    assert garbage == Path(told["quarantined_as"]).read_bytes()
    with sqlite3.connect(ledger) as database:
        assert "ok" == database.execute("PRAGMA integrity_check").fetchone()[0]
    database.close()
    with start_up(longwatch_bin, tmp_path) as run:
        run.wait_for_status("b", up=True)
        assert "stopped" == run.status("a")["state"], "the new one remembers"
        run.stop_cleanly()
    assert [] == run.events("state_file_quarantined")


def test_who_may_ask_is_the_owner_alone(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": SLEEPER}) as run:
        run.wait_for_status("a", up=True)
        socket = Path(json.loads((run.state_dir / "supervisor.lock").read_text())["socket"])
        assert [0o600, 0o700] == [path.stat().st_mode & 0o777 for path in (socket, socket.parent)]
        assert 107 >= len(os.fsencode(socket))
        run.stop_cleanly()
    assert not socket.parent.exists()
