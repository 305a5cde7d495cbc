"""`longwatch doctor` against real stores, directories and supervisors that are not as they should
be.
"""

from __future__ import annotations

import json
import socket
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_supervisor import fake_supervisor, program
from longwatch.core.masking import mask_text
from longwatch.mailbox.url import open_mailbox, open_store
from longwatch.observe.event_log import timestamp
from longwatch.observe.logfile import LogFile
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.supervisor.supervisor_lock import SupervisorLock
from postgres_server import make_server, shared_server
from redis_server import FSYNC_ALWAYS, running_server
from run_process import TIMEOUT, clean_environment
from small_disk import mount, small_filesystem
from up_process import unused_port, write_config

Facts = dict[str, Any]


class Doctor:
    """A directory in which `longwatch doctor --json` is called."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self.report: Facts = {}

    def __call__(self, *words: str | Path, code: int = 0, **env: str) -> list[Facts]:
        """The findings that are not ok."""
        done = subprocess.run(
            [sys.executable, "-m", "longwatch", "doctor", "--json", *words],
            check=False,
            cwd=self.cwd,
            env=clean_environment(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
        assert (code, "") == (done.returncode, done.stderr), done.stdout
        self.report = json.loads(done.stdout)
        return [each for each in self.report["findings"] if each["status"] != "ok"]

    def texts(self, check: str, *words: str | Path, code: int = 1) -> list[str]:
        """What is wrong with one check, each with its cure."""
        found = self(*words, code=code)
        assert all(each["cure"] for each in found)
        return [
            f"{each['status']}: {each['text']} → {each['cure']}"
            for each in found
            if each["check"] == check
        ]

    def ok(self, check: str) -> list[str]:
        """What was fine in the last report."""
        findings = self.report["findings"]
        return [
            each["text"] for each in findings if (each["check"], each["status"]) == (check, "ok")
        ]


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    return Doctor(tmp_path)


def sent(url: str) -> str:
    """A store with one message."""
    with open_store(url) as store:
        open_mailbox(store, "jobs").send(1)
    return url


# --- SQLite and directories ---


def test_a_sqlite_store_in_order_is_reported_so(doctor: Doctor, tmp_path: Path) -> None:
    url = sent(f"sqlite:///{tmp_path}/jobs.db")
    assert [] == doctor.texts(url, "--store", url, code=0)
    [text] = doctor.ok(url)
    assert text.startswith("journal wal, schema ")
    missing = f"sqlite:///{tmp_path}/none.db"
    doctor("--store", missing)
    assert ["does not exist yet; the first write makes it"] == doctor.ok(missing)
    assert not (tmp_path / "none.db").exists()


def test_faults_of_a_sqlite_file_are_found(doctor: Doctor, tmp_path: Path) -> None:
    url = sent(f"sqlite:///{tmp_path}/jobs.db")
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA journal_mode = DELETE")
        raw.execute("UPDATE longwatch_schema SET version = version + 50")
        raw.commit()
    path.chmod(0o644)
    found = doctor.texts(url, "--store", url)
    assert 3 == len(found), found
    assert found[0].endswith("→ upgrade Longwatch here")
    assert "journal_mode is delete" in found[1]
    assert "other users may open it (mode 644)" in found[2]


def test_a_file_that_is_no_database_is_a_problem(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database at all" * 100)
    url = "sqlite:///jobs.db"
    [text] = doctor.texts(url, "--store", url)
    assert text.startswith("problem: cannot be read (file is not a database) →")


def test_an_unsafe_state_directory_and_open_files_are_found(doctor: Doctor, tmp_path: Path) -> None:
    state = tmp_path / ".longwatch"
    (state / "logs").mkdir(parents=True)
    (state / "page.token").touch(0o644)
    (state / "page.token").chmod(0o644)
    [text] = doctor.texts("permissions", code=0)
    assert text.startswith("warning: .longwatch/page.token is open to other users (mode 644)")
    state.chmod(stat.S_IRWXU | stat.S_IRWXO)
    [text] = doctor.texts("permissions")
    assert "can be written to by every user (mode 707)" in text


def test_a_directory_in_which_no_file_can_be_made_is_found(doctor: Doctor) -> None:
    [text] = doctor.texts("fsync", "--state-dir", "/proc/none")
    assert text.startswith(("problem: a file in /proc cannot be", "problem: /proc cannot be"))


def test_a_read_only_disk_is_one_problem_and_not_one_of_permissions(
    doctor: Doctor, tmp_path: Path
) -> None:
    with small_filesystem(tmp_path) as disk:
        mount("-o", "remount,ro", str(disk))
        [text] = doctor.texts("disks", "--state-dir", disk / "state")
        assert f"{disk} is on a read-only file system" in text
        assert 1 == doctor.report["problems"], doctor.report


def test_a_damaged_ledger_is_remembered(doctor: Doctor, tmp_path: Path) -> None:
    state = tmp_path / ".longwatch"
    state.mkdir(0o700)
    (state / "supervisor.db.damaged-20260101T000000Z").touch()
    [text] = doctor.texts("logs", code=0)
    assert "the ledger was damaged before: supervisor.db.damaged-20260101T000000Z" in text


# --- servers ---


def test_a_postgresql_server_without_tables_and_then_with_an_old_schema(doctor: Doctor) -> None:
    server = shared_server()
    with server.database() as url:
        [text] = doctor.texts(mask_text(url), "--store", url)
        assert text.startswith("problem: has no tables yet; this version needs ")
        assert "→ longwatch db migrate --store postgresql://" in text
        migrate(url)
        assert [] == doctor.texts(mask_text(url), "--store", url, code=0)
        [fine] = doctor.ok(mask_text(url))
        assert fine.startswith("PostgreSQL ")
        database = url.rpartition("/")[2]
        server.sql("DELETE FROM longwatch_schema WHERE version > 5", database)
        [text] = doctor.texts(mask_text(url), "--store", url)
        assert text.startswith("problem: has schema 5; this version needs ")


def test_unsafe_settings_of_a_postgresql_server_are_found(doctor: Doctor) -> None:
    server = make_server(
        fsync="off",
        synchronous_commit="off",
        autovacuum="off",
        idle_in_transaction_session_timeout="5s",
    )
    server.start()
    url = server.url()
    found = doctor.texts(mask_text(url), "--store", url)
    assert [
        "problem: fsync is off, so a crash of its machine may damage the database → set fsync = on",
        (
            "problem: synchronous_commit is off, so a crash of the server may lose the last sends "
            "and settles → set synchronous_commit = on"
        ),
    ] == found[:2]
    assert ["warning: autovacuum", "warning: idle_in_transaction_session_timeout"] == [
        " ".join(text.split()[:2]) for text in found[3:]
    ]


def test_servers_that_freeze_do_not_hold_up_the_other_checks(doctor: Doctor) -> None:
    server = make_server()
    server.start()
    with server.frozen(), silent_server() as port:
        urls = [server.url(), f"redis://127.0.0.1:{port}/0"]
        found = doctor(*(word for url in urls for word in ("--store", url)), code=1)
    assert [mask_text(url) for url in urls] == [each["check"] for each in found]
    assert all(each["text"].startswith("cannot be asked (") for each in found)
    assert doctor.ok("clocks")


def test_unsafe_settings_of_a_redis_server_are_found(doctor: Doctor) -> None:
    with running_server({"appendonly": "no", "maxmemory-policy": "allkeys-lru"}) as server:
        found = doctor.texts(server.url, "--store", server.url)
    assert [
        (
            "problem: maxmemory-policy is allkeys-lru, so messages may be evicted → set it to "
            "noeviction"
        ),
        (
            "problem: appendonly is off, so a restart loses messages since the last snapshot → set "
            "it to yes"
        ),
    ] == found


def test_a_redis_server_in_order_is_reported_so_and_another_layout_is_not(doctor: Doctor) -> None:
    with running_server(FSYNC_ALWAYS) as server:
        assert [] == doctor.texts(server.url, "--store", server.url, code=0)
        sent(server.url)
        assert [] == doctor.texts(server.url, "--store", server.url, code=0)
        with server.client() as client:
            client.hset("longwatch:mailboxes", "schema", 1)
        [text] = doctor.texts(server.url, "--store", server.url)
    assert text.startswith("problem: its keys have layout 1, this version needs ")


def test_a_server_that_is_gone_is_a_problem_whose_text_hides_the_password(doctor: Doctor) -> None:
    port = unused_port()
    urls = [f"{scheme}://u:secret@127.0.0.1:{port}/0" for scheme in ("postgresql", "redis")]
    found = doctor(*(word for url in urls for word in ("--store", url)), code=1)
    assert ["problem", "problem"] == [each["status"] for each in found]
    assert "secret" not in json.dumps(doctor.report)


# --- settings and what runs ---


GROUP = """
from longwatch import open_mailbox, open_store
from longwatch.runtime import LoopGroup, MainLoop

class Pages(MainLoop[str, None]):
    def handle(self, request, context):
        pass

group = LoopGroup(
    [Pages(requests=open_mailbox("memory://", "pages"), name="pages")],
    watchdog_threshold=60, watchdog_interval=10, max_processing_seconds=600,
)
"""


def test_unsafe_timeouts_of_a_group_of_the_file_are_found(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(GROUP)
    (tmp_path / "longwatch.toml").write_text(
        '[worker.pages]\ntarget = "shop:group"\nstop_grace = 5\n'
        '[worker.gone]\ntarget = "nowhere:group"\n'
    )
    unsafe, killed, gone = doctor.texts("groups")
    assert "worker pages: watchdog_threshold 60 s is not more than wait_time_seconds" in unsafe
    assert "→ set it above 615 in LoopGroup(…)" in unsafe
    assert "stop_grace (5 s) is not more than the group's shutdown_timeout (30 s)" in killed
    assert "worker gone: " in gone


def test_a_busy_port_and_faults_of_the_file_are_found(doctor: Doctor, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_config(tmp_path, {"web": {"command": ["true"]}}, supervisor={"metrics_port": port})
        [text] = doctor.texts("ports")
    assert f"port {port}, for metrics_port of [supervisor], is not free" in text
    (tmp_path / "longwatch.toml").write_text('[program.web]\ncomand = "true"\n')
    assert any("comand" in text for text in doctor.texts("settings"))


def test_one_free_port_is_one_port(doctor: Doctor, tmp_path: Path) -> None:
    write_config(tmp_path, {}, supervisor={"metrics_port": unused_port()})
    doctor()
    assert ["1 port of the settings is free"] == doctor.ok("ports")


def test_a_container_runtime_that_does_not_answer_is_a_problem(
    doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "longwatch.toml").write_text(
        '[containers]\nruntime = "docker"\n[container.agent]\nimage = "localhost/bb:1"\n'
    )
    found = doctor(code=1, DOCKER_HOST=f"unix://{tmp_path}/docker.sock")
    [finding] = [each for each in found if each["check"] == "containers"]
    assert "problem" == finding["status"]
    assert f"{tmp_path}/docker.sock" in finding["text"]


def test_a_named_file_that_is_missing_is_a_problem(doctor: Doctor) -> None:
    [text] = doctor.texts("settings", "--config", "none.toml")
    assert "none.toml" in text


def test_what_runs_is_compared_with_what_should_run(doctor: Doctor, tmp_path: Path) -> None:
    worker = {
        "program": "jobs",
        "threshold": 60.0,
        "stalled": False,
        "loops": [{"name": "pages", "age": 0.1, "max_age": 45.0, "holding": 0}],
    }
    broken = program("web", state="broken", up=False)
    with fake_supervisor(tmp_path / ".longwatch", broken) as supervisor:
        supervisor.answer = {
            **supervisor.answer,  # type: ignore[dict-item]
            "version": "0.0.1",
            "workers": [worker],
            "stores": [{"url": "sqlite:///nothing.db", "kind": "mailbox"}],
        }
        old, down = doctor.texts("supervisors")
        assert "runs version 0.0.1" in old
        assert "problem: web is broken" in down
        [silent] = doctor.texts("watchdogs")
    assert "loop pages was silent for 45.0 s" in silent
    assert "watchdog_threshold=180" in silent
    assert doctor.ok("sqlite:///nothing.db")


def test_stalls_of_the_last_day_are_found_after_the_process_that_stalled_has_ended(
    doctor: Doctor, tmp_path: Path
) -> None:
    stall: dict[str, Any] = {
        "level": "critical",
        "event": "worker_stalled",
        "program": "jobs-1",
        "elapsed": 61.0,
        "threshold": 60.0,
        "stacks": "/s/crashes/2.stacks",
    }
    now = time.time()
    ages = {"jobs-1": (90_000.0, 7200.0, 60.0), "jobs-2": (100_000.0,), "mail": (5.0,)}
    records = [
        {**stall, "ts": timestamp(now - age), "program": name}
        for name, found in ages.items()
        for age in found
    ]
    log = LogFile(tmp_path / ".longwatch" / "logs" / "watchdog.log")
    for record in [{"event": "worker_joined"}, *records]:
        log.write(json.dumps(record).encode() + b"\n")
    log.close()
    jobs, mail = doctor.texts("watchdogs", code=0)
    assert (
        "warning: jobs-1: its watchdog ended it 2 times in the last day, after 60.0 s without a "
        f"heartbeat; last at {timestamp(now - 60)} → see its stacks in /s/crashes/2.stacks; if it "
        "was only slow, raise watchdog_threshold, or call context.beat() more often"
    ) == jobs
    assert "mail: its watchdog ended it once in the last day" in mail


def test_a_supervisor_that_answers_nobody_is_a_problem(doctor: Doctor, tmp_path: Path) -> None:
    state = tmp_path / ".longwatch"
    state.mkdir()
    lock = SupervisorLock.acquire(state)
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(state / "control"))
        deaf.listen(1)
        lock.publish_socket(state / "control")
        [text] = doctor.texts("supervisors")
    lock.release()
    assert "running supervisors gave no answer within 5 s" in text


@contextmanager
def silent_server() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def migrate(url: str) -> None:
    with PostgresDatabase(url) as database:
        database.write(lambda _: None)
