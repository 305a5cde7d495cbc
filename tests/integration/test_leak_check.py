from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from leaks import Running, no_descriptor_left_open, nothing_left_open


def test_a_child_that_still_runs_is_named() -> None:
    before = Running.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        [line] = before.left_behind(patience=0)
        child.communicate(b"\n")
    assert line.startswith(f"child process {child.pid} (")
    assert [] == before.left_behind(patience=0)


def test_a_child_that_nobody_waited_for_is_named() -> None:
    before = Running.now()
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        assert [f"child process {child.pid}"] == [
            line.partition(" (")[0] for line in before.left_behind(patience=0)
        ]


def test_a_thread_that_keeps_the_process_alive_is_named_and_a_daemon_is_not() -> None:
    before = Running.now()
    end = threading.Event()
    threads = [
        threading.Thread(target=end.wait, name=f"daemon={daemon}", daemon=daemon)
        for daemon in (True, False)
    ]
    for thread in threads:
        thread.start()
    assert ["thread daemon=False"] == before.left_behind(patience=0)
    end.set()
    for thread in threads:
        thread.join()
    assert [] == before.left_behind(patience=0)


def test_something_that_is_just_ending_is_waited_for() -> None:
    before = Running.now()
    ending = Running(before.children, before.threads | {threading.Thread(name="ending")})
    sights = iter([ending, ending, before])
    assert [] == before.left_behind(now=lambda: next(sights))


def test_descriptors_that_stay_open_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.PATIENCE", 0.01)
    ends: list[int] = []

    def leak(**settings: Any) -> None:
        with no_descriptor_left_open(**settings):
            ends.extend(os.pipe())

    for settings in ({}, {"but_for": 1}, {"kept": lambda what: what.startswith("socket")}):
        with pytest.raises(AssertionError, match=r"^left open: \d+ \(pipe:.*\), \d+ \(pipe:.*\)"):
            leak(**settings)
    leak(but_for=2)
    leak(kept=lambda what: what.startswith("pipe"))
    for end in ends:
        os.close(end)


def test_a_thread_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.PATIENCE", 0.01)
    ended = threading.Event()

    def leak() -> None:
        with nothing_left_open():
            threading.Thread(target=ended.wait, name="stays", daemon=True).start()

    with pytest.raises(AssertionError, match=r"^threads left behind: stays"):
        leak()
    ended.set()


def test_what_was_open_before_may_be_closed_meanwhile() -> None:
    ends = os.pipe()
    with nothing_left_open():
        for end in ends:
            os.close(end)
