"""Which signal reaches the program, and what becomes of it when it does not listen."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from polling import eventually
from run_process import NO_BACKOFF_OPTIONS, PYTHON, RunProcess, start_run

LISTENS = """
import os, signal, sys
def heard(number, frame):
    os.write(
        1, f"heard {signal.Signals(number).name}\\n".encode()
    )  # one write: a handler may interrupt another
    if number not in (signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT):
        os._exit(3)  # an interpreter that is ending hears nothing: the next signal would kill it
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}:
    signal.signal(number, heard)
print("ready", flush=True)
while True:
    signal.pause()
"""
"""Says what it hears and ends with 3, but for SIGUSR2, SIGWINCH and SIGCONT."""

IGNORES_SIGNALS = """
import signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("ready")
while True:
    signal.pause()
"""


def signals_received(run: RunProcess) -> list[str]:
    """What the program said it heard; SIGCONT, which wakes a stopped one, aside."""
    lines = run.out.text.decode().splitlines()
    return [line.removeprefix("heard ") for line in lines if line not in {"ready", "heard SIGCONT"}]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP])
def test_the_signal_that_stops_us_is_the_one_the_program_gets(
    longwatch_bin: Path, tmp_path: Path, signum: signal.Signals
) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS]) as run:
        assert "ready" == run.next_line()
        run.signal(signum)
        assert 3 == run.wait()
    assert [signum.name] == signals_received(run)
    assert [(signum, "stop")] == [
        (got["signal"], got["action"]) for got in run.logged_events("signal_received")
    ]
    assert [(signum, 15.0)] == [
        (stopping["signal"], stopping["grace"])
        for stopping in run.logged_events("program_stopping")
    ]
    assert ["exit 3"] == [end["cause"] for end in run.logged_events("shutdown_complete")]


@pytest.mark.parametrize(
    ("spelled", "sent"), [("USR1", "SIGUSR1"), ("SIGUSR1", "SIGUSR1"), ("TERM", "SIGTERM")]
)
def test_a_configured_stop_signal_is_sent_in_the_place_of_ours(
    longwatch_bin: Path, tmp_path: Path, spelled: str, sent: str
) -> None:
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, LISTENS], options=("--stop-signal", spelled)
    ) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGINT)
        assert 3 == run.wait()
    assert [sent] == signals_received(run)


def test_other_signals_are_passed_on_and_stop_nothing(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS]) as run:
        assert "ready" == run.next_line()
        for signum in (signal.SIGUSR2, signal.SIGWINCH, signal.SIGUSR2):
            run.signal(signum)
            assert f"heard {signum.name}" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 3 == run.wait()
    assert ["SIGUSR2", "SIGWINCH", "SIGUSR2", "SIGTERM"] == signals_received(run)
    assert ["forward"] * 3 + ["stop"] == [
        got["action"] for got in run.logged_events("signal_received")
    ]


def test_a_program_that_ends_of_a_passed_on_signal_has_failed(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """SIGUSR1 is passed on like the others; that the program ends of it is its own affair."""
    with start_run(
        longwatch_bin,
        tmp_path,
        [*PYTHON, LISTENS],
        options=(*NO_BACKOFF_OPTIONS, "--restart", "never"),
    ) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGUSR1)
        assert 3 == run.wait()
    assert ["SIGUSR1"] == signals_received(run)
    assert 1 == len(run.logged_events("unexpected_exit"))


def test_a_program_deaf_to_sigterm_is_killed_after_the_grace(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, IGNORES_SIGNALS], options=("--stop-grace", "0.3")
    ) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 137 == run.wait()
    [end] = run.logged_events("shutdown_complete")
    assert ("signal 9", 1, 0) == (end["cause"], end["killed"], end["survivors"])
    assert [0.3] == [stopping["grace"] for stopping in run.logged_events("program_stopping")]


def test_a_second_signal_kills_at_once(longwatch_bin: Path, tmp_path: Path) -> None:
    """With a grace of an hour only the second signal can end it within the test's patience."""
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, IGNORES_SIGNALS], options=("--stop-grace", "3600")
    ) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGTERM)
        run.next_event("program_stopping")
        assert eventually(lambda: is_escalating(run)), (
            "a moment after the first, a second signal counts"
        )
        assert 137 == run.wait()
    assert [(signal.SIGTERM, "stop"), (signal.SIGINT, "escalate")] == [
        (got["signal"], got["action"]) for got in run.logged_events("signal_received")
    ]


def is_escalating(run: RunProcess) -> bool:
    """Whether it has come to the escalation; until then, one more signal."""
    if len(run.logged_events("signal_received")) > 1:
        return True
    run.signal(signal.SIGINT)
    return False


def test_the_same_request_said_twice_at_once_keeps_its_grace(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """As `timeout` does, which signals its child and then the group, or a terminal that closes."""
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS]) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGTERM)
        run.signal(signal.SIGHUP)
        assert 3 == run.wait()
    assert ["stop"] == [got["action"] for got in run.logged_events("signal_received")]


def test_signals_that_were_ignored_when_it_started_stay_ignored(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """As with `nohup`, or in the background of a script."""
    within = ("sh", "-c", 'trap "" HUP INT; exec "$@"', "sh")
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS], within=within) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGINT)
        run.signal(signal.SIGTERM)
        assert 3 == run.wait()
    assert [signal.SIGTERM] == [got["signal"] for got in run.logged_events("signal_received")]


def test_signals_that_were_blocked_when_it_started_are_heard(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"
    blocking = f"import os, signal, sys; {block}; os.execv(sys.argv[1], sys.argv[1:])"
    with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS], within=(*PYTHON, blocking)) as run:
        assert "ready" == run.next_line()
        run.signal(signal.SIGTERM)
        assert 3 == run.wait()


def test_a_signal_among_many_others_is_heard(longwatch_bin: Path, tmp_path: Path) -> None:
    """The kernel may give it to any thread while the main one is busy with another."""
    for _ in range(5):
        with start_run(longwatch_bin, tmp_path, [*PYTHON, LISTENS]) as run:
            assert "ready" == run.next_line()
            for signum in (
                signal.SIGWINCH,
                signal.SIGUSR2,
                signal.SIGWINCH,
                signal.SIGCHLD,
                signal.SIGTERM,
            ):
                run.signal(signum)
            assert 3 == run.wait()


def test_a_stopped_program_is_woken_to_stop(longwatch_bin: Path, tmp_path: Path) -> None:
    """One on hold (SIGSTOP) could not hear SIGTERM; its handler ran, so it was woken."""
    with start_run(
        longwatch_bin, tmp_path, [*PYTHON, LISTENS], options=("--stop-grace", "3600")
    ) as run:
        assert "ready" == run.next_line()
        os.kill(run.next_event("program_started")["pid"], signal.SIGSTOP)
        run.signal(signal.SIGTERM)
        assert 3 == run.wait()
