from __future__ import annotations

import signal
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from longwatch.errors import SchemaTooNewError, SchemaTooOldError
from longwatch.store.migrations import load_migrations
from longwatch.store.sqlite.database import SqliteDatabase
from snippet import run_snippet

VERSIONS = [step.version for step in load_migrations("sqlite")]
NEWEST = VERSIONS[-1]
AT_ONCE = 8

OPENER = """
    from pathlib import Path
    from longwatch.store.sqlite.database import SqliteDatabase
    database = SqliteDatabase(Path({path!r}))
    print("ready", flush=True)
    input()
    print(database.write(lambda tx: tx.rows("SELECT version FROM longwatch_schema")), flush=True)
"""

KILLED = """
    import os, signal
    from pathlib import Path
    from longwatch.store.sqlite import handle
    from longwatch.store.migrations import Migration, load_migrations
    from longwatch.store.sqlite.database import SqliteDatabase
    from longwatch.store.sqlite.connection import SqliteTransaction

    known = load_migrations("sqlite")
    steps = known + [Migration(known[-1].version + 1, "next", ("CREATE TABLE next (x)", "KILL"))]
    plain = SqliteTransaction.execute

    def execute(self, sql, parameters=None):
        if sql == {at!r}:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, sql, parameters)

    SqliteTransaction.execute = execute
    handle.load_migrations = lambda dialect: steps
    SqliteDatabase(Path({path!r})).write(lambda tx: None)
"""


def versions(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as outside:
        return [
            version
            for (version,) in outside.execute(
                "SELECT version FROM longwatch_schema ORDER BY version"
            )
        ]


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as outside:
        return {
            name
            for (name,) in outside.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }


def test_several_processes_that_start_at_once_make_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with ExitStack() as stack:
        children = [
            stack.enter_context(run_snippet(OPENER.format(path=str(path)))) for _ in range(AT_ONCE)
        ]
        assert ["ready"] * AT_ONCE == [child.read_line() for child in children]
        for child in children:
            child.send_line()
        expected = str([(version,) for version in VERSIONS])
        assert [expected] * AT_ONCE == [child.read_line() for child in children]
        assert [(0, "")] * AT_ONCE == [child.wait() for child in children]
    assert VERSIONS == versions(path)


def test_a_process_killed_in_the_middle_of_a_step_leaves_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database = SqliteDatabase(path)
    database.write(lambda tx: tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('kept')"))
    database.close()
    before = tables(path)
    with run_snippet(KILLED.format(path=str(path), at="KILL")) as child:
        assert -signal.SIGKILL == child.wait()[0]
    assert VERSIONS == versions(path)
    assert before == tables(path)
    again = SqliteDatabase(path)
    assert [("kept",)] == again.read(lambda tx: tx.rows("SELECT name FROM longwatch_mailboxes"))
    again.close()


def test_a_process_killed_while_it_makes_the_first_schema_leaves_a_file_that_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "some.db"
    with run_snippet(
        KILLED.format(path=str(path), at=load_migrations("sqlite")[0].statements[-1])
    ) as child:
        assert -signal.SIGKILL == child.wait()[0]
    assert set() == tables(path)
    database = SqliteDatabase(path)
    database.write(lambda _: None)
    database.close()
    assert VERSIONS == versions(path)


def test_a_file_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database = SqliteDatabase(path)
    database.write(
        lambda tx: tx.execute(
            "INSERT INTO longwatch_schema (version, name, applied_at) "
            "VALUES (9999, 'of_tomorrow', '')"
        )
    )
    database.close()
    again = SqliteDatabase(path)
    for _ in range(2):
        with pytest.raises(SchemaTooNewError) as caught:
            again.write(lambda _: None)
        expected = (
            f"{path} was made by a newer Longwatch (schema 9999, for versions from 9999 on; this "
            f"one knows {NEWEST}); upgrade Longwatch"
        )
        assert expected == str(caught.value)
    again.close()
    assert [*VERSIONS, 9999] == versions(path)


def test_a_file_of_schema_3_is_refused_with_the_cure_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with closing(sqlite3.connect(path)) as outside:
        outside.execute(
            "CREATE TABLE longwatch_schema (version INTEGER PRIMARY KEY, name TEXT NOT NULL, "
            "applied_at TEXT NOT NULL)"
        )
        outside.execute("INSERT INTO longwatch_schema VALUES (3, 'flow', '')")
        outside.commit()
    before = tables(path)
    database = SqliteDatabase(path)
    for _ in range(2):
        with pytest.raises(SchemaTooOldError) as caught:
            database.write(lambda _: None)
        expected = (
            f"{path} was made by an older Longwatch (schema 3), which cannot be migrated; "
            "empty its mailboxes with the old version, then name a new file or an empty database"
        )
        assert expected == str(caught.value)
    database.close()
    assert ([3], before) == (versions(path), tables(path))
