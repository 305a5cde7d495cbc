from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from guardian_fixture import proc_state
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.workers.stack_dump import freeze, is_stopped, save_stacks
from polling import eventually
from snippet import Snippet, run_snippet

CLOCK = SystemClock()
REASON = "worker (pid 7) gave no beat for 3.0 s"
WRITES = """
import os, signal, sys, threading
from longwatch.host.crash_file import CrashFile
file = CrashFile("group")
file.open()
file.dump_on_signal()
print(os.getpid(), file.path)
"""
"""A worker process, as far as its crash file goes."""


class Child:
    """A real process, and the crash file it has open."""

    def __init__(self, snippet: Snippet) -> None:
        self.snippet = snippet
        pid, _, path = snippet.read_line().partition(" ")
        self.pid, self.crash_file = int(pid), Path(path)

    @property
    def saved(self) -> str:
        return self.crash_file.read_text()

    @property
    def alive(self) -> bool:
        return proc_state(self.pid) not in {"", "Z", "X"}


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where crash files go."""
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@contextmanager
def child(code: str) -> Iterator[Child]:
    with run_snippet(WRITES + code) as snippet:
        yield Child(snippet)


SLEEPS = """
def the_work():
    print("in it")
    threading.Event().wait()
the_work()
"""
HOLDS_THE_GIL = """
def the_work():
    print("in it")
    sum(range(10**15))
the_work()
"""


# --- saving ---


@pytest.mark.parametrize("code", [SLEEPS, HOLDS_THE_GIL], ids=["waits", "holds the GIL"])
def test_a_process_that_can_writes_its_stacks_behind_the_reason(code: str) -> None:
    with child(code) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert worker.saved.startswith(f"{REASON}\n")
        assert "in the_work" in worker.saved
        assert "wchan" not in worker.saved
        assert worker.alive


def test_a_disk_that_does_not_answer_holds_up_the_kill_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO that no process reads stands for that disk. Once it answers, the process is not
    asked for its stacks any more: its pid may be of another one by then.
    """
    monkeypatch.setattr("longwatch.workers.stack_dump.SAVE_TIMEOUT", 0.1)
    os.mkfifo(stalled := tmp_path / "stalled")
    code = "signal.signal(signal.SIGUSR2, lambda *_: os._exit(9))\n" + SLEEPS
    with child(code) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(worker.pid, stalled, REASON, CLOCK)
        assert f"{REASON}\n" == stalled.read_text()
        assert eventually(
            lambda: all(each.name != "worker-save-stacks" for each in threading.enumerate())
        )
        assert worker.alive


class SlowClock(SystemClock):
    """While somebody waits, the rest of a long dump comes bit by bit."""

    def __init__(self, crash_file: Path, *parts: str) -> None:
        self._crash_file = crash_file
        self._parts = list(parts)

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        if self._parts:
            with self._crash_file.open("a") as file:
                file.write(self._parts.pop(0))
        return super().wait(wakeup, timeout)


def test_all_of_a_long_dump_is_there_when_it_returns() -> None:
    with child("signal.signal(signal.SIGUSR2, lambda *_: None)\n" + SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(
            worker.pid,
            worker.crash_file,
            REASON,
            SlowClock(worker.crash_file, "some ", "more ", "all"),
        )
        assert f"{REASON}\nsome more all" == worker.saved


def pending(pid: int) -> set[int]:
    """The signals that a process has yet to hear."""
    fields = dict(
        line.split(":\t")
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if "Pnd:" in line
    )
    masks = [int(mask, 16) for mask in fields.values()]
    return {number for number in range(1, 65) for mask in masks if mask >> (number - 1) & 1}


def test_of_one_that_is_stopped_the_kernels_view_is_saved_and_it_is_not_asked() -> None:
    with child(SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        freeze(worker.pid, CLOCK)
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        saved = worker.saved
        assert saved.startswith(f"{REASON}\n")
        assert "State:\tT (stopped)" in saved
        assert f"Pid:\t{worker.pid}" in saved
        assert "\nwchan: " in saved
        assert signal.SIGUSR2 not in pending(worker.pid)


def test_one_without_a_handler_is_not_asked_since_that_would_end_it_without_a_word() -> None:
    with child("signal.signal(signal.SIGUSR2, signal.SIG_DFL)\n" + SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert "State:\t" in worker.saved
        assert worker.alive


def test_one_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    """Its handler writes elsewhere: after a while the kernel's view has to do."""
    with child("signal.signal(signal.SIGUSR2, lambda *_: None)\n" + SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert "State:\t" in worker.saved
        assert worker.alive


def test_of_one_that_is_gone_the_reason_is_left() -> None:
    with child("") as worker:
        worker.snippet.wait()
        worker.crash_file.touch()
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert worker.saved.startswith(f"{REASON}\n")


def test_without_a_crash_file_nobody_is_asked() -> None:
    with child("signal.signal(signal.SIGUSR2, signal.SIG_DFL)\n" + SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        save_stacks(worker.pid, None, REASON, CLOCK)
        assert worker.alive
        assert "" == worker.saved


def test_a_crash_file_whose_directory_was_removed_is_no_reason_not_to_go_on(crashes: Path) -> None:
    with child(SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        worker.crash_file.unlink()
        crashes.rmdir()
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert not worker.crash_file.exists()
        assert worker.alive


def test_a_link_in_the_place_of_a_crash_file_is_not_followed(tmp_path: Path) -> None:
    with child(SLEEPS) as worker:
        assert "in it" == worker.snippet.read_line()
        precious = tmp_path / "precious"
        precious.write_text("mine")
        worker.crash_file.unlink()
        worker.crash_file.symlink_to(precious)
        save_stacks(worker.pid, worker.crash_file, REASON, CLOCK)
        assert "mine" == precious.read_text()


# --- freezing ---


@pytest.mark.parametrize("code", [SLEEPS, HOLDS_THE_GIL], ids=["waits", "holds the GIL"])
def test_a_frozen_process_is_stopped_when_that_returns(code: str) -> None:
    with child(code) as worker:
        assert "in it" == worker.snippet.read_line()
        freeze(worker.pid, CLOCK)
        assert "T" == proc_state(worker.pid)


def test_one_that_is_gone_is_not_waited_for() -> None:
    with child("") as worker:
        worker.snippet.wait()
        freeze(worker.pid, CLOCK)
        assert not worker.alive


@pytest.mark.parametrize(
    ("status", "stopped"),
    [
        ("State:\tT (stopped)\n", True),
        ("State:\tt (tracing stop)\n", True),
        ("State:\tZ (zombie)\n", True),
        ("", True),
    ]
    + [
        (f"Name:\tx\nState:\t{letter}\n", False)
        for letter in ("S (sleeping)", "R (running)", "D (disk sleep)")
    ],
)
def test_what_can_change_nothing_any_more_counts_as_stopped(status: str, *, stopped: bool) -> None:
    assert stopped is is_stopped(status)
