"""What is written where, what never is, and that no reader, disk or terminal can stop the
program or us.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from polling import complete_lines, eventually
from run_process import (
    NO_BACKOFF_OPTIONS,
    PYTHON,
    TIMEOUT,
    PipeLines,
    clean_environment,
    parse_record,
    start_run,
    wait_readable,
)

HEAD = ["ts", "level", "event", "pid", "managerPid"]

SPEAKS_ON_REQUEST = """
import itertools, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
for spoken in itertools.count(1):
    print("line", spoken, flush=True)
    signal.sigwait({signal.SIGUSR1})
"""

TALKS = """
import os, sys
with open(sys.argv[1], "w") as fifo:
    for _ in range(int(sys.argv[2])):
        os.write(1, b"x" * 99 + b"\\n")
        os.write(2, b"y" * 99 + b"\\n")
    fifo.write("said everything")
"""
"""Writes lines to stdout and stderr, then says through the FIFO that it could."""


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[PipeLines]:
    """The reading end of tmp_path/fifo: how a program without stdout can tell that it is alive."""
    os.mkfifo(tmp_path / "fifo")
    lines = PipeLines(os.open(tmp_path / "fifo", os.O_RDWR))
    yield lines
    lines.close()


def words_from(fifo: PipeLines, expected: str) -> None:
    """Wait until exactly this came through the FIFO."""
    got, deadline = b"", time.monotonic() + TIMEOUT
    while len(got) < len(expected) and wait_readable(fifo.descriptor, deadline):
        got += os.read(fifo.descriptor, 4096)
    assert expected == got.decode()


# --- the supervisor's own log ---


def test_every_line_of_our_log_is_json_with_the_five_fields(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(
        longwatch_bin,
        tmp_path,
        ["sh", "-c", "echo out; echo err >&2; exit 7"],
        options=NO_BACKOFF_OPTIONS,
    ) as run:
        run.wait()
    records = run.logged_events()
    assert [HEAD] * len(records) == [list(record)[:5] for record in records]
    assert {run.pid} == {record["managerPid"] for record in records}
    assert {True} == {isinstance(record["pid"], int) for record in records}
    assert {"debug", "info", "warning", "critical"} == {record["level"] for record in records}
    told = [record["event"] for record in records]
    assert [
        "supervisor_started",
        "settings_loaded",
        "health_checks_off",
        "program_started",
        "unexpected_exit",
        "restart_scheduled",
    ] == told[:6]
    assert "supervisor_stopped" == told[-1]


def test_the_log_on_stderr_is_the_same_but_for_what_is_too_quiet(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(longwatch_bin, tmp_path, ["true"]) as run:
        run.wait()
    assert [record for record in run.logged_events() if record["level"] != "debug"] == run.events()


def test_debug_in_the_environment_shows_the_quiet_records_too(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(longwatch_bin, tmp_path, ["true"], env={"DEBUG": "1"}) as run:
        run.wait()
    assert run.logged_events() == run.events()


def test_a_second_run_appends_to_the_log_of_the_first(longwatch_bin: Path, tmp_path: Path) -> None:
    for _ in range(2):
        with start_run(longwatch_bin, tmp_path, ["true"]) as run:
            run.wait()
    assert 2 == len({started["managerPid"] for started in run.logged_events("supervisor_started")})


def test_without_a_state_directory_nothing_is_written_to_disk(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(
        longwatch_bin, tmp_path, ["sh", "-c", "echo out"], options=("--state-dir", "off")
    ) as run:
        assert 0 == run.wait()
    assert (b"out\n", []) == (run.out.text, list(tmp_path.iterdir()))


def test_logs_are_for_their_owner_alone(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(longwatch_bin, tmp_path, ["true"]) as run:
        run.wait()
    modes = [
        path.stat().st_mode & 0o077 for path in (run.logs.parent, run.logs, *run.logs.iterdir())
    ]
    assert [0] * 4 == modes


# --- the program's output ---


def test_the_programs_output_is_passed_on_and_kept_byte_for_byte(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    out, err = bytes(range(256)).replace(b"\n", b"") + b"\n\n\x1b[31mred\n", b"\xff\xfe\x00err\r\n"
    (tmp_path / "out").write_bytes(out)
    (tmp_path / "err").write_bytes(err)
    command = ["sh", "-c", "cat out; cat err >&2"]
    with start_run(longwatch_bin, tmp_path, command, options=("--name", "talker")) as run:
        assert 0 == run.wait()
    assert out == run.out.text
    assert err == b"".join(line for line in run.err.lines if parse_record(line) is None)
    assert sorted((out + err).splitlines()) == sorted(
        (run.logs / "talker.log").read_bytes().splitlines()
    )


def test_a_last_line_without_an_end_is_passed_on(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(longwatch_bin, tmp_path, ["printf", "no end"]) as run:
        assert 0 == run.wait()
    assert b"no end\n" == run.out.text


def test_what_a_dying_program_said_last_is_not_lost(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin,
        tmp_path,
        ["sh", "-c", "echo last words; kill -9 $$"],
        options=("--restart", "never"),
    ) as run:
        assert 137 == run.wait()
    assert b"last words\n" == run.out.text


# --- whatever the readers do ---


@pytest.mark.parametrize("closed", ["1", "2", "1 2", "0 1 2"])
def test_with_standard_streams_closed_it_lives_and_its_log_is_whole(
    longwatch_bin: Path, tmp_path: Path, fifo: PipeLines, closed: str
) -> None:
    redirections = "".join(f" {number}>&-" for number in closed.split())
    within = ("sh", "-c", f'exec "$@"{redirections}', "sh")
    command = [*PYTHON, TALKS, "fifo", "3"]
    with start_run(
        longwatch_bin, tmp_path, command, within=within, options=("--name", "talker")
    ) as run:
        words_from(fifo, "said everything")
        assert 0 == run.wait()
    assert [0] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]
    assert 3 * [b"x" * 99] + 3 * [b"y" * 99] == sorted(
        (run.logs / "talker.log").read_bytes().splitlines()
    )


def test_a_closed_stdin_is_dev_null_to_the_program_and_no_file_of_ours(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    within = ("sh", "-c", 'exec "$@" 0<&-', "sh")
    with start_run(longwatch_bin, tmp_path, ["readlink", "/proc/self/fd/0"], within=within) as run:
        assert 0 == run.wait()
    assert b"/dev/null\n" == run.out.text


def test_with_its_readers_gone_it_lives(
    longwatch_bin: Path, tmp_path: Path, fifo: PipeLines
) -> None:
    """Both pipes break before the program says its first word."""
    command = ["sh", "-c", 'read _ < go; exec "$@"', "sh", *PYTHON, TALKS, "fifo", "3"]
    os.mkfifo(tmp_path / "go")
    with start_run(longwatch_bin, tmp_path, command, options=("--name", "talker")) as run:
        run.next_event("program_started")
        run.out.close()
        run.err.close()
        (tmp_path / "go").write_text("go\n", encoding="utf-8")
        words_from(fifo, "said everything")
        assert 0 == run.wait()
    assert 6 == len((run.logs / "talker.log").read_bytes().splitlines())
    assert [0] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]


def test_with_readers_that_do_not_read_the_program_goes_on_and_can_be_stopped(
    longwatch_bin: Path, tmp_path: Path, fifo: PipeLines
) -> None:
    """More than every buffer on the way can hold: 3 MB, of which nobody reads a byte."""
    command = [*PYTHON, TALKS + "import signal; signal.pause()", "fifo", "15000"]
    with start_run(longwatch_bin, tmp_path, command, options=("--name", "talker")) as run:
        words_from(fifo, "said everything")
        run.signal(signal.SIGTERM)
        assert 143 == run.process.wait(TIMEOUT)
    assert 30_000 == len((run.logs / "talker.log").read_bytes().splitlines())
    assert [143] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]
    assert 0 < run.logged_events("output_dropped")[0]["lines"]


def test_a_log_file_that_is_deleted_comes_back(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, SPEAKS_ON_REQUEST], options=("--name", "talker")
    ) as run:
        assert "line 1" == run.next_line()
        assert eventually(lambda: ["line 1"] == complete_lines(run.logs / "talker.log"))
        for path in list(run.logs.iterdir()):
            path.unlink()
        run.signal(signal.SIGUSR1)
        assert "line 2" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
    assert "line 2\n" == (run.logs / "talker.log").read_text(encoding="utf-8")
    assert ["signal_received", "signal_received"] == [
        record["event"] for record in run.logged_events()
    ][:2]


def test_a_log_directory_that_is_deleted_comes_back(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, SPEAKS_ON_REQUEST], options=("--name", "talker")
    ) as run:
        assert "line 1" == run.next_line()
        (tmp_path / ".longwatch").rename(tmp_path / "elsewhere")
        run.signal(signal.SIGUSR1)
        assert "line 2" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
    assert "line 2\n" == (run.logs / "talker.log").read_text(encoding="utf-8")


@contextmanager
def tiny_disk(path: Path) -> Iterator[None]:
    """A file system of 64 KB there, where we may mount one."""
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tiny", path], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("only root may mount a small file system to fill")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def test_a_full_disk_kills_neither_the_program_nor_the_log(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The program says 200 KB and lives; once there is room again both logs go on, and no line
    of ours is torn.
    """
    script = "import os; os.write(1, (b'x' * 999 + b'\\n') * 200)" + SPEAKS_ON_REQUEST
    with (
        tiny_disk(tmp_path / "disk"),
        start_run(
            longwatch_bin,
            tmp_path,
            [*PYTHON, script],
            options=("--name", "talker", "--state-dir", "disk/state"),
        ) as run,
    ):
        logs = tmp_path / "disk" / "state" / "logs"
        assert ["x" * 999] * 200 + ["line 1"] == [run.next_line() for _ in range(201)]
        run.signal(signal.SIGWINCH)
        assert "forward" == run.next_event("signal_received")["action"]
        (logs / "talker.log").unlink()
        run.signal(signal.SIGUSR1)
        assert "line 2" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
        records = [
            json.loads(line)
            for line in (logs / "watchdog.log").read_text(encoding="utf-8").splitlines()
        ]
        assert "line 2\n" in (logs / "talker.log").read_text(encoding="utf-8")
    assert "supervisor_stopped" == records[-1]["event"]


# --- what must not be in it ---


def test_secrets_are_masked_wherever_they_stand(longwatch_bin: Path, tmp_path: Path) -> None:
    secret = "hunter2hunter2"
    (tmp_path / "longwatch.toml").write_text(f'[run.env]\nAPI_KEY = "{secret}"\n', encoding="utf-8")
    command = [
        "true",
        f"--token={secret}",
        "--password",
        secret,
        f"DB_PASSWORD={secret}",
        f"postgresql://user:{secret}@host/db",
    ]
    with start_run(
        longwatch_bin, tmp_path, command, options=("--config", "longwatch.toml"), env={"DEBUG": "1"}
    ) as run:
        assert 0 == run.wait()
    assert (
        secret
        not in (run.logs / "watchdog.log").read_text(encoding="utf-8") + run.err.text.decode()
    )
    [started] = run.logged_events("program_started")
    assert [
        "true",
        "--token=***",
        "--password",
        "***",
        "DB_PASSWORD=***",
        "postgresql://***@host/db",
    ] == started["command"]
    assert {"API_KEY": "***"} == run.logged_events("settings_loaded")[0]["settings"]["run"]["env"]


FORGED = '{"ts":"2000-01-01T00:00:00.000Z","level":"info","event":"forged","pid":1,"managerPid":1}'


@pytest.mark.parametrize("log_format", ["json", "pretty"])
def test_names_with_newlines_and_escapes_forge_no_record(
    longwatch_bin: Path, tmp_path: Path, log_format: str
) -> None:
    program = tmp_path / f"evil\n{FORGED}\n\x1b[2Jname"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    command = [f"./{program.name}", f"an argument\n{FORGED}"]
    with start_run(longwatch_bin, tmp_path, command, options=("--log-format", log_format)) as run:
        assert 0 == run.wait()
    assert [] == run.logged_events("forged")
    assert [] == [
        line for line in run.err.lines if not line.decode().removesuffix("\n").isprintable()
    ]
    assert [] == run.events("forged")
    assert {True} == {path.name.isprintable() for path in run.logs.iterdir()}


def test_output_that_looks_like_a_record_is_not_in_our_log(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(longwatch_bin, tmp_path, ["printf", "%s\\n", FORGED]) as run:
        assert 0 == run.wait()
    assert [] == run.logged_events("forged")
    assert f"{FORGED}\n" == (run.logs / "printf.log").read_text(encoding="utf-8")


# --- the program's environment ---


def test_the_program_gets_our_environment_but_for_what_is_ours(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    (tmp_path / "longwatch.toml").write_text('[run.env]\nEXTRA = "more"\n', encoding="utf-8")
    given = {
        "PORT": "1",
        "HEALTH_CHECK_ENABLED": "false",
        "DEBUG": "app:*",
        "LONGWATCH_STATE_DIR": "state",
        "LONGWATCH_X": "x",
    }
    notify = {
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": "1",
        "LISTEN_FDS": "1",
    }
    options = ("--config", "longwatch.toml")
    with start_run(
        longwatch_bin, tmp_path, ["/usr/bin/env"], options=options, env={**given, **notify}
    ) as run:
        assert 0 == run.wait()
    got = dict(line.split("=", 1) for line in run.out.text.decode().splitlines())
    got.pop("LONGWATCH_OWNER")
    assert "/run/notify" != got.pop("NOTIFY_SOCKET")
    expected = {
        "PORT": "1",
        "HEALTH_CHECK_ENABLED": "false",
        "DEBUG": "app:*",
        "EXTRA": "more",
        "MANAGED_BY": "longwatch",
    }
    ours = clean_environment(expected)
    del ours["LONGWATCH_PAGE_PORT"]
    assert ours == got
    assert (tmp_path / "state" / "logs" / "env.log").exists()


def test_a_relative_working_directory_is_ours_plus_it(longwatch_bin: Path, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    with start_run(longwatch_bin, tmp_path, ["pwd"], options=("--cwd", "sub")) as run:
        assert 0 == run.wait()
    assert f"{tmp_path}/sub\n" == run.out.text.decode()
    assert run.logs.is_dir()
