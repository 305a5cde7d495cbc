from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from leaks import Snapshot, no_descriptor_leaks, no_leaks


def test_a_child_that_still_runs_is_named() -> None:
    before = Snapshot.take()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        [line] = before.left_behind(timeout=0)
        child.communicate(b"\n")
    assert line.startswith(f"child process {child.pid} (")
    assert [] == before.left_behind(timeout=0)


def test_a_child_that_nobody_waited_for_is_named() -> None:
    before = Snapshot.take()
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.read()
        assert [f"child process {child.pid}"] == [
            line.partition(" (")[0] for line in before.left_behind(timeout=0)
        ]


def test_a_thread_that_keeps_the_process_alive_is_named_and_a_daemon_is_not() -> None:
    before = Snapshot.take()
    end = threading.Event()
    threads = [
        threading.Thread(target=end.wait, name=f"daemon={daemon}", daemon=daemon)
        for daemon in (True, False)
    ]
    for thread in threads:
        thread.start()
    assert ["thread daemon=False"] == before.left_behind(timeout=0)
    end.set()
    for thread in threads:
        thread.join()
    assert [] == before.left_behind(timeout=0)


def test_something_that_is_just_ending_is_waited_for() -> None:
    before = Snapshot.take()
    ending = Snapshot(before.children, before.threads | {threading.Thread(name="ending")})
    sights = iter([ending, ending, before])
    assert [] == before.left_behind(take=lambda: next(sights))


def test_descriptors_that_stay_open_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.TIMEOUT", 0.01)
    ends: list[int] = []

    def leak(**settings: Any) -> None:
        with no_descriptor_leaks(**settings):
            ends.extend(os.pipe())

    for settings in ({}, {"allowed": 1}, {"ignored": lambda what: what.startswith("socket")}):
        with pytest.raises(AssertionError, match=r"^left open: \d+ \(pipe:.*\), \d+ \(pipe:.*\)"):
            leak(**settings)
    leak(allowed=2)
    leak(ignored=lambda what: what.startswith("pipe"))
    for end in ends:
        os.close(end)


def test_a_thread_that_stays_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leaks.TIMEOUT", 0.01)
    ended = threading.Event()

    def leak() -> None:
        with no_leaks():
            threading.Thread(target=ended.wait, name="stays", daemon=True).start()

    with pytest.raises(AssertionError, match=r"^threads left behind: stays"):
        leak()
    ended.set()


def test_what_was_open_before_may_be_closed_meanwhile() -> None:
    ends = os.pipe()
    with no_leaks():
        for end in ends:
            os.close(end)
