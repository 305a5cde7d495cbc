"""A program that fails comes back after its backoff, and not for ever."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from run_process import NO_BACKOFF_OPTIONS, start_run


def test_a_killed_program_is_back_after_the_first_backoff(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(longwatch_bin, tmp_path, ["sleep", "1000"]) as run:
        first = run.next_event("program_started")
        os.kill(first["pid"], signal.SIGKILL)
        ended, scheduled, second = (
            run.next_event("unexpected_exit"),
            run.next_event("restart_scheduled"),
            run.next_event("program_started"),
        )
        os.kill(second["pid"], signal.SIGTERM)
        assert 143 == run.wait()
    assert ("signal 9", True, first["pid"]) == (ended["cause"], ended["restart"], ended["pid"])
    assert (1.0, 1, 1) == (
        scheduled["delay"],
        scheduled["failures"],
        scheduled["restarts_in_window"],
    )
    assert second["pid"] != first["pid"]
    assert (1, 2) == (first["start_number"], second["start_number"])


def test_six_fast_crashes_trip_the_breaker(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin, tmp_path, ["sh", "-c", "exit 7"], options=NO_BACKOFF_OPTIONS
    ) as run:
        assert 100 == run.wait()
    assert [1, 2, 3, 4, 5, 6] == [
        start["start_number"] for start in run.logged_events("program_started")
    ]
    assert [True] * 5 + [False] == [end["restart"] for end in run.logged_events("unexpected_exit")]
    assert [0.01] * 5 == [
        scheduled["delay"] for scheduled in run.logged_events("restart_scheduled")
    ]
    [tripped] = run.logged_events("circuit_breaker_tripped")
    assert ("critical", 5, 60.0) == (tripped["level"], tripped["restarts"], tripped["window"])


def test_at_the_defaults_fast_crashes_wait_1_2_4_and_8_seconds(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The last wait is announced, and not waited for: a stop in the middle of it is obeyed at
    once.
    """
    with start_run(longwatch_bin, tmp_path, ["sh", "-c", "exit 7"]) as run:
        scheduled = [run.next_event("restart_scheduled")["delay"] for _ in range(4)]
        run.signal(signal.SIGTERM)
        assert 0 == run.wait(timeout=4.0)
    assert [1.0, 2.0, 4.0, 8.0] == scheduled
    assert [1, 2, 3, 4] == [start["start_number"] for start in run.logged_events("program_started")]


def test_a_stable_run_makes_backoff_and_breaker_start_anew(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """Two crashes, then a run that is stable before it is killed; the counters after it are
    those of a first failure.
    """
    script = (
        "echo >> starts; [ $(wc -l < starts) -le 2 ] && exit 7; [ $(wc -l < starts) -eq 3 ] && "
        "exec sleep 1000; exit 0"
    )
    options = ("--backoff-initial", "0.01", "--stable-after", "0.5", "--breaker-restarts", "2")
    with start_run(longwatch_bin, tmp_path, ["sh", "-c", script], options=options) as run:
        os.kill(run.next_event("program_stable")["pid"], signal.SIGKILL)
        assert 0 == run.wait()
    told = [
        (s["delay"], s["failures"], s["restarts_in_window"])
        for s in run.logged_events("restart_scheduled")
    ]
    assert [(0.01, 1, 1), (0.02, 2, 2), (0.01, 1, 1)] == told
    assert 4 == len(run.logged_events("program_started"))


def test_what_a_crash_leaves_behind_is_gone_before_the_next_start(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The leader dies, its helper would live on: the end tells of one that had to be killed."""
    script = (
        "sleep 1000 & echo $! >> helpers; [ $(wc -l < helpers) -eq 2 ] && ! kill -0 $(head -1 "
        "helpers) && exit 0; exit 7"
    )
    with start_run(
        longwatch_bin, tmp_path, ["sh", "-c", script], options=NO_BACKOFF_OPTIONS
    ) as run:
        assert 0 == run.wait()
    assert [1] == [end["killed"] for end in run.logged_events("unexpected_exit")]
    assert [2] == [len((tmp_path / "helpers").read_text(encoding="utf-8").split())]
