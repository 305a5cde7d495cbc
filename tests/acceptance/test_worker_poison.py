"""Messages that kill their process: each is given up by itself, and everything else goes on."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from longwatch.mailbox import Mailbox
from polling import eventually
from run_process import TIMEOUT, wait_for_exit
from up_process import NO_BACKOFF, start_up
from worker_process import (
    Notes,
    is_drained,
    opened_mailbox,
    send,
    start_worker,
    store_url,
    write_app,
    write_workers,
)

MORE = """
def die(context, job):
    os.kill(os.getpid(), signal.SIGKILL)

def leave(context, job):
    os._exit(job["code"])

def die_twice(context, job):
    if context._row_context.claimed.item.crashes < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    wait(context, job)

mail = Jobs(requests=open_mailbox(STORE, "mail"), name="mail", concurrency=16)
both = LoopGroup([jobs, mail], watchdog_threshold=THRESHOLD, max_processing_seconds=0.1)
"""
MESSAGES = 1000
POISONS = (100, 350, 600, 850)
MINUTES = 180.0


def short_messages(count: int, *poisons: int) -> list[dict[str, Any]]:
    return [
        {"id": str(number), "do": "die" if number in poisons else "done"} for number in range(count)
    ]


def is_over(mailbox: Mailbox[Any], dead: int) -> bool:
    return mailbox.stats().dead == dead and is_drained(mailbox)


def wait_until_over(mailbox: Mailbox[Any], dead: int) -> None:
    assert eventually(lambda: is_over(mailbox, dead), MINUTES), mailbox.stats()
    reasons = [(letter.reason, letter.crashes) for letter in mailbox.backend.dead_letters()]
    assert [("poison", 3)] * dead == reasons


def done_jobs(notes: Notes) -> set[str]:
    return {note.job for note in notes.all("end")}


def expected(count: int, *poisons: int) -> set[str]:
    return {str(number) for number in range(count) if number not in poisons}


# --- poison ---


def test_four_poisons_in_a_thousand_messages_are_given_up_and_the_worker_goes_on(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """996 are done, four are dead letters for `poison`, no other message is, and the breaker has
    not tripped.
    """
    write_app(tmp_path, MORE)
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        start_worker(longwatch_bin, tmp_path, "--processes", "2", env={"SLOTS": "4"}) as run,
    ):
        run.joined_pids("worker-1", "worker-2")
        mailbox.send_many(short_messages(MESSAGES, *POISONS))
        wait_until_over(mailbox, len(POISONS))
        mailbox.send({"id": "after", "do": "done"})
        run.notes.wait_for("end", "after")
        run.stop_cleanly()
    assert expected(MESSAGES, *POISONS) | {"after"} == done_jobs(run.notes)
    assert [] == run.events("circuit_breaker_tripped")


def test_poisons_under_up_are_given_up_and_their_processes_are_shown_only_while_they_run(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, MORE)
    write_workers(tmp_path, {"jobs": {"target": "app:group", **NO_BACKOFF}})
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        start_up(longwatch_bin, tmp_path, env={"STORE": store_url(tmp_path), "SLOTS": "4"}) as run,
    ):
        run.wait_for_event("worker_joined", program="jobs")
        mailbox.send_many(short_messages(200, 50, 120))
        wait_until_over(mailbox, 2)
        assert eventually(lambda: ["jobs"] == [*run.pids()])
        run.stop_cleanly()
    assert expected(200, 50, 120) == done_jobs(Notes(tmp_path))
    assert [] == run.events("circuit_breaker_tripped")
    assert run.matching_events("program_started", program="jobs-suspect-1")


def test_a_suspect_that_runs_for_long_holds_up_neither_its_own_mailbox_nor_another(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """It runs in a process of its own, which ends when it has nothing to do."""
    write_app(tmp_path, MORE)
    with (
        opened_mailbox(store_url(tmp_path)) as mailbox,
        opened_mailbox(store_url(tmp_path), "mail") as mail,
        start_worker(longwatch_bin, tmp_path, target="app:both", env={"SLOTS": "2"}) as run,
    ):
        run.joined_pids("worker")
        mailbox.send({"id": "long", "do": "die_twice", "until": "go"})
        suspect = run.notes.wait_for("begin", "long", times=3)
        for number in range(50):
            (mailbox, mail)[number % 2].send({"id": str(number), "do": "nap"})
        assert eventually(lambda: len(done_jobs(run.notes)) == 50)
        others = {note.pid for note in run.notes.all("end")}
        ready = run.wait_for_reply("/health/ready", lambda reply: reply.status == 200)
        (tmp_path / "go").touch()
        assert run.notes.wait_for("end", "long").pid == suspect.pid
        run.wait_for_event("clean_exit", pid=suspect.pid, program="worker-suspect-1")
        assert eventually(lambda: is_over(mailbox, 0))
        run.stop_cleanly()
    assert suspect.pid == run.pid_of("worker-suspect-1")
    assert suspect.pid not in others
    assert 200 == ready.status


def test_a_stop_lets_a_running_suspect_finish(longwatch_bin: Path, tmp_path: Path) -> None:
    write_app(tmp_path, MORE)
    with start_worker(longwatch_bin, tmp_path) as run:
        run.joined_pids("worker")
        send(tmp_path, {"id": "long", "do": "die_twice", "until": "go"})
        run.notes.wait_for("begin", "long", times=3)
        run.signal(signal.SIGTERM)
        run.wait_for_event("program_stopping", program="worker-suspect-1")
        (tmp_path / "go").touch()
        assert 0 == run.wait()
    assert ["long"] == [note.job for note in run.notes.all("end")]


def test_a_rolling_restart_asks_a_process_for_suspects_to_stop(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, MORE)
    with start_worker(longwatch_bin, tmp_path) as run:
        run.joined_pids("worker")
        send(tmp_path, {"id": "long", "do": "die_twice", "until": "go"})
        run.notes.wait_for("begin", "long", times=3)
        run.signal(signal.SIGHUP)
        run.wait_for_event("program_stopping", program="worker-suspect-1")
        (tmp_path / "go").touch()
        run.notes.wait_for("end", "long")
        run.wait_for_event("program_ready", program="worker", times=2)
        run.stop_cleanly()


# --- ends that nothing asked for ---


@pytest.mark.parametrize("code", [0, 2, 100])
def test_a_worker_whose_handler_ends_the_process_is_replaced(
    longwatch_bin: Path, tmp_path: Path, code: int
) -> None:
    write_app(tmp_path, MORE)
    with start_worker(longwatch_bin, tmp_path) as run:
        [first] = run.joined_pids("worker")
        send(tmp_path, {"id": "bad", "do": "leave", "code": code, "times": 1})
        ended = run.wait_for_event("unexpected_exit", pid=first)
        again = run.notes.wait_for("end", "bad")
        run.stop_cleanly()
    assert (f"exit {code}", True) == (ended["cause"], ended["restart"])
    assert (1, run.pid_of("worker", start=2)) == (again.crashes, again.pid)


def test_a_worker_that_another_program_terminates_is_replaced(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """It drains like on any SIGTERM, and its row is not blamed."""
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        pids = run.joined_pids("worker-1", "worker-2")
        send(tmp_path, {"id": "a", "do": "wait", "until": "go"})
        busy = run.notes.wait_for("begin", "a").pid
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        (tmp_path / "go").touch()
        assert busy == run.notes.wait_for("end", "a").pid
        again = [run.pid_of(name, start=2) for name in ("worker-1", "worker-2")]
        send(tmp_path, {"id": "b", "do": "done"})
        assert run.notes.wait_for("end", "b").pid in again
        run.stop_cleanly()
    ends = run.matching_events("unexpected_exit")
    assert [("exit 0", True)] * 2 == [(each["cause"], each["restart"]) for each in ends]


def test_a_worker_of_up_that_ends_unasked_is_replaced(longwatch_bin: Path, tmp_path: Path) -> None:
    write_app(tmp_path, MORE)
    write_workers(tmp_path, {"jobs": {"target": "app:group", **NO_BACKOFF}})
    with start_up(longwatch_bin, tmp_path, env={"STORE": store_url(tmp_path)}) as run:
        run.wait_for_event("worker_joined", program="jobs")
        send(tmp_path, {"id": "bad", "do": "leave", "code": 0, "times": 1})
        Notes(tmp_path).wait_for("end", "bad")
        second = int(run.wait_for_event("worker_joined", program="jobs", times=2)["pid"])
        os.kill(second, signal.SIGTERM)
        run.wait_for_event("worker_joined", program="jobs", times=3)
        run.stop_cleanly()
    assert 2 == len(run.matching_events("unexpected_exit", program="jobs", cause="exit 0"))


# --- everything is killed ---


def kill_everything(pid: int) -> None:
    """Parent, guardian and workers, at one moment."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for process in processes:
        process.suspend()
    for process in processes:
        process.kill()
    deadline = time.monotonic() + TIMEOUT
    assert all(wait_for_exit(process.pid, deadline) for process in processes[1:])


def counters(cwd: Path) -> list[tuple[int, int, int]]:
    with closing(sqlite3.connect(store_url(cwd).removeprefix("sqlite:///"))) as connection:
        return connection.execute(
            "SELECT crashes, lost, failures FROM longwatch_messages"
        ).fetchall()


def test_what_ran_when_everything_was_killed_is_lost_once_and_runs_at_the_same_time_again(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    names = ["a", "b", "c", "d"]
    env = {"SLOTS": str(len(names))}
    with start_worker(longwatch_bin, tmp_path, env=env) as run:
        run.joined_pids("worker")
        send(tmp_path, *({"id": name, "do": "wait", "until": "go"} for name in names))
        for name in names:
            run.notes.wait_for("begin", name)
        kill_everything(run.pid)
    with start_worker(longwatch_bin, tmp_path, env=env) as run:
        again = [run.notes.wait_for("begin", name, times=2) for name in names]
        assert [] == run.notes.all("end")
        assert [(0, 1, 0)] * len(names) == counters(tmp_path)
        (tmp_path / "go").touch()
        for name in names:
            run.notes.wait_for("end", name)
        run.stop_cleanly()
    assert 1 == len({note.pid for note in again})
    assert {2} == {note.attempt for note in again}
