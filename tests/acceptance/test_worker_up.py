"""`[worker.NAME]` in longwatch.toml: worker processes among the programs that `longwatch up`
keeps up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from polling import eventually
from run_process import run_longwatch
from up_process import NO_BACKOFF, NOTIFY_PRELUDE, SLEEPER, Facts, UpProcess, py, sh, start_up
from worker_process import (
    MAX_BACKLOG,
    Notes,
    Sender,
    is_drained,
    most_down,
    opened_mailbox,
    store_url,
    write_app,
    write_workers,
)

JOBS: Facts = {"target": "app:group", **NO_BACKOFF}
SEVERAL: Facts = {**JOBS, "processes": 3}
NAMES = ("jobs-1", "jobs-2", "jobs-3")


@contextmanager
def up(
    longwatch: Path,
    cwd: Path,
    workers: dict[str, Facts],
    programs: dict[str, Facts] | None = None,
    *,
    threshold: float = 60.0,
) -> Iterator[UpProcess]:
    """`longwatch up` with these workers, which run the application of these tests."""
    if not (cwd / "app.py").exists():
        write_app(cwd)
    write_workers(cwd, workers, programs)
    with start_up(
        longwatch, cwd, env={"STORE": store_url(cwd), "THRESHOLD": str(threshold)}
    ) as run:
        yield run


def joined(run: UpProcess, *names: str, times: int = 1) -> list[int]:
    return [
        int(run.wait_for_event("worker_joined", program=name, times=times)["pid"]) for name in names
    ]


# --- beside programs ---


def test_workers_run_beside_programs_and_are_told_of_like_them(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    notes = Notes(tmp_path)
    with up(
        longwatch_bin, tmp_path, {"jobs": {**JOBS, "processes": 2}, "one": JOBS}, {"web": SLEEPER}
    ) as run:
        pids = joined(run, "jobs-1", "jobs-2", "one")
        assert all(
            run.wait_for_status(name, state="up", ready=True)
            for name in ("jobs-1", "jobs-2", "one", "web")
        )
        with opened_mailbox(store_url(tmp_path)) as mailbox:
            mailbox.send_many([{"id": f"{number}", "do": "nap"} for number in range(60)])
            assert eventually(lambda: is_drained(mailbox))
        table = run.run_command("status").stdout
        run.stop_cleanly()
    assert [] == [name for name in ("jobs-1", "jobs-2", "one", "web") if name not in table]
    assert 60 == len({note.job for note in notes.all("end")})
    assert {note.pid for note in notes.all("end")} <= {*pids}
    assert {"exit 0"} == {
        record["cause"] for record in run.events("shutdown_complete") if record["program"] != "web"
    }
    for name in ("jobs-1", "jobs-2", "one"):
        assert "group_stopped" in (run.logs / f"{name}.log").read_text()


def test_a_worker_starts_when_what_it_depends_on_is_ready(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    slow = py(f"{NOTIFY_PRELUDE}until('go')\nnotify('READY=1')\ntime.sleep(1000)\n", ready="notify")
    with up(longwatch_bin, tmp_path, {"jobs": {**JOBS, "depends_on": ["db"]}}, {"db": slow}) as run:
        run.wait_for_event("program_started", program="db")
        assert "pending" == run.wait_for_status("jobs", state="pending")["state"]
        (tmp_path / "go").touch()
        joined(run, "jobs")
        run.stop_cleanly()
    told = [
        record["event"]
        for record in run.events()
        if record["event"] in {"program_ready", "program_started"}
    ]
    assert ["program_started", "program_ready", "program_started", "program_ready"] == told


# --- faults ---


def test_a_poison_message_is_dead_after_three_stalls_and_its_neighbour_is_not_blamed(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    """The neighbour is in the same process, works and beats, and is begun once more after the
    first stall: that is all. Its last chance the poison has in a process of its own.
    """
    notes = Notes(tmp_path)
    write_app(tmp_path, "jobs.concurrency = 2\n")
    with (
        up(longwatch_bin, tmp_path, {"jobs": JOBS}, threshold=2.0) as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        joined(run, "jobs")
        mailbox.send_many(
            [{"id": "poison", "do": "deadlock"}, {"id": "good", "do": "wait", "until": "go"}]
        )
        assert notes.wait_for("begin", "poison").pid == notes.wait_for("begin", "good").pid
        first = run.wait_for_event("worker_stalled", program="jobs")
        (tmp_path / "go").touch()
        run.wait_for_event("worker_stalled", program="jobs", times=2)
        run.wait_for_event("worker_stalled", program="jobs-suspect-1")
        run.wait_for_event("health_check_restart", program="jobs-suspect-1")
        assert eventually(lambda: mailbox.stats().dead == 1)
        [dead] = mailbox.backend.dead_letters()
        notes.wait_for("end", "good")
        assert eventually(lambda: is_drained(mailbox))
        run.stop_cleanly()
    assert ("poison", 3, 0) == (dead.reason, dead.crashes, dead.failures)
    assert [(0, 0), (0, 1), (0, 2)] == [
        (note.failures, note.crashes) for note in notes.all("begin", "poison")
    ]
    assert {(0, 0)} == {(note.failures, note.crashes) for note in notes.all("begin", "good")}
    assert 1 == len(first["message_ids"])
    stacks = [Path(each["stacks"]) for each in run.events("worker_stalled")]
    assert [run.state_dir / "crashes"] * 3 == [path.parent for path in stacks]
    assert all("in deadlock" in path.read_text() for path in stacks)
    assert 3 == len(run.events("health_check_restart"))


def test_a_critical_worker_that_crashes_too_often_ends_everything(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path, "if sys.argv[1:2] == ['run']: raise RuntimeError('no')\n")
    worker = {**JOBS, "critical": True, "breaker": {"restarts": 2}}
    with up(longwatch_bin, tmp_path, {"jobs": worker}, {"web": SLEEPER}) as run:
        assert 100 == run.wait()
    assert ["exit 1"] * 3 == [record["cause"] for record in run.events("unexpected_exit")]
    assert b"RuntimeError: no" in run.out.text


def test_the_parent_of_a_first_worker_that_a_reload_brings_keeps_its_leases(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    notes = Notes(tmp_path)
    with (
        up(longwatch_bin, tmp_path, {}, {"web": SLEEPER}) as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        run.wait_for_event("program_started", program="web")
        write_workers(tmp_path, {"jobs": JOBS}, {"web": SLEEPER})
        run.signal(signal.SIGHUP)
        assert ["jobs"] == run.wait_for_event("config_reloaded")["added"]
        [first] = joined(run, "jobs")
        mailbox.send({"id": "a", "do": "wait", "until": "go"})
        notes.wait_for("begin", "a")
        os.kill(first, signal.SIGKILL)
        assert 1 == run.wait_for_event("worker_rows_reclaimed", pid=first)["rows"]
        (tmp_path / "go").touch()
        notes.wait_for("end", "a")
        run.stop_cleanly()


# --- commands ---


def test_restart_of_a_worker_replaces_its_processes_one_after_another_under_load(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    notes = Notes(tmp_path)
    with (
        up(longwatch_bin, tmp_path, {"jobs": SEVERAL}) as run,
        opened_mailbox(store_url(tmp_path)) as mailbox,
    ):
        firsts = joined(run, *NAMES)
        sender = Sender(mailbox, notes)
        with sender.sending(), ThreadPoolExecutor(1) as aside:
            assert eventually(lambda: len(notes.all("end")) > MAX_BACKLOG)
            restarting = aside.submit(run.run_command, "restart", "jobs")
            seconds = joined(run, *NAMES, times=2)
            done = restarting.result()
        assert eventually(lambda: is_drained(mailbox))
        dead = mailbox.stats().dead
        run.stop_cleanly()
    assert (0, "") == (done.returncode, done.stderr)
    assert not {*firsts} & {*seconds}
    assert (
        sorted(sender.sent)
        == sorted(note.job for note in notes.all("begin"))
        == sorted(note.job for note in notes.all("end"))
    )
    assert ({(0, 0)}, 0) == ({(note.failures, note.crashes) for note in notes.all("begin")}, dead)
    assert [2] * 3 == [len(run.matching_events("program_started", program=name)) for name in NAMES]
    assert 1 == most_down(run.events())


def test_a_name_stands_for_all_processes_of_a_worker_and_each_has_its_own(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with up(longwatch_bin, tmp_path, {"jobs": {**JOBS, "processes": 2}}, {"web": SLEEPER}) as run:
        joined(run, "jobs-1", "jobs-2")
        run.request("stop", "jobs")
        assert [None, None] == [run.pids()[name] for name in ("jobs-1", "jobs-2")]
        assert run.pids()["web"] is not None
        run.request("start", "jobs", ready=True)
        first, second = (run.pids()[name] for name in ("jobs-1", "jobs-2"))
        assert None not in {first, second}
        run.request("restart", "jobs-2", ready=True)
        assert first == run.pids()["jobs-1"]
        assert second != run.pids()["jobs-2"]
        refused = run.run_command("restart", "jbos")
        run.stop_cleanly()
    assert 2 == refused.returncode
    assert "did you mean jobs?" in refused.stderr


# --- other plans ---


def test_a_reload_brings_other_processes_and_one_that_has_faults_changes_nothing(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    with up(longwatch_bin, tmp_path, {"jobs": {**JOBS, "processes": 2}}) as run:
        firsts = joined(run, "jobs-1", "jobs-2")
        write_workers(tmp_path, {"jobs": {**JOBS, "processes": 3}})
        run.signal(signal.SIGHUP)
        told = run.wait_for_event("config_reloaded")
        assert (["jobs-3"], [], []) == (told["added"], told["changed"], told["removed"])
        joined(run, "jobs-3")
        write_workers(tmp_path, {"jobs": {**JOBS, "target": "app:gruop"}})
        run.signal(signal.SIGHUP)
        misspelt = run.wait_for_event("config_reload_rejected")["reason"]
        write_app(tmp_path, "1 / 0\n")
        write_workers(tmp_path, {"jobs": JOBS})
        run.signal(signal.SIGHUP)
        broken = run.wait_for_event("config_reload_rejected", times=2)["reason"]
        assert firsts == [run.pids()[name] for name in ("jobs-1", "jobs-2")]
        run.stop_cleanly()
    assert "worker.jobs.target: the module app has no 'gruop'; did you mean group?" in misspelt
    assert "worker.jobs.target: 'app:group' cannot be imported: ZeroDivisionError" in broken


# --- what cannot be ---

MARK = {"mark": {"command": ["touch", "started"]}}
FAULTS: dict[str, tuple[dict[str, Facts], dict[str, Facts], str]] = {
    "a command": (
        {"jobs": {**JOBS, "command": ["true"]}},
        {},
        "worker.jobs.command: is for programs; name the group with target",
    ),
    "a program's name": (
        {"jobs": JOBS},
        {"jobs": SLEEPER},
        "worker.jobs: is called jobs, which is the name of a program",
    ),
    "a program's name for one": (
        {"jobs": SEVERAL},
        {"jobs-2": SLEEPER},
        "worker.jobs: has a process jobs-2, which is the name of a program",
    ),
    "no target": ({"jobs": {"processes": 2}}, {}, "worker.jobs.target: is missing"),
    "no such module": (
        {"jobs": {"target": "nothing:group"}},
        {},
        "worker.jobs.target: the module 'nothing'",
    ),
    "no such name": (
        {"jobs": {"target": "app:gruop"}},
        {},
        "app has no 'gruop'; did you mean group?",
    ),
    "not a group": (
        {"jobs": {"target": "app:STORE"}},
        {},
        "worker.jobs.target: 'app:STORE' is of type str",
    ),
    "no such directory": (
        {"jobs": {**JOBS, "cwd": "missing"}},
        {},
        "worker.jobs.cwd: the working directory",
    ),
    "no such dependency": (
        {"jobs": {**JOBS, "depends_on": ["db"]}},
        {},
        "worker.jobs.depends_on: waits for 'db'",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_told_in_one_line_and_nothing_is_started(
    longwatch_bin: Path, tmp_path: Path, fault: str
) -> None:
    workers, programs, words = FAULTS[fault]
    write_app(tmp_path)
    write_workers(tmp_path, workers, {**MARK, **programs})
    done = run_longwatch(longwatch_bin, tmp_path, "up", env={"STORE": store_url(tmp_path)})
    assert (2, "") == (done.returncode, done.stdout), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("longwatch: longwatch.toml: ")
    assert words in line
    assert not (tmp_path / "started").exists()


def test_faults_of_workers_and_programs_are_told_together(
    longwatch_bin: Path, tmp_path: Path
) -> None:
    write_app(tmp_path)
    workers: dict[str, Facts] = {"a": {"target": "nothing:group"}, "b": {"target": "app:gruop"}}
    write_workers(tmp_path, workers, {**MARK, "c": sh("true", cwd="missing")})
    done = run_longwatch(longwatch_bin, tmp_path, "up", env={"STORE": store_url(tmp_path)})
    told = sorted(
        line.split(": ")[2] for line in done.stderr.splitlines() if "longwatch.toml: " in line
    )
    assert ["program.c.cwd", "worker.a.target", "worker.b.target"] == told
    assert 2 == done.returncode
