"""What a worker process can suffer: it holds the GIL, hangs, is stopped or killed, or loses its
parent; no message is lost.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from longwatch.workers.worker_record import WORKER_LEASE
from polling import eventually
from run_process import TIMEOUT, wait_for_exit
from worker_process import (
    WorkerProcess,
    is_drained,
    opened_mailbox,
    read_beat_pages,
    send,
    short_directory,
    start_worker,
    store_url,
    write_app,
)

THRESHOLD = 2.0
LONGER_THAN_THE_LEASE = int(WORKER_LEASE.lease_seconds) + 2


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A runtime directory of its own."""
    with short_directory() as directory:
        yield directory


def nothing_is_left(cwd: Path) -> bool:
    with opened_mailbox(store_url(cwd)) as mailbox:
        return is_drained(mailbox) and not mailbox.stats().dead


def stacks(run: WorkerProcess) -> str:
    """What was saved of the one that stalled."""
    return Path(run.wait_for_event("worker_stalled")["stacks"]).read_text()


# --- the GIL ---


def test_work_that_holds_the_gil_for_longer_than_its_lease_is_kept_and_handled_once(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        run.joined_pids("worker-1", "worker-2")
        send(tmp_path, {"id": "long", "do": "hold_gil", "seconds": LONGER_THAN_THE_LEASE})
        run.notes.wait_for("begin", "long")
        assert eventually(lambda: run.notes.all("end", "long") != [], 2 * TIMEOUT)
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert [(1, 0, 0)] == [note[3:] for note in run.notes.all("begin")]
    assert [] == [
        *run.events("worker_stalled"),
        *run.child_events("worker-1", "lease_lost"),
        *run.child_events("worker-2", "lease_lost"),
    ]


# --- silence ---

HANGS = {"deadlock": "deadlock", "silent": "silent", "busy_in_c": "busy_in_c"}


@pytest.mark.parametrize("how", HANGS)
def test_one_that_hangs_is_replaced_with_its_stacks_saved_and_its_message_runs_again(
    longwatch_bin: Path, tmp_path: Path, how: str
) -> None:
    with start_worker(longwatch_bin, tmp_path, env={"THRESHOLD": str(THRESHOLD)}) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "bad", "do": how, "times": 1})
        stalled = run.wait_for_event("worker_stalled", program="worker", pid=first)
        assert first == run.wait_for_event("health_check_restart", restart=True)["pid"]
        again = run.notes.wait_for("end", "bad")
        assert first != again.pid == run.pid_of("worker", start=2)
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert (2, 0, 1) == again[3:]
    assert (THRESHOLD, 1) == (stalled["threshold"], len(stalled["message_ids"]))
    assert f"in {how}" in stacks(run)
    assert "gave no beat" in stacks(run)


def stop_after_a_beat_of_the_engine(pid: int, runtime: Path) -> None:
    """Stop the process while the beat of its row is the oldest, so that this row is to blame."""

    def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        assert eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        [page] = read_beat_pages(runtime)
        if any(slot.row and slot.beat_at < page.beat_at for slot in page.slots):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    assert eventually(stopped)


def test_one_that_is_stopped_is_replaced_and_what_the_kernel_knows_of_it_is_saved(
    longwatch_bin: Path, tmp_path: Path, runtime: Path
) -> None:
    env = {"THRESHOLD": str(THRESHOLD), "XDG_RUNTIME_DIR": str(runtime)}
    with start_worker(longwatch_bin, tmp_path, env=env) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "wait", "until": "go", "every": 0.5})
        run.notes.wait_for("begin", "a")
        stop_after_a_beat_of_the_engine(first, runtime)
        run.wait_for_event("worker_stalled", program="worker", pid=first)
        (tmp_path / "go").touch()
        again = run.notes.wait_for("end", "a")
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert (2, 0, 1) == again[3:]
    assert "State:\tT (stopped)" in stacks(run)
    assert "wchan: " in stacks(run)


def test_the_watchdog_inside_may_be_the_first_to_bite(longwatch_bin: Path, tmp_path: Path) -> None:
    """It looks as often as its parent does."""
    quick = (
        "quick = LoopGroup([jobs], watchdog_threshold=THRESHOLD, watchdog_interval=0.2, "
        "max_processing_seconds=0.1)\n"
    )
    write_app(tmp_path, quick)
    with start_worker(longwatch_bin, tmp_path, target="app:quick", env={"THRESHOLD": "1.5"}) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "bad", "do": "deadlock", "times": 1})
        assert first == run.wait_for_event("health_check_restart", restart=True)["pid"]
        again = run.notes.wait_for("end", "bad")
        run.stop_cleanly()
    assert (2, 0, 1) == again[3:]
    saved = "".join(path.read_text() for path in (run.state_dir / "crashes").iterdir())
    assert "in deadlock" in saved


# --- death ---


def test_what_a_killed_one_held_is_released_by_its_parent_and_runs_again(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "a", "do": "wait", "until": "go"})
        run.notes.wait_for("begin", "a")
        os.kill(first, signal.SIGKILL)
        assert 1 == run.wait_for_event("worker_rows_reclaimed", program="worker", pid=first)["rows"]
        assert "signal 9" == run.wait_for_event("unexpected_exit", pid=first)["cause"]
        second = run.notes.wait_for("begin", "a", times=2)
        (tmp_path / "go").touch()
        run.notes.wait_for("end", "a")
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert run.pid_of("worker", start=2) == second.pid
    assert (2, 0, 1) == second[3:]


def test_the_message_of_a_killed_one_runs_elsewhere(longwatch_bin: Path, tmp_path: Path) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        pids = run.joined_pids("worker-1", "worker-2")
        send(tmp_path, {"id": "a", "do": "wait", "until": "go"})
        first = run.notes.wait_for("begin", "a")
        os.kill(first.pid, signal.SIGKILL)
        second = run.notes.wait_for("begin", "a", times=2)
        (tmp_path / "go").touch()
        run.notes.wait_for("end", "a")
        name = f"worker-{pids.index(first.pid) + 1}"
        assert first.pid != run.pid_of(name, start=2)
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert first.pid in pids
    assert first.pid != second.pid
    assert [] == [
        each for each in run.matching_events("program_started", start=2) if each["program"] != name
    ]


def test_with_its_parent_killed_no_process_is_left_and_another_worker_takes_over(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        run.joined_pids("worker-1", "worker-2")
        below = psutil.Process(run.pid).children(recursive=True)
        send(tmp_path, *({"id": name, "do": "wait", "until": "go"} for name in ("a", "b")))
        firsts = [run.notes.wait_for("begin", name).pid for name in ("a", "b")]
        assert {*firsts} <= {process.pid for process in below}
        with start_worker(longwatch_bin, tmp_path, "--state-dir", "other") as other:
            [successor] = other.joined_pids("worker")
            run.signal(signal.SIGKILL)
            deadline = time.monotonic() + TIMEOUT
            assert [] == [process for process in below if not wait_for_exit(process.pid, deadline)]
            (tmp_path / "go").touch()
            ends = [run.notes.wait_for("end", name) for name in ("a", "b")]
            assert [successor] * 2 == [end.pid for end in ends]
            assert eventually(lambda: nothing_is_left(tmp_path))
            other.stop_cleanly()


# --- a parent that does nothing ---


def trusted_until(runtime: Path) -> list[float]:
    """Until when each process trusts its leases, the latest last."""
    return sorted(page.trusted_until for page in read_beat_pages(runtime))


def test_a_parent_that_is_stopped_for_longer_than_the_lease_costs_nothing(
    longwatch_bin: Path, tmp_path: Path, runtime: Path
) -> None:
    """Its processes renew for themselves."""
    with start_worker(
        longwatch_bin,
        tmp_path,
        "--processes",
        "2",
        env={"XDG_RUNTIME_DIR": str(runtime), "THRESHOLD": "5"},
    ) as run:
        run.joined_pids("worker-1", "worker-2")
        assert eventually(lambda: all(trusted_until(runtime))), (
            "it has renewed; stopped in that it would hold the SQLite file"
        )
        send(tmp_path, {"id": "a", "do": "wait", "until": "go"})
        run.notes.wait_for("begin", "a")
        run.signal(signal.SIGSTOP)
        over = time.monotonic() + WORKER_LEASE.lease_seconds
        try:
            assert eventually(lambda: time.monotonic() > over, 2 * TIMEOUT)
            assert trusted_until(runtime)[-1] > over
        finally:
            run.signal(signal.SIGCONT)
        (tmp_path / "go").touch()
        run.notes.wait_for("end", "a")
        assert eventually(lambda: nothing_is_left(tmp_path))
        run.stop_cleanly()
    assert [(1, 0, 0)] == [note[3:] for note in run.notes.all("begin")]
    assert [] == [
        *run.events("worker_stalled"),
        *run.events("unexpected_exit"),
        *run.events("health_check_restart"),
    ]
