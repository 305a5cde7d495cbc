"""What programs write, and what is told of them: whole, tagged, rotated, bounded, and nobody
dies for want of a reader.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polling import eventually
from run_process import TIMEOUT, PipeLines, run_longwatch, start_process
from up_process import NO_BACKOFF, SLEEPER, UpProcess, sh, start_up, write_config

SAYS_TWO = "echo one; echo two >&2; exec sleep 1000"
COUNTS = "n=0; while :; do n=$((n + 1)); echo line $n; sleep 0.02; done"


def log_of(run: UpProcess, name: str) -> str:
    path = run.logs / f"{name}.log"
    return path.read_text() if path.exists() else ""


def test_lines_name_their_program_on_stdout_and_stand_alone_in_its_file(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {
        "web": sh(SAYS_TWO),
        "worker": sh(SAYS_TWO),
        "quiet": sh(SAYS_TWO, log={"console": False}),
    }
    with start_up(longwatch_bin, tmp_path, programs) as run:
        for name in ("web", "worker"):
            run.wait_for_output(f"{name:<6} | one")
            run.wait_for_output(f"{name:<6} | two")
        assert all(
            eventually(lambda name=name: log_of(run, name) == "one\ntwo\n")  # type: ignore[misc]
            for name in programs
        )
        run.stop_cleanly()
    assert b"quiet" not in run.out.text
    assert 4 == len(run.out.lines)
    assert {"output_written"} == {json.loads(line)["event"] for line in run.out.lines}


def test_in_the_pretty_form_each_line_begins_with_the_name_of_its_program(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    programs = {"web": sh(SAYS_TWO), "worker": sh(SAYS_TWO)}
    with start_up(longwatch_bin, tmp_path, programs, options=["--log-format", "pretty"]) as run:
        expected = {b"web    | one\n", b"web    | two\n", b"worker | one\n", b"worker | two\n"}
        while not expected.issubset(run.out.lines):
            assert run.out.next_line(time.monotonic() + TIMEOUT) is not None
        run.stop_cleanly()
    assert 4 == len(run.out.lines)


def test_every_line_of_our_own_log_is_json_that_says_when_what_and_who(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(
        longwatch_bin,
        tmp_path,
        {"a": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 1}), "b": SLEEPER},
    ) as run:
        run.wait_for_event("circuit_breaker_tripped")
        run.wait_for_event("program_started", program="b")
        run.stop_cleanly()
    records = run.logged_events()
    assert all({"ts", "level", "event", "pid", "managerPid"} <= record.keys() for record in records)
    assert {run.pid} == {record["managerPid"] for record in records}
    assert ["supervisor_started", "supervisor_stopped"] == [
        records[0]["event"],
        records[-1]["event"],
    ]
    assert {"a", "b"} == {
        record["program"] for record in records if record["event"] == "program_started"
    }
    assert [] == [line for line in run.err.lines if not line.startswith(b"{")]


def test_a_flood_is_rotated_and_bounded_and_keeps_nobody_from_asking(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    flood = {
        "command": ["yes", "x" * 200],
        "log": {"max_bytes": 100_000, "keep": 2, "console": False},
    }
    with start_up(longwatch_bin, tmp_path, {"flood": flood, "calm": SLEEPER}) as run:
        run.wait_for_event("program_started", program="calm")
        assert eventually((run.logs / "flood.log.2").exists)
        for _ in range(20):
            assert run.status("calm")["up"]
        run.request("stop", "flood")
        run.stop_cleanly()
    assert ["flood.log", "flood.log.1", "flood.log.2"] == sorted(
        path.name for path in run.logs.glob("flood*")
    )
    assert 100_000 + 65_536 >= max(path.stat().st_size for path in run.logs.glob("flood*"))
    whole = (run.logs / "flood.log").read_bytes().splitlines(keepends=True)
    assert {b"x" * 200 + b"\n"} == set(whole[:-1])


def test_when_nobody_reads_us_any_more_we_live_and_the_logs_are_whole(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(
        longwatch_bin,
        tmp_path,
        {"a": sh(COUNTS), "b": sh("exit 1", **NO_BACKOFF, breaker={"restarts": 2})},
    ) as run:
        run.wait_for_output("a | line 1")
        run.wait_for_status("a", up=True)
        run.out.close()
        run.err.close()
        before = run.status("a")["pid"]
        assert eventually(lambda: "line 50\n" in log_of(run, "a"))
        run.wait_for_status("b", state="broken")
        assert before == run.status("a")["pid"]
        run.signal(signal.SIGTERM)
        assert 0 == run.process.wait(TIMEOUT)
    lines = log_of(run, "a").splitlines()
    assert [f"line {number}" for number in range(1, len(lines) + 1)] == lines
    assert "supervisor_stopped" == run.logged_events()[-1]["event"]


def test_without_a_stdout_and_a_stderr_we_live_too(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_up(
        longwatch_bin,
        tmp_path,
        {"a": sh(SAYS_TWO)},
        within=("sh", "-c", 'exec "$@" >&- 2>&-', "sh"),
    ) as run:
        run.wait_for_status("a", up=True)
        assert eventually(lambda: log_of(run, "a") == "one\ntwo\n")
        run.stop_cleanly()


@contextmanager
def following(run: UpProcess, *words: str) -> Iterator[PipeLines]:
    """The lines of a command that goes on; Ctrl-C ends it."""
    with start_process([run.longwatch, *words], run.cwd) as (process, out, _):
        yield out
        process.send_signal(signal.SIGINT)
        assert 130 == process.wait(TIMEOUT)


def wait_for_line(lines: PipeLines, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while text not in (line := (lines.next_line(deadline) or b"the end").decode()):
        assert "the end" != line


def test_logs_f_follows_a_program_through_restarts_and_rotations(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    padded = "n=0; while :; do n=$((n + 1)); echo $$ line $n " + "x" * 100 + "; sleep 0.01; done"
    talker = sh(padded, **NO_BACKOFF, log={"max_bytes": 2000, "keep": 3})
    with start_up(
        longwatch_bin,
        tmp_path,
        {"a": talker, "b": sh(SAYS_TWO)},
        stdout=os.open(os.devnull, os.O_WRONLY),
    ) as run:
        first = run.wait_for_event("program_started", program="a")["pid"]
        with following(run, "logs", "-f", "a") as lines:
            wait_for_line(lines, f"{first} line ")
            began = int(lines.lines[-1].split()[2])
            wait_for_line(lines, f"{first} line {began + 30} ")
            os.kill(first, signal.SIGKILL)
            second = run.wait_for_event("program_started", program="a", times=2)["pid"]
            wait_for_line(lines, f"{second} line 30 ")
        numbers = [line.split()[2] for line in lines.lines if line.startswith(f"{first} ".encode())]
        last = run.run_command("logs", "a", "b", "-n", "2")
        run.stop_cleanly()
    assert [
        str(number).encode() for number in range(int(numbers[0]), int(numbers[-1]) + 1)
    ] == numbers, "none is missing"
    assert ["b | one", "b | two"] == last.stdout.splitlines()[2:]


def test_events_tells_what_happened_to_a_program_and_goes_on_telling(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_up(longwatch_bin, tmp_path, {"a": {**SLEEPER, **NO_BACKOFF}, "b": SLEEPER}) as run:
        first = run.wait_for_event("program_started", program="a")["pid"]
        run.wait_for_event("program_started", program="b")
        with following(run, "events", "-f", "a") as lines:
            wait_for_line(lines, f"program_started pid={first} program=a")
            os.kill(first, signal.SIGKILL)
            wait_for_line(lines, "unexpected_exit")
            wait_for_line(lines, "program_started")
        told = [
            json.loads(line)
            for line in run.run_command("events", "--json", "-n", "1000", "a").stdout.splitlines()
        ]
        run.stop_cleanly()
    assert b"program=b" not in lines.text
    assert ["program_started", "unexpected_exit", "restart_scheduled", "program_started"] == [
        record["event"] for record in told if record.get("program") == "a"
    ]
    assert ["b"] not in [record.get("programs") for record in told]


def test_a_link_in_place_of_a_log_is_refused_at_the_start_and_left_out_later(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """While the supervisor runs it drops the lines of that file with one warning."""
    talks = sh("while :; do echo hello; sleep 0.02; done")
    victim = tmp_path / "victim"
    with start_up(longwatch_bin, tmp_path, {"a": talks}) as run:
        log = run.logs / "a.log"
        assert eventually(lambda: log.exists() and log.stat().st_size > 0)
        (tmp_path / "link").symlink_to(victim)
        (tmp_path / "link").replace(log)
        failed = run.wait_for_event("log_file_failed")
        assert ("a.log", "it is a symbolic link") == (Path(failed["path"]).name, failed["reason"])
        for _ in range(20):
            line = run.out.next_line(time.monotonic() + TIMEOUT)
            assert line is not None
            record = json.loads(line)
            assert ("a", "hello") == (record["program"], record["text"])
        assert run.status("a")["up"]
        run.stop_cleanly()
    assert 1 == len(run.events("log_file_failed"))
    assert not victim.exists()
    refused = run.run_command("up")
    assert 2 == refused.returncode
    assert refused.stderr.splitlines()[-1].startswith("longwatch: cannot write the log ")


@pytest.mark.parametrize("command", [("up",), ("run", "--", "true")])
def test_a_state_directory_that_every_user_can_write_to_is_refused(
    longwatch_bin: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    write_config(tmp_path, {"a": SLEEPER})
    (tmp_path / ".longwatch").mkdir()
    (tmp_path / ".longwatch").chmod(0o1777)
    refused = run_longwatch(longwatch_bin, tmp_path, *command)
    [line] = refused.stderr.splitlines()
    assert (2, True) == (refused.returncode, "can be written to by every user" in line)
