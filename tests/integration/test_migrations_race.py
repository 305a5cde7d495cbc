from __future__ import annotations

import signal
import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from longwatch.errors import SchemaTooNewError
from longwatch.store.migrations import migrations
from longwatch.store.sqlite import SqliteDatabase
from snippet import running

NEWEST = migrations("sqlite")[-1].version
AT_ONCE = 8

OPENER = """
    from pathlib import Path
    from longwatch.store.sqlite import SqliteDatabase
    database = SqliteDatabase(Path({path!r}))
    print("ready", flush=True)
    input()
    print(database.write(lambda tx: tx.rows("SELECT version FROM longwatch_schema")), flush=True)
"""

KILLED = """
    import os, signal
    from pathlib import Path
    from longwatch.store import sqlite_opened
    from longwatch.store.migrations import Migration, migrations
    from longwatch.store.sqlite import SqliteDatabase
    from longwatch.store.sqlite_connection import SqliteTransaction

    known = migrations("sqlite")
    steps = known + [Migration(known[-1].version + 1, "next", ("CREATE TABLE next (x)", "KILL"))]
    plain = SqliteTransaction.execute

    def execute(self, sql, parameters=None):
        if sql == {at!r}:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, sql, parameters)

    SqliteTransaction.execute = execute
    sqlite_opened.migrations = lambda dialect: steps
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
            stack.enter_context(running(OPENER.format(path=str(path)))) for _ in range(AT_ONCE)
        ]
        assert ["ready"] * AT_ONCE == [child.line() for child in children]
        for child in children:
            child.say()
        expected = str([(version,) for version in range(1, NEWEST + 1)])
        assert [expected] * AT_ONCE == [child.line() for child in children]
        assert [(0, "")] * AT_ONCE == [child.end() for child in children]
    assert list(range(1, NEWEST + 1)) == versions(path)


def test_a_process_killed_in_the_middle_of_a_step_leaves_the_version_before(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database = SqliteDatabase(path)
    database.write(lambda tx: tx.execute("INSERT INTO longwatch_mailboxes (name) VALUES ('kept')"))
    database.close()
    before = tables(path)
    with running(KILLED.format(path=str(path), at="KILL")) as child:
        assert -signal.SIGKILL == child.end()[0]
    assert list(range(1, NEWEST + 1)) == versions(path)
    assert before == tables(path)
    again = SqliteDatabase(path)
    assert [("kept",)] == again.read(lambda tx: tx.rows("SELECT name FROM longwatch_mailboxes"))
    again.close()


def test_a_process_killed_while_it_makes_the_first_schema_leaves_a_file_that_the_next_one_finishes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "some.db"
    with running(KILLED.format(path=str(path), at=migrations("sqlite")[0].statements[-1])) as child:
        assert -signal.SIGKILL == child.end()[0]
    assert set() == tables(path)
    database = SqliteDatabase(path)
    database.write(lambda _: None)
    database.close()
    assert list(range(1, NEWEST + 1)) == versions(path)


def test_a_file_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    database = SqliteDatabase(path)
    database.write(
        lambda tx: tx.execute("INSERT INTO longwatch_schema VALUES (9999, 'of_tomorrow', '')")
    )
    database.close()
    again = SqliteDatabase(path)
    for _ in range(2):
        with pytest.raises(SchemaTooNewError) as caught:
            again.write(lambda _: None)
        expected = (
            f"the store was made by a newer Longwatch (schema 9999, this one knows {NEWEST}); "
            f"upgrade Longwatch"
        )
        assert expected == str(caught.value)
    again.close()
    assert [*range(1, NEWEST + 1), 9999] == versions(path)
