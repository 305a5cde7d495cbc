from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from longwatch.errors import SchemaTooNewError, SchemaTooOldError
from longwatch.store.migrations import (
    FIRST_WITH_MIN_READER,
    Migration,
    current_schema,
    load_migrations,
    migrate,
    parse_migration,
    pending_migrations,
)
from longwatch.store.sqlite.connection import SqliteTransaction

KNOWN = load_migrations("sqlite")
OLDEST, NEWEST = KNOWN[0].version, KNOWN[-1].version


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


@pytest.mark.parametrize("dialect", ["sqlite", "postgresql"])
def test_the_steps_are_numbered_from_four_without_gaps(dialect: str) -> None:
    assert 4 == OLDEST
    assert list(range(OLDEST, NEWEST + 1)) == [step.version for step in load_migrations(dialect)]


def test_another_engine_s_steps_are_not_ours() -> None:
    assert [] == load_migrations("no-such-engine")


@pytest.mark.parametrize("step", KNOWN, ids=lambda step: step.name)
def test_each_statement_of_a_step_is_a_whole_one(step: Migration) -> None:
    assert step.statements
    for statement in step.statements:
        assert ";" not in statement.rstrip(";")
        assert sqlite3.complete_statement(statement.rstrip(";") + ";")


@pytest.mark.parametrize("steps", range(len(KNOWN) + 1))
def test_every_older_version_is_brought_to_the_newest(store: SqliteTransaction, steps: int) -> None:
    migrate(store, KNOWN[:steps])
    assert max((step.version for step in KNOWN[:steps]), default=0) == current_schema(store).version
    assert [step.version for step in KNOWN[steps:]] == [
        step.version for step in migrate(store, KNOWN)
    ]
    assert NEWEST == current_schema(store).version


@pytest.mark.parametrize("steps", range(len(KNOWN) + 1))
def test_the_way_there_does_not_show_in_the_schema(store: SqliteTransaction, steps: int) -> None:
    migrate(store, KNOWN[:steps])
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
    assert [] == pending_migrations(store, KNOWN)
    assert [] == migrate(store, KNOWN)


def test_a_store_of_a_newer_version_is_refused_with_the_cure(store: SqliteTransaction) -> None:
    ahead = Migration(NEWEST + 2, "of_tomorrow", ("CREATE TABLE tomorrow (x)",), NEWEST + 1)
    migrate(store, [*KNOWN, ahead])
    with pytest.raises(SchemaTooNewError) as caught:
        migrate(store, KNOWN)
    expected = (
        f"the store was made by a newer Longwatch (schema {NEWEST + 2}, for versions from "
        f"{NEWEST + 1} on; this one knows {NEWEST}); upgrade Longwatch"
    )
    assert expected == str(caught.value)


def test_a_store_that_a_newer_version_expanded_is_used_and_left_as_it_is(
    store: SqliteTransaction,
) -> None:
    migrate(store, [*KNOWN, Migration(NEWEST + 1, "more", ("CREATE TABLE more (x)",))])
    before = schema(store)
    assert [] == migrate(store, KNOWN)
    assert (NEWEST + 1, KNOWN[-1].min_reader or 10) == current_schema(store)
    assert before == schema(store)


def test_steps_raise_min_reader_and_never_lower_it(store: SqliteTransaction) -> None:
    raised = Migration(NEWEST + 1, "raised", (), NEWEST + 1)
    later = [Migration(NEWEST + 2, "later", ()), Migration(NEWEST + 3, "lower", (), NEWEST)]
    migrate(store, [*KNOWN, raised, *later])
    assert (NEWEST + 3, NEWEST + 1) == current_schema(store)


def test_a_store_from_before_min_reader_is_for_its_own_version_alone(
    store: SqliteTransaction,
) -> None:
    migrate(store, [step for step in KNOWN if step.version < FIRST_WITH_MIN_READER])
    assert (9, 9) == current_schema(store)


def test_a_version_without_min_reader_is_for_itself_alone(store: SqliteTransaction) -> None:
    migrate(store, KNOWN)
    store.execute(
        "INSERT INTO longwatch_schema (version, name, applied_at) VALUES (99, 'by_hand', '')"
    )
    assert (99, 99) == current_schema(store)


def test_both_engines_declare_the_same_min_readers_none_above_its_own_step() -> None:
    declared = [step.min_reader for step in KNOWN]
    assert declared == [step.min_reader for step in load_migrations("postgresql")]
    assert all(
        step.min_reader is None or FIRST_WITH_MIN_READER <= step.min_reader <= step.version
        for step in KNOWN
    )


def test_a_step_that_does_not_say_how_it_changes_min_reader_is_refused() -> None:
    with pytest.raises(ValueError, match="0011_silent must declare min_reader"):
        parse_migration(11, "silent", "-- More columns.\nCREATE TABLE more (x);\n")
    assert 11 == parse_migration(12, "less", "-- min_reader: 11\nDROP TABLE x;\n").min_reader
    assert None is parse_migration(11, "more", "-- min_reader: unchanged\n").min_reader


@pytest.mark.parametrize("version", range(1, OLDEST))
def test_a_store_of_a_version_that_no_step_starts_from_is_refused_with_the_cure(
    store: SqliteTransaction, version: int
) -> None:
    migrate(store, [Migration(version, "of_yesterday", ("CREATE TABLE yesterday (x)",))])
    before = schema(store)
    with pytest.raises(SchemaTooOldError) as caught:
        migrate(store, KNOWN)
    expected = (
        f"the store was made by an older Longwatch (schema {version}), which cannot be migrated; "
        f"empty its mailboxes with the old version, then name a new file or an empty database"
    )
    assert expected == str(caught.value)
    assert (version, before) == (current_schema(store).version, schema(store))


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
    assert NEWEST == current_schema(store).version
    assert before == schema(store)


def test_step_7_keeps_executions_and_never_gives_the_number_of_a_deleted_one(
    store: SqliteTransaction,
) -> None:
    migrate(store, [step for step in KNOWN if step.version < 7])
    insert = (
        "INSERT INTO longwatch_executions (id, graph, version, idempotency_key, revision,"
        " created_at, updated_at) VALUES (:id, 'scrape', '1', :id, 3, 1.0, 2.0) RETURNING execution"
    )
    [(kept,)] = store.rows(insert, {"id": "kept"})
    store.execute(
        "INSERT INTO longwatch_values (execution, node, changed_at) VALUES (9, 'pages', 1.0)"
    )
    migrate(store, KNOWN)
    assert [(kept, "kept", 3, 0, 0, 1)] == store.rows(
        "SELECT execution, id, revision, known_nodes, settled_nodes, state"
        " FROM longwatch_executions"
    )
    assert [(10,)] == store.rows(insert, {"id": "next"})


def test_step_9_keeps_messages_and_dead_letters_which_have_no_headers(
    store: SqliteTransaction,
) -> None:
    migrate(store, [step for step in KNOWN if step.version < 9])
    store.execute(
        "INSERT INTO longwatch_messages (queue, id, enqueued_at, reply_to, body)"
        " VALUES (1, 'kept', 1.0, 'answers', x'31')"
    )
    store.execute("INSERT INTO longwatch_mailboxes (queue, name) VALUES (1, 'jobs')")
    store.execute(
        "INSERT INTO longwatch_dead_letters (queue, id, reason, died_at, enqueued_at, deliveries,"
        " failures, crashes, releases, body) VALUES (1, 'dead', 'failed', 2.0, 1.0, 5, 5, 0, 0,"
        " x'32')"
    )
    store.execute(
        "INSERT INTO longwatch_executions (id, graph, version, created_at, updated_at)"
        " VALUES ('begun', 'scrape', '1', 1.0, 2.0)"
    )
    migrate(store, KNOWN)
    assert [("kept", "answers", b"1", None)] == store.rows(
        "SELECT id, reply_to, body, headers FROM longwatch_messages"
    )
    assert [("dead", 5, b"2", None)] == store.rows(
        "SELECT id, failures, body, headers FROM longwatch_dead_letters"
    )
    assert [("begun", None)] == store.rows("SELECT id, trace_context FROM longwatch_executions")
