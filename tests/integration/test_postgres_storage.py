"""The storage parameters of the hot tables: updates stay in their pages, and vacuum comes often."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claims
from longwatch.store.postgres.database import PostgresDatabase
from polling import eventually
from postgres_server import shared_server

SOURCES = 60
HOT_TABLES = (
    "longwatch_messages",
    "longwatch_executions",
    "longwatch_values",
    "longwatch_computations",
    "longwatch_map_elements",
    "longwatch_runner_events",
    "longwatch_runner_runs",
)


@pytest.fixture
def database() -> Iterator[PostgresDatabase]:
    with shared_server().database() as url, PostgresDatabase(url) as opened:
        yield opened


def updates(database: PostgresDatabase, table: str, *, at_least: int) -> tuple[int, int]:
    """How many rows of a table were updated, and how many of them HOT, once that many are known."""
    found: list[tuple[int, int]] = []

    def look() -> bool:
        database.write(lambda tx: tx.rows("SELECT pg_stat_force_next_flush()"))
        sql = (
            "SELECT n_tup_upd::int8, n_tup_hot_upd::int8 FROM pg_stat_user_tables "
            "WHERE relname = :table"
        )
        [row] = database.read(lambda tx: tx.rows(sql, {"table": table}))
        found[:] = [(row[0], row[1])]
        return bool(row[0] >= at_least)

    assert eventually(look)
    return found[0]


def test_renewals_of_event_sources_touch_no_index(database: PostgresDatabase) -> None:
    """So many sources fill a page: without room in it, each new version needs another one."""
    claims = Claims(dialect="postgresql", table="longwatch_runner_sources", owners=database.owners)
    sql = (
        "INSERT INTO longwatch_runner_sources (queue, name) "
        "SELECT 1, 'source ' || n FROM generate_series(1, :count::int8) AS n"
    )
    database.write(lambda tx: tx.execute(sql, {"count": SOURCES}))
    owner = database.write(lambda tx: claims.register_owner(tx, Incarnation.current()))
    database.write(
        lambda tx: claims.claim(tx, queue=1, owner=owner, lease_seconds=1.0, limit=SOURCES)
    )
    claimed, hot_before = updates(database, "longwatch_runner_sources", at_least=SOURCES)
    for seconds in range(2, 12):
        lease_seconds = 10.0 * seconds
        database.write(
            lambda tx, seconds=lease_seconds: claims.renew(tx, owner=owner, lease_seconds=seconds)  # type: ignore[misc]
        )
    renewed, hot = updates(database, "longwatch_runner_sources", at_least=claimed + 10 * SOURCES)
    assert (hot - hot_before) / (renewed - claimed) >= 0.9


@pytest.mark.parametrize("table", HOT_TABLES)
def test_a_hot_table_of_a_million_rows_is_vacuumed_after_some_ten_thousand_dead_ones(
    database: PostgresDatabase, table: str
) -> None:
    sql = (
        "SELECT option_name, option_value::float8 FROM pg_class, pg_options_to_table(reloptions) "
        "WHERE oid = to_regclass(:table)"
    )
    options = dict(database.read(lambda tx: tx.rows(sql, {"table": table})))
    threshold = options["autovacuum_vacuum_threshold"]
    assert threshold + options["autovacuum_vacuum_scale_factor"] * 1_000_000 <= 30_000


def test_the_bodies_of_settled_messages_are_vacuumed_as_often(database: PostgresDatabase) -> None:
    sql = (
        "SELECT toast.reloptions FROM pg_class AS main JOIN pg_class AS toast "
        "ON toast.oid = main.reltoastrelid WHERE main.oid = to_regclass('longwatch_messages')"
    )
    [(options,)] = database.read(lambda tx: tx.rows(sql))
    assert "autovacuum_vacuum_scale_factor=0.02" in options
