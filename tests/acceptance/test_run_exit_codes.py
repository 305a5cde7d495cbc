"""`longwatch run` ends with the program's own code, 128 + n after signal n, 100 when the breaker
trips.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from run_process import NO_BACKOFF_OPTIONS, PYTHON, start_run

ENDS_NOTHING = (
    signal.SIGCHLD,
    signal.SIGCONT,
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGURG,
    signal.SIGWINCH,
)

STOPS_CLEANLY = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready")
signal.pause()
"""


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, "clean_exit"),
        (2, "configuration_error"),
        (100, "fatal_error_no_restart"),
        (101, "fatal_error_no_restart"),
        (127, "fatal_error_no_restart"),
        (128, "fatal_error_no_restart"),
        (143, "intentional_signal"),
        (130, "intentional_signal"),
        *((128 + number, "fatal_error_no_restart") for number in ENDS_NOTHING),
        (193, "fatal_error_no_restart"),
        (255, "fatal_error_no_restart"),
    ],
)
def test_a_code_that_is_final_is_passed_on_after_one_start(
    longwatch_bin: Path, tmp_path: Path, code: int, verdict: str
) -> None:
    with start_run(longwatch_bin, tmp_path, ["sh", "-c", f"exit {code}"]) as run:
        assert code == run.wait()
    assert [(f"exit {code}", False)] == [
        (end["cause"], end["restart"]) for end in run.logged_events(verdict)
    ]
    assert [1] == [start["start_number"] for start in run.logged_events("program_started")]
    assert [code] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]


@pytest.mark.parametrize("code", [1, 3, 99])
def test_restart_never_passes_any_code_on_after_one_start(
    longwatch_bin: Path, tmp_path: Path, code: int
) -> None:
    with start_run(
        longwatch_bin, tmp_path, ["sh", "-c", f"exit {code}"], options=("--restart", "never")
    ) as run:
        assert code == run.wait()
    assert [(f"exit {code}", False)] == [
        (end["cause"], end["restart"]) for end in run.logged_events("unexpected_exit")
    ]
    assert [1] == [start["start_number"] for start in run.logged_events("program_started")]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_program_told_to_stop_from_outside_is_not_started_again(
    longwatch_bin: Path, tmp_path: Path, signum: int
) -> None:
    with start_run(longwatch_bin, tmp_path, ["sleep", "1000"]) as run:
        os.kill(run.next_event("program_started")["pid"], signum)
        assert 128 + signum == run.wait()
    assert [(f"signal {signum}", False)] == [
        (end["cause"], end["restart"]) for end in run.logged_events("intentional_signal")
    ]
    assert [1] == [start["start_number"] for start in run.logged_events("program_started")]


def test_sigterm_with_a_program_that_ends_cleanly_is_0(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, STOPS_CLEANLY]) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 0 == run.wait()
    assert ["exit 0"] == [end["cause"] for end in run.logged_events("shutdown_complete")]


def test_sigterm_with_a_program_that_dies_of_it_is_143(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(longwatch_bin, tmp_path, ["sleep", "1000"]) as run:
        run.next_event("program_started")
        run.signal(signal.SIGTERM)
        assert 143 == run.wait()
    assert ["signal 15"] == [end["cause"] for end in run.logged_events("shutdown_complete")]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_waits_for_the_next_start_is_0(
    longwatch_bin: Path, tmp_path: Path, signum: int
) -> None:
    """Between two runs no process is there to stop: the stop is clean, whatever the last run
    ended with.
    """
    slow = ("--backoff-initial", "1000", "--backoff-cap", "1000")
    with start_run(longwatch_bin, tmp_path, ["sh", "-c", "exit 3"], options=slow) as run:
        run.next_event("restart_scheduled")
        run.signal(signum)
        assert 0 == run.wait()
    assert [1] == [start["start_number"] for start in run.logged_events("program_started")]
    assert [0] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]


def test_a_breaker_that_trips_is_100(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin, tmp_path, ["false"], options=(*NO_BACKOFF_OPTIONS, "--breaker-restarts", "1")
    ) as run:
        assert 100 == run.wait()
    assert [100] == [stopped["exit_code"] for stopped in run.logged_events("supervisor_stopped")]


def test_restart_always_starts_a_clean_exit_again(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(
        longwatch_bin,
        tmp_path,
        ["true"],
        options=(*NO_BACKOFF_OPTIONS, "--restart", "always", "--breaker-restarts", "2"),
    ) as run:
        assert 100 == run.wait()
    assert [1, 2, 3] == [start["start_number"] for start in run.logged_events("program_started")]
