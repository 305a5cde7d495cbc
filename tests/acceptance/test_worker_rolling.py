"""Processes replaced one after another while messages keep coming: none lost, none settled
twice, none the worse for it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from polling import eventually
from postgres_server import shared_server
from up_process import FROM_SOURCE, Facts
from worker_process import (
    MAX_BACKLOG,
    Sender,
    is_drained,
    migrate,
    most_down,
    opened_mailbox,
    start_worker,
    store_url,
    write_app,
)

NAMES = ("worker-1", "worker-2", "worker-3")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Facts]:
    """The command, and where the messages are. The wheel's environment has no driver for
    PostgreSQL.
    """
    write_app(tmp_path)
    if request.param == "sqlite":
        yield {
            "longwatch": request.getfixturevalue("longwatch_bin"),
            "env": {"STORE": store_url(tmp_path), "SLOTS": "2"},
        }
        return
    with shared_server().database() as url:
        yield {**FROM_SOURCE, "env": {"STORE": migrate(url), "SLOTS": "2"}}


def test_a_rolling_restart_under_load_costs_no_message_anything(
    tmp_path: Path, place: Facts
) -> None:
    longwatch, url = place.pop("longwatch"), place["env"]["STORE"]
    with (
        start_worker(longwatch, tmp_path, "--processes", "3", **place) as run,
        opened_mailbox(url) as mailbox,
    ):
        run.joined_pids(*NAMES)
        sender = Sender(mailbox, run.notes)
        with sender.sending():
            assert eventually(lambda: len(run.notes.all("end")) > MAX_BACKLOG)
            run.signal(signal.SIGHUP)
            for name in NAMES:
                run.wait_for_event("worker_joined", program=name, times=2)
        assert eventually(lambda: is_drained(mailbox))
        assert eventually(
            lambda: run.metric("longwatch_mailbox_acked_total", loop="jobs") == len(sender.sent)
        )
        spent = [
            run.metric(f"longwatch_mailbox_{what}_total", loop="jobs")
            for what in ("nacked", "dead_lettered", "refused")
        ]
        dead = mailbox.stats().dead
        run.stop_cleanly()
    assert sorted(sender.sent) == sorted(note.job for note in run.notes.all("begin"))
    assert sorted(sender.sent) == sorted(note.job for note in run.notes.all("end"))
    assert {(0, 0)} == {(note.failures, note.crashes) for note in run.notes.all("begin")}
    assert ([None] * 3, 0) == (spent, dead)
    assert [2] * 3 == [len(run.matching_events("program_started", program=name)) for name in NAMES]
    assert 1 == most_down(run.events())
    assert {"exit 0"} == {record["cause"] for record in run.events("stopped")}


def test_whoever_asks_again_meanwhile_gets_another_round_when_the_first_is_over(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        run.joined_pids("worker-1", "worker-2")
        for _ in range(2):
            run.signal(signal.SIGHUP)
            run.wait_for_event("program_stopping", program="worker-1")
        run.wait_for_event("worker_joined", program="worker-2", times=3)
        run.stop_cleanly()
    assert [3, 3] == [
        len(run.matching_events("program_started", program=name))
        for name in ("worker-1", "worker-2")
    ]
    assert 1 == most_down(run.events())


BREAKS = "if sys.argv[1:2] == ['run'] and os.path.exists('broken'):\n    sys.exit(3)\n"


def test_when_one_does_not_come_up_again_the_others_are_left_as_they_are(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, BREAKS)
    with (
        start_worker(longwatch_bin, tmp_path, "--processes", "3") as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        run.joined_pids(*NAMES)
        (tmp_path / "broken").touch()
        run.signal(signal.SIGHUP)
        run.wait_for_event("unexpected_exit", program=NAMES[0])
        mailbox.send({"id": "a", "do": "done"})
        run.notes.wait_for("end", "a")
        (tmp_path / "broken").unlink()
        run.wait_for_event("worker_joined", program=NAMES[0], times=2)
        run.stop_cleanly()
    assert [1, 1] == [
        len(run.matching_events("program_started", program=name)) for name in NAMES[1:]
    ]


def test_a_group_that_cannot_be_imported_any_more_is_told_and_nobody_is_touched(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with start_worker(longwatch_bin, tmp_path, "--processes", "2") as run:
        run.joined_pids("worker-1", "worker-2")
        write_app(tmp_path, "1 / 0\n")
        run.signal(signal.SIGHUP)
        reason = run.wait_for_event("config_reload_rejected")["reason"]
        run.stop_cleanly()
    assert "'app:group' cannot be imported: ZeroDivisionError: division by zero" in reason
    assert [1, 1] == [
        len(run.matching_events("program_started", program=name))
        for name in ("worker-1", "worker-2")
    ]


def test_what_is_in_flight_is_finished_before_its_process_is_replaced(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with (
        start_worker(longwatch_bin, tmp_path, "--processes", "3") as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        pids = run.joined_pids(*NAMES)
        mailbox.send_many([{"id": name, "do": "wait", "until": f"go-{name}"} for name in "abc"])
        firsts = {name: run.notes.wait_for("begin", name).pid for name in "abc"}
        assert sorted(pids) == sorted(firsts.values())
        run.signal(signal.SIGHUP)
        for number, name in enumerate(NAMES):
            run.wait_for_event("program_stopping", program=name)
            [job] = [job for job, pid in firsts.items() if pid == pids[number]]
            (tmp_path / f"go-{job}").touch()
            assert pids[number] == run.notes.wait_for("end", job).pid
            run.wait_for_event("worker_joined", program=name, times=2)
        run.stop_cleanly()
    assert [(1, 0, 0)] * 3 == [note[3:] for note in run.notes.all("end")]
    assert 1 == most_down(run.events())


LINGERS = "def linger(context, job):\n    wait(context, job)\n    time.sleep(1.0)\n"


def test_a_shutdown_during_a_rolling_restart_leaves_work_in_flight_its_grace(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The process that is being replaced gets no second signal, which would end it at once. The
    round ends without a word, although its process does not come back.
    """
    write_app(tmp_path, LINGERS)
    with (
        start_worker(longwatch_bin, tmp_path, "--processes", "2") as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        run.joined_pids(*NAMES[:2])
        mailbox.send_many([{"id": name, "do": "linger", "until": f"go-{name}"} for name in "ab"])
        jobs = {run.notes.wait_for("begin", name).pid: name for name in "ab"}
        run.signal(signal.SIGHUP)
        first = run.wait_for_event("program_stopping")["pid"]
        run.signal(signal.SIGTERM)
        [second] = jobs.keys() - {first}
        run.wait_for_event("program_stopping", pid=second)
        for pid in (first, second):
            (tmp_path / f"go-{jobs[pid]}").touch()
            assert "exit 0" == run.wait_for_event("shutdown_complete", pid=pid)["cause"]
        assert 0 == run.wait()
        assert is_drained(mailbox)
    assert [(1, 0, 0)] * 2 == [note[3:] for note in run.notes.all("end")]
    assert [first, second] == [told["pid"] for told in run.events("program_stopping")]
    assert [] == run.events("config_reload_rejected")
    assert b"Traceback" not in run.err.text
