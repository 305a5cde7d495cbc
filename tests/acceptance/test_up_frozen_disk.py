"""A supervisor whose state directory is on a disk that stops answering."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from frozen_disk import ext4_filesystem, frozen
from polling import complete_lines, eventually
from up_process import NO_BACKOFF, SLEEPER, UpProcess, py, start_up

COUNTS = """
import time
number = 0
while True:
    number += 1
    print(number)
    time.sleep(0.01)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with ext4_filesystem(tmp_path) as place:
        yield place


def latest_count(run: UpProcess) -> int:
    """The number that the program has said last, as far as our stdout was read."""
    return int(run.printed_lines()[-1][1].rpartition(" ")[2])


@pytest.mark.serial
def test_a_disk_that_does_not_answer_holds_up_no_program_and_loses_no_line(
    longwatch_bin: Path, tmp_path: Path, disk: Path
) -> None:
    """While the disk is frozen `longwatch status` answers, a killed program is started again, and
    a shutdown stops all programs. Once it answers, the log files have every line.
    """
    programs = {"victim": {**SLEEPER, **NO_BACKOFF}, "counter": py(COUNTS)}
    state = disk / "state"
    with start_up(longwatch_bin, tmp_path, programs, options=("--state-dir", state)) as run:
        run.state_dir, log = state, state / "logs" / "counter.log"
        run.wait_for_output("counter | 1")
        victim = run.wait_for_status("victim", up=True)["pid"]
        assert eventually(lambda: len(complete_lines(log)) > 1)
        with frozen(disk):
            written = len(complete_lines(log))
            os.kill(victim, signal.SIGKILL)
            run.wait_for_event("program_started", program="victim", times=2)
            for number in range(written + 1, written + 21):
                run.wait_for_output(f"counter | {number}")
            status = run.run_command("status", "--state-dir", str(state))
            assert 0 == status.returncode, status.stderr
            assert latest_count(run) > len(complete_lines(log)), "it is not frozen"
            victim = run.status("victim")["pid"]
        assert eventually(lambda: len(complete_lines(log)) >= latest_count(run))
        assert run.status("victim")["pid"] == victim
        with frozen(disk):
            run.signal(signal.SIGTERM)
            for name in programs:
                run.wait_for_event("shutdown_complete", program=name)
        assert 0 == run.wait()
    lines = complete_lines(log)
    assert [str(number) for number in range(1, len(lines) + 1)] == lines
    assert latest_count(run) <= len(lines)
    run.logs = state / "logs"
    assert ["signal 9"] == [end["cause"] for end in run.logged_events("unexpected_exit")]
    assert [1, 2] == [
        start["start_number"]
        for start in run.logged_events("program_started")
        if start["program"] == "victim"
    ]
    assert [] == run.events("log_file_stalled")
