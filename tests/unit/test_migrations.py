from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from longwatch.errors import SchemaTooNewError
from longwatch.store.migrations import Migration, migrate, migrations, pending, present_version
from longwatch.store.sqlite_connection import SqliteTransaction

KNOWN = migrations("sqlite")
NEWEST = KNOWN[-1].version


@pytest.fixture
def raw() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    yield connection
    connection.close()


@pytest.fixture
def store(raw: sqlite3.Connection) -> SqliteTransaction:
    return SqliteTransaction(raw)


def schema(store: SqliteTransaction) -> list[tuple[str, ...]]:
    return store.rows("SELECT type, name, sql FROM sqlite_master ORDER BY type, name")


def test_the_steps_are_numbered_from_one_without_gaps() -> None:
    assert list(range(1, NEWEST + 1)) == [step.version for step in KNOWN]


def test_another_engine_s_steps_are_not_ours() -> None:
    assert [] == migrations("no-such-engine")


@pytest.mark.parametrize("step", KNOWN, ids=lambda step: step.name)
def test_each_statement_of_a_step_is_a_whole_one(step: Migration) -> None:
    assert step.statements
    for statement in step.statements:
        assert ";" not in statement.rstrip(";")
        assert sqlite3.complete_statement(statement.rstrip(";") + ";")


@pytest.mark.parametrize("start", range(NEWEST + 1))
def test_every_older_version_is_brought_to_the_newest(store: SqliteTransaction, start: int) -> None:
    migrate(store, KNOWN[:start])
    assert start == present_version(store)
    assert [step.version for step in KNOWN[start:]] == [
        step.version for step in migrate(store, KNOWN)
    ]
    assert NEWEST == present_version(store)


@pytest.mark.parametrize("start", range(NEWEST + 1))
def test_the_way_there_does_not_show_in_the_schema(store: SqliteTransaction, start: int) -> None:
    migrate(store, KNOWN[:start])
    migrate(store, KNOWN)
    fresh = sqlite3.connect(":memory:", isolation_level=None)
    migrate(SqliteTransaction(fresh), KNOWN)
    expected = schema(SqliteTransaction(fresh))
    fresh.close()
    assert expected == schema(store)


def test_each_step_is_noted_with_its_name_and_time(store: SqliteTransaction) -> None:
    migrate(store, KNOWN)
    noted = store.rows("SELECT version, name, applied_at FROM longwatch_schema ORDER BY version")
    assert [(step.version, step.name) for step in KNOWN] == [row[:2] for row in noted]
    assert all(len("2026-01-01 00:00:00") == len(row[2]) for row in noted)


def test_a_second_run_has_nothing_to_do(store: SqliteTransaction) -> None:
    migrate(store, KNOWN)
    assert [] == pending(store, KNOWN)
    assert [] == migrate(store, KNOWN)


def test_a_store_of_a_newer_version_is_refused_with_the_cure(store: SqliteTransaction) -> None:
    ahead = Migration(NEWEST + 1, "of_tomorrow", ("CREATE TABLE tomorrow (x)",))
    migrate(store, [*KNOWN, ahead])
    with pytest.raises(SchemaTooNewError) as caught:
        migrate(store, KNOWN)
    expected = (
        f"the store was made by a newer Longwatch (schema {NEWEST + 1}, this one knows {NEWEST}); "
        f"upgrade Longwatch"
    )
    assert expected == str(caught.value)


def test_a_step_that_fails_leaves_the_version_before(
    raw: sqlite3.Connection, store: SqliteTransaction
) -> None:
    migrate(store, KNOWN)
    before = schema(store)
    bad = Migration(NEWEST + 1, "bad", ("CREATE TABLE half (x)", "CREATE TABLE half (x)"))
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="half"):
        migrate(store, [*KNOWN, bad])
    raw.execute("ROLLBACK")
    assert NEWEST == present_version(store)
    assert before == schema(store)
