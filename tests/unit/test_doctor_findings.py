"""What the checks of `longwatch doctor` decide, with numbers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longwatch import __version__
from longwatch.app.doctor.examination import Check, Report, all_ok, examine
from longwatch.app.doctor.files import (
    DiskFacts,
    check_permissions,
    disk_findings,
    fsync_finding,
)
from longwatch.app.doctor.findings import (
    Finding,
    Severity,
    ok,
    or_ok,
    problem_from,
    size_text,
    warning,
)
from longwatch.app.doctor.machine import (
    OLDEST_WALL_TIME,
    ClockReadings,
    UserLimits,
    clock_findings,
    extra_findings,
    limit_findings,
)
from longwatch.app.doctor.stores import (
    SqliteFacts,
    judge_postgres,
    judge_redis,
    judge_sqlite,
    skew_findings,
)
from longwatch.app.doctor.subject import Running, Subject
from longwatch.app.doctor.timeouts import (
    check_supervisors,
    group_findings,
    stop_findings,
    suggest_threshold,
    version_findings,
    watchdog_findings,
)
from longwatch.config.settings import load_settings
from longwatch.errors import StoreError
from longwatch.store.database import StoredSchema
from longwatch.store.migrations import load_migrations
from longwatch.workers.preflight import GroupInfo

GIB = 1 << 30
LATEST = load_migrations("sqlite")[-1].version
NOW = StoredSchema(LATEST, 10)


def said(found: Iterable[Finding]) -> list[str]:
    """Each finding as `severity: text`."""
    return [f"{each.severity}: {each.text}" for each in found]


def assert_cured(found: Iterable[Finding]) -> None:
    assert all(each.cure for each in found if each.severity is not Severity.OK)


# --- the machine ---


def readings(**facts: Any) -> ClockReadings:
    return ClockReadings(
        **{"wall": OLDEST_WALL_TIME + 1, "monotonic": 50.0, "boottime": 50.0, **facts}
    )


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        (readings(), []),
        (readings(boottime=9000.0), []),
        (
            readings(wall=3600.0),
            ["problem: the wall clock shows 1970-01-01, so it was never set"],
        ),
        (
            readings(boottime=40.0),
            ["problem: the monotonic clock steps back, or the boot clock is behind it"],
        ),
        (
            readings(steps_back=1),
            ["problem: the monotonic clock steps back, or the boot clock is behind it"],
        ),
    ],
)
def test_clocks(clocks: ClockReadings, expected: list[str]) -> None:
    assert expected == said(clock_findings(clocks))


@pytest.mark.parametrize(
    ("files", "processes", "programs", "expected"),
    [
        (1024, None, 10, []),
        (None, None, 1000, []),
        (200, None, 10, []),
        (199, None, 10, ["open files are limited to 199, and 10 programs need about 200"]),
        (
            9999,
            50,
            10,
            ["only 25 more processes are allowed (limit 50), and 10 programs need at least 30"],
        ),
        (9999, 55, 10, []),
    ],
)
def test_limits(
    files: int | None, processes: int | None, programs: int, expected: list[str]
) -> None:
    limits = UserLimits(open_files=files, processes=processes, running=25)
    found = list(limit_findings(limits, programs))
    assert [f"problem: {text}" for text in expected] == said(found)
    assert_cured(found)


def test_a_missing_extra_is_named_with_its_reason_and_the_command() -> None:
    [found] = extra_findings({"redis": "a redis store", "postgres": "x"}, {"postgres"})
    assert "a redis store needs the extra redis, which is not installed" == found.text
    assert found.cure.startswith("pip install ")


# --- disks ---


def disk(**facts: Any) -> DiskFacts:
    return DiskFacts(
        **{
            "path": Path("/s"),
            "free_bytes": 5 * GIB,
            "free_files": None,
            "read_only": False,
            "network": None,
            "in_memory": False,
            **facts,
        }
    )


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (disk(), []),
        (disk(free_bytes=GIB - 1), ["warning: /s has 1024.0 MiB free"]),
        (disk(free_bytes=99 << 20), ["problem: /s has 99.0 MiB free"]),
        (disk(free_files=9_999), ["warning: /s has room for 9999 more files (inodes)"]),
        (disk(free_files=0), ["problem: /s has room for 0 more files (inodes)"]),
        (
            disk(read_only=True, free_bytes=0),
            ["problem: /s is on a read-only file system"],
        ),
        (
            disk(in_memory=True),
            ["warning: /s is in memory (tmpfs), so a reboot empties it"],
        ),
        (
            disk(network="nfs4"),
            ["problem: /s is on a network file system (nfs4), where SQLite's locks do not hold"],
        ),
    ],
)
def test_disks(facts: DiskFacts, expected: list[str]) -> None:
    found = list(disk_findings(facts, has_store=True))
    assert expected == said(found)
    assert_cured(found)


def test_a_network_disk_without_sqlite_is_only_slow() -> None:
    [found] = disk_findings(disk(network="nfs"), has_store=False)
    assert Severity.WARNING is found.severity


@pytest.mark.parametrize(
    ("seconds", "severity"), [(0.003, Severity.OK), (0.5, Severity.OK), (0.6, Severity.WARNING)]
)
def test_a_slow_disk_is_a_warning(seconds: float, severity: Severity) -> None:
    assert severity is fsync_finding(Path("/s"), seconds).severity


# --- stores ---


@pytest.mark.parametrize(
    ("skew", "round_trip", "severities"),
    [
        (1.9, 0.1, []),
        (3.0, 2.1, []),
        (-3.0, 0.0, ["warning"]),
        (61.0, 0.5, ["problem"]),
        (-4000.0, 0.5, ["problem"]),
    ],
)
def test_the_skew_of_a_server_counts_as_far_as_it_is_sure(
    skew: float, round_trip: float, severities: list[str]
) -> None:
    assert severities == [each.severity for each in skew_findings(skew, round_trip)]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (SqliteFacts(journal_mode="wal", schema=NOW), []),
        (SqliteFacts(journal_mode="delete", schema=StoredSchema(0, 0)), []),
        (
            SqliteFacts(journal_mode="wal", schema=StoredSchema(3, 3)),
            ["problem: schema 3 was made by an older Longwatch"],
        ),
        (
            SqliteFacts(journal_mode="wal", schema=StoredSchema(99, 98)),
            [
                (
                    f"problem: schema 99 was made by a newer Longwatch, for versions from 98 on; "
                    f"this one knows {LATEST}"
                )
            ],
        ),
        (SqliteFacts(journal_mode="wal", schema=StoredSchema(99, LATEST)), []),
        (
            SqliteFacts(journal_mode="wal", schema=StoredSchema(8, 8)),
            [
                (
                    f"warning: schema 8 is migrated to {LATEST} when it is next opened; "
                    f"versions below 10 cannot use it then"
                )
            ],
        ),
        (
            SqliteFacts(journal_mode="delete", schema=NOW, wal_bytes=GIB, mode=0o644),
            [
                "warning: journal_mode is delete, so readers and the writer wait for each other",
                "warning: its -wal file has 1.0 GiB, because a reader holds a snapshot",
                "warning: other users may open it (mode 644)",
            ],
        ),
    ],
)
def test_sqlite(facts: SqliteFacts, expected: list[str]) -> None:
    found = list(judge_sqlite(facts, url="sqlite:///x.db"))
    assert expected == said(found)
    assert_cured(found)


GOOD_POSTGRES: dict[str, Any] = {
    "major": 18,
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "encoding": "UTF8",
    "connections": 97,
    "used": 20,
    "ours": 18,
    "idle": 0,
    "idle_limit_ms": 0,
    "standby": False,
    "schema": NOW,
}


@pytest.mark.parametrize(
    ("changed", "processes", "expected"),
    [
        ({}, 10, []),
        (
            {},
            11,
            ["warning: 11 processes may open 99 connections, and 95 of 97 are not used by others"],
        ),
        (
            {"fsync": "off"},
            0,
            ["problem: fsync is off, so a crash of its machine may damage the database"],
        ),
        (
            {"synchronous_commit": "off"},
            0,
            [
                (
                    "problem: synchronous_commit is off, so a crash of the server may lose the "
                    "last sends and settles"
                )
            ],
        ),
        ({"synchronous_commit": "local"}, 0, []),
        ({"major": 12}, 0, ["problem: runs PostgreSQL 12"]),
        ({"standby": True}, 0, ["problem: is a standby, which takes no writes"]),
        (
            {"schema": StoredSchema(0, 0)},
            0,
            [f"problem: has no tables yet; this version needs {LATEST}"],
        ),
        (
            {"schema": StoredSchema(LATEST - 1, LATEST - 1)},
            0,
            [f"problem: has schema {LATEST - 1}; this version needs {LATEST}"],
        ),
        (
            {"autovacuum": "off", "idle": 400.0, "idle_limit_ms": 5000},
            0,
            [
                "warning: autovacuum is off, so queues get slower with every message",
                (
                    "warning: a session has been idle in a transaction for 400 s; it keeps locks, "
                    "and rows from being vacuumed"
                ),
                (
                    "warning: idle_in_transaction_session_timeout is 5 s, which may end your "
                    "transactions around tx="
                ),
            ],
        ),
    ],
)
def test_postgres(changed: dict[str, Any], processes: int, expected: list[str]) -> None:
    facts = {**GOOD_POSTGRES, **changed}
    found = list(judge_postgres(facts, processes=processes, url="postgresql://u:secret@h/d"))
    assert expected == said(found)
    assert_cured(found)
    assert "secret" not in "".join(each.cure for each in found)


GOOD_REDIS = {"redis_version": "7.2.0", "aof_enabled": "1", "role": "master"}


@pytest.mark.parametrize(
    ("changed", "schema", "expected"),
    [
        ({}, None, []),
        ({}, "5", []),
        ({}, "4", ["problem: its keys have layout 4, this version needs 5"]),
        ({}, "none", ["problem: its keys have layout none, this version needs 5"]),
        ({}, "7 5", []),
        (
            {},
            "7 6",
            ["problem: its keys have layout 7, for versions from 6 on; this one knows 5"],
        ),
        (
            {"aof_enabled": "0", "maxmemory_policy": "allkeys-lru"},
            None,
            [
                "problem: maxmemory-policy is allkeys-lru, so messages may be evicted",
                "problem: appendonly is off, so a restart loses messages since the last snapshot",
            ],
        ),
        ({"redis_version": "6.0.9"}, None, ["problem: runs Redis 6.0.9"]),
        ({"role": "slave"}, None, ["problem: is a replica, which takes no writes"]),
        (
            {"aof_last_write_status": "err"},
            None,
            ["problem: could not write the append-only file the last time"],
        ),
        (
            {"maxmemory": str(GIB), "used_memory": str(GIB)},
            None,
            ["warning: uses 1.0 GiB of 1.0 GiB; a full server refuses sends"],
        ),
    ],
)
def test_redis(changed: dict[str, str], schema: str | None, expected: list[str]) -> None:
    found = list(judge_redis({**GOOD_REDIS, **changed}, schema))
    assert expected == said(found)
    assert_cured(found)


# --- timeouts ---


def group(**facts: Any) -> GroupInfo:
    return GroupInfo(
        **{
            "loops": ("pages",),
            "health_host": "",
            "health_port": None,
            "shutdown_timeout": 30.0,
            "watchdog_threshold": 60.0,
            **facts,
        }
    )


def test_a_group_with_unsafe_timeouts_names_each_with_a_value() -> None:
    problems = (("watchdog_threshold", "60 s is not more than x: set it above 630"),)
    [found] = group_findings("jobs", group(timeout_problems=problems), 0)
    assert "worker jobs: watchdog_threshold 60 s is not more than x" == found.text
    assert "set it above 630 in LoopGroup(…)" == found.cure


@pytest.mark.parametrize(("grace", "number"), [(0, 0), (31, 0), (30, 1), (5, 1)])
def test_a_grace_below_the_shutdown_timeout_kills_work_in_flight(grace: float, number: int) -> None:
    assert number == len(list(group_findings("jobs", group(), grace)))


def test_stops_and_restarts_of_the_file_are_compared(tmp_path: Path) -> None:
    path = tmp_path / "longwatch.toml"
    path.write_text(
        """
[supervisor]
shutdown_timeout = 10
[program.slow]
command = ["true"]
stop_grace = 20
[program.checked]
command = ["true"]
stop_grace = 5
health = { interval = 2, timeout = 2 }
[program.patient]
command = ["true"]
stop_grace = 5
backoff = { initial = 30 }
"""
    )
    settings = load_settings(path=path, environ={}, flags={})
    found = list(stop_findings(settings))
    assert [
        (
            "warning: slow may take 20 s to stop, and [supervisor] shutdown_timeout kills "
            "everything after 10 s"
        ),
        (
            "warning: checked: health.timeout (2 s) is not less than health.interval (2 s), so "
            "checks follow each other without a pause"
        ),
        (
            "warning: patient: 5 restarts wait 150 s, which is more than breaker.window (60 s), so "
            "the breaker never trips"
        ),
    ] == said(found)
    assert_cured(found)


def worker(**facts: Any) -> dict[str, Any]:
    loop = {"name": "pages", "age": 0.1, "max_age": facts.pop("max_age", 1.0), "holding": 0}
    return {"program": "jobs-1", "threshold": 60.0, "stalled": False, "loops": [loop], **facts}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"max_age": 30.0}, []),
        ({"max_age": 100.0, "threshold": None}, []),
        (
            {"max_age": 31.0},
            [
                (
                    "warning: jobs-1: loop pages was silent for 31.0 s, and the watchdog ends the "
                    "process after 60 s"
                )
            ],
        ),
        ({"stalled": True, "crash_file": "/s/crashes/1"}, ["problem: jobs-1 is stalled"]),
    ],
)
def test_watchdogs(facts: dict[str, Any], expected: list[str]) -> None:
    found = list(watchdog_findings(worker(**facts)))
    assert expected == said(found)
    assert_cured(found)


@pytest.mark.parametrize(
    ("longest", "threshold"), [(0.5, 5), (31.0, 120), (240.0, 720), (3000.0, 10_800)]
)
def test_a_suggested_threshold_is_three_times_the_longest_gap(
    longest: float, threshold: int
) -> None:
    assert threshold == suggest_threshold(longest)


def test_a_supervisor_of_another_version_is_to_be_restarted() -> None:
    mine = {"pid": 1, "command": "up", "version": __version__}
    [found] = version_findings([mine, {**mine, "pid": 2, "version": "0.0.9"}, {"pid": 3}])
    expected = f"longwatch up (pid 2) runs version 0.0.9, and {__version__} is installed"
    assert expected == found.text


def test_programs_that_are_not_as_desired_are_listed() -> None:
    facts = {"desired": "up", "up": False, "last_end": None}
    programs = (
        {**facts, "name": "a", "state": "broken"},
        {**facts, "name": "b", "state": "waiting"},
    )
    found = check_supervisors(Subject(running=Running(programs=programs)))
    assert ["problem: a is broken", "warning: b is waiting"] == said(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_private_state_directory_of_another_user_is_named_with_its_owner() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        state = Path(folder, "state")
        state.mkdir(0o700)
        os.seteuid(65534)
        try:
            found = list(check_permissions(Subject(state=state)))
        finally:
            os.seteuid(0)
    texts = [text for text in said(found) if str(state) in text]
    assert [f"warning: {state} belongs to user 0, and this is user 65534"] == texts
    assert_cured(found)


# --- running the checks ---


def failing(_: Subject) -> Iterator[Finding]:
    yield ok("before")
    raise ValueError("postgresql://u:secret@h/d is odd")


def refusing(_: Subject) -> list[Finding]:
    raise StoreError("a cannot be read; mend it; soon")


def examined(*checks: Check) -> Report:
    return examine(Subject(), checks)


def test_a_check_that_fails_says_so_and_stops_no_other() -> None:
    report = examined(
        Check("failing", failing),
        Check("refusing", refusing),
        Check("good", lambda _: [ok("good")]),
    )
    failed, refused, good = (result.findings for result in report.results)
    assert [
        "ok: before",
        "warning: this check failed: ValueError: postgresql://***@h/d is odd",
    ] == said(failed)
    assert [problem_from("a cannot be read; mend it; soon")] == [*refused]
    assert ("a cannot be read", "mend it; soon") == (refused[0].text, refused[0].cure)
    assert ["ok: good"] == said(good)
    assert not all_ok(report)


def test_a_check_that_hangs_is_a_problem_and_stops_no_other() -> None:
    from threading import Event  # noqa: PLC0415 - as the only test that blocks

    release = Event()

    def hang(_: Subject) -> Iterator[Finding]:
        yield ok("so far")
        release.wait()

    try:
        report = examined(Check("hangs", hang, 0.01), Check("good", lambda _: [ok("good")]))
    finally:
        release.set()
    hung, good = (result.findings for result in report.results)
    assert ["ok: so far", "problem: gave no answer within 0.01 s"] == said(hung)
    assert ["ok: good"] == said(good)


def test_a_check_without_findings_is_not_shown_and_warnings_are_no_problems() -> None:
    report = examined(Check("none", lambda _: []), Check("w", lambda _: [warning("a", "b")]))
    assert ["w"] == [result.check for result in report.results]
    assert all_ok(report)


def test_an_ok_finding_stands_for_no_other() -> None:
    assert [ok("fine")] == or_ok([], "fine")
    assert [warning("a", "b")] == or_ok([warning("a", "b")], "fine")


@pytest.mark.parametrize(
    ("size", "text"),
    [(5, "5 bytes"), (1536, "1.5 KiB"), (3 * GIB, "3.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_sizes(size: int, text: str) -> None:
    assert text == size_text(size)
