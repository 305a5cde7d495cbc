"""`longwatch top` on a real terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_supervisor import FakeSupervisor, down, end, fake_supervisor, program
from longwatch.cli.top_screen import ENTER_SCREEN, LEAVE_SCREEN
from longwatch.observe.logfile import LogFile
from run_process import TIMEOUT, clean_environment
from terminal import Terminal, on_terminal
from up_process import FROM_SOURCE, SLEEPER, start_up

TOP = (sys.executable, "-m", "longwatch", "top", "--interval", "0.1")
WORKER: dict[str, Any] = {
    "program": "jobs-1",
    "pid": 12,
    "ready": True,
    "reason": "ok",
    "stalled": False,
    "threshold": 60.0,
    "loops": [{"name": "pages", "age": 0.4, "max_age": 2.1, "holding": 7}],
}


@contextmanager
def top(cwd: Path, *, lines: int = 24) -> Iterator[Terminal]:
    with on_terminal(TOP, cwd, lines=lines) as terminal:
        assert "" == terminal.wait_for(ENTER_SCREEN)
        yield terminal


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[FakeSupervisor]:
    with fake_supervisor(tmp_path / ".longwatch", program("web"), program("api")) as answering:
        answering.answer = {**answering.answer, "workers": [WORKER]}  # type: ignore[dict-item]
        yield answering


def assert_restored(terminal: Terminal, before: list[Any]) -> None:
    """The alternate screen is left last, and the modes are as they were."""
    assert terminal.shown.endswith(LEAVE_SCREEN)
    assert before == terminal.modes()


def test_the_table_shows_programs_loops_and_warnings_and_follows_them(
    tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    log = LogFile(tmp_path / ".longwatch" / "logs" / "watchdog.log")
    log.write(b'{"ts":"2026-01-01T00:00:00Z","level":"warning","event":"old_trouble"}\n')
    with top(tmp_path) as terminal:
        terminal.wait_for("2 programs: 2 up")
        terminal.wait_for("web ")
        terminal.wait_for("jobs-1  pages  0.4 s    2.1 s        7  yes")
        terminal.wait_for("old_trouble")
        supervisor.answer = {
            **supervisor.answer,  # type: ignore[dict-item]
            "programs": [program("web"), down("api", "ended", last_end=end("exit 3", "failed"))],
        }
        terminal.wait_for("1 ended, 1 up")
        log.write(b'{"ts":"2026-01-01T00:00:00Z","level":"error","event":"new_trouble"}\n')
        terminal.wait_for("new_trouble")
        terminal.press("q")
        assert 0 == terminal.wait()
    log.close()


def test_keys_sort_filter_and_quit(tmp_path: Path, supervisor: FakeSupervisor) -> None:
    with on_terminal(TOP, tmp_path) as terminal:
        before = terminal.modes()
        terminal.wait_for("api ")
        terminal.press("s")
        terminal.wait_for("order: state")
        terminal.press("/qx")
        terminal.wait_for("no program matches 'qx'")
        terminal.wait_for("filter: qx")
        terminal.press("\x7f\x7fwe\r")
        terminal.wait_for("filter: we (Esc removes it)")
        terminal.press("q")
        assert 0 == terminal.wait()
        assert_restored(terminal, before)


@pytest.mark.parametrize(
    ("signum", "key"),
    [(signal.SIGINT, "\x03"), (signal.SIGTERM, ""), (signal.SIGHUP, ""), (signal.SIGQUIT, "\x1c")],
)
def test_a_signal_that_ends_it_gives_the_terminal_back(
    signum: signal.Signals, key: str, tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    with on_terminal(TOP, tmp_path) as terminal:
        before = terminal.modes()
        terminal.wait_for("web ")
        if key:
            terminal.press(key)
        else:
            terminal.process.send_signal(signum)
        assert 128 + signum == terminal.wait()
        assert_restored(terminal, before)


def test_an_answer_that_it_cannot_show_ends_it_with_one_line_and_gives_the_terminal_back(
    tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    with on_terminal(TOP, tmp_path) as terminal:
        before = terminal.modes()
        terminal.wait_for("web ")
        supervisor.answer = {
            **supervisor.answer,  # type: ignore[dict-item]
            "programs": [{"name": "web", "pid": 1}],
        }
        assert 1 == terminal.wait()
        _, _, after = terminal.shown.partition(LEAVE_SCREEN)
        assert ("longwatch: ", 1) == (after[:11], after.count("\r\n"))
        assert before == terminal.modes()


def test_a_stop_key_leaves_the_screen_and_a_continue_draws_it_again(
    tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    with on_terminal(TOP, tmp_path) as terminal:
        before = terminal.modes()
        terminal.wait_for("web ")
        assert not terminal.modes()[3] & termios.ICANON
        terminal.press("\x1a")
        terminal.wait_for(LEAVE_SCREEN)
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        assert before == terminal.modes()
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(ENTER_SCREEN)
        terminal.wait_for("web ")
        terminal.press("q")
        assert 0 == terminal.wait()
        assert before == terminal.modes()


def test_a_key_that_pauses_other_terminals_does_not_hold_up_the_end(
    tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    with on_terminal(TOP, tmp_path) as terminal:
        before = terminal.modes()
        terminal.wait_for("web ")
        terminal.press("\x13")
        supervisor.answer = {
            **supervisor.answer,  # type: ignore[dict-item]
            "programs": [program(f"p{number}" * 9, ready=False) for number in range(300)],
        }
        terminal.process.send_signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == terminal.wait()
        assert_restored(terminal, before)


def test_a_resize_draws_the_new_size(tmp_path: Path, supervisor: FakeSupervisor) -> None:
    with top(tmp_path, lines=24) as terminal:
        terminal.wait_for("order: start")
        terminal.resize(60, 6)
        terminal.wait_for("lines 1 to ")
        terminal.press("G")
        terminal.wait_for("jobs-1")
        terminal.press("q")
        assert 0 == terminal.wait()


def test_a_supervisor_that_ends_and_comes_back_is_shown(tmp_path: Path) -> None:
    with start_up(
        FROM_SOURCE["longwatch"], tmp_path, {"web": SLEEPER}, within=FROM_SOURCE["within"]
    ) as up:
        up.wait_for_status("web", up=True)
        with top(tmp_path) as terminal:
            terminal.wait_for("longwatch up ")
            terminal.wait_for("web ")
            up.stop_cleanly()
            terminal.wait_for("no answer (the table is ")
            with start_up(
                FROM_SOURCE["longwatch"], tmp_path, within=FROM_SOURCE["within"]
            ) as again:
                terminal.wait_for(f"longwatch up {again.pid} ")
                again.stop_cleanly()
            terminal.press("q")
            assert 0 == terminal.wait()


@pytest.mark.parametrize("env", [{}, {"TERM": "dumb"}])
def test_without_a_terminal_it_names_the_commands_that_need_none(
    env: dict[str, str], tmp_path: Path
) -> None:
    cure = "use `longwatch status`, or `longwatch top --once`"
    if env:
        with on_terminal(TOP, tmp_path, env=env, columns=200) as terminal:
            assert 2 == terminal.wait()
            said = terminal.shown
    else:
        said = run(tmp_path, code=2)
    assert said.startswith("longwatch: expected a terminal on standard input and output, this ")
    assert cure in said


def test_once_prints_one_table_without_control_characters(
    tmp_path: Path, supervisor: FakeSupervisor
) -> None:
    lines = run(tmp_path, "--once", code=0).splitlines()
    assert f"longwatch supervisor {os.getpid()}  2 programs: 2 up  every 0.1 s" == lines[0]
    assert "jobs-1  pages  0.4 s    2.1 s        7  yes" == lines[-1]
    assert all(line.isprintable() for line in lines)


def test_once_without_a_supervisor_says_to_try_again(tmp_path: Path) -> None:
    assert "no supervisor runs on .longwatch" in run(tmp_path, "--once", code=75)


def run(cwd: Path, *words: str, code: int) -> str:
    """What it says without a terminal."""
    done = subprocess.run(
        [*TOP, *words],
        check=False,
        cwd=cwd,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert code == done.returncode, done.stderr
    return done.stdout + done.stderr
