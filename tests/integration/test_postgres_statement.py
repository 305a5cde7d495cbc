"""From `:named` SQL and Python values to what the server is sent, and back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from longwatch.errors import InvalidParameterError
from longwatch.store.database import ClockJump
from longwatch.store.postgres import statement
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.statement import SERVER_CLOCK, bind, column_arrays, translate
from postgres_server import shared_server


@pytest.mark.parametrize(
    ("sql", "text", "names"),
    [
        ("SELECT :a, :b, :a", "SELECT $1, $2, $1", ("a", "b")),
        ("SELECT :a::text[]", "SELECT $1::text[]", ("a",)),
        ("SELECT ':a', E'\\':a', 'it''s :a', :b", "SELECT ':a', E'\\':a', 'it''s :a', $1", ("b",)),
        (
            'SELECT ":a" FROM x -- :a\nWHERE :b /* :a */',
            'SELECT ":a" FROM x -- :a\nWHERE $1 /* :a */',
            ("b",),
        ),
        ("SELECT $$ :a $$, $x$ :a $$ $x$, :b", "SELECT $$ :a $$, $x$ :a $$ $x$, $1", ("b",)),
        ("SELECT x[1:2], :b", "SELECT x[1:2], $1", ("b",)),
        ("SELECT :lease_now - :wall_now", f"SELECT ({SERVER_CLOCK}) - ({SERVER_CLOCK})", ()),
    ],
)
def test_names_become_places_and_clocks_the_server_s_own(
    sql: str, text: str, names: tuple[str, ...]
) -> None:
    assert (text.encode(), names) == translate(sql, jumped=False)


def test_a_jump_of_the_clocks_is_one_more_parameter_for_each() -> None:
    text, values = bind(
        "SELECT :lease_now, :x, :wall_now, :lease_now", {"x": 5}, ClockJump(lease=1.0, wall=2.0)
    )
    assert (
        f"SELECT ({SERVER_CLOCK} + $1), $2, ({SERVER_CLOCK} + $3), ({SERVER_CLOCK} + $1)".encode()
        == text
    )
    assert [1.0, 5, 2.0] == values


def test_many_rows_go_as_arrays_in_pieces_that_the_server_can_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statement, "MAX_CHUNK_BYTES", 10)
    monkeypatch.setattr(statement, "MAX_CHUNK_ROWS", 3)
    rows = [
        {"n": number, "body": b"x" * size} for number, size in enumerate([1, 1, 1, 1, 9, 30, 1])
    ]
    assert [[0, 1, 2], [3, 4], [5], [6]] == [piece["n"] for piece in column_arrays(rows)]
    assert [] == list(column_arrays([]))


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresDatabase]:
    with shared_server().database() as url, PostgresDatabase(url) as opened:
        yield opened


MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = uuid.UUID(int=7)


@pytest.mark.parametrize(
    ("cast", "value"),
    [
        ("int8", 2**62),
        ("int8", -1),
        ("numeric", 2**70),
        ("float8", 0.1),
        ("float8", float("inf")),
        ("text", "größer"),
        ("text", ""),
        ("text", None),
        ("bytea", b"\0\xff"),
        ("boolean", True),
        ("timestamptz", MOMENT),
        ("uuid", NAME),
        ("int8[]", [1, None, 3]),
        ("int8[]", []),
        ("text[]", ["a", "", None, "{}", 'quote "']),
        ("text[]", [None, None]),
        ("bytea[]", [b"", b"\0"]),
        ("float8[]", [1.5, 2]),
        ("boolean[]", [True, False]),
        ("uuid[]", [NAME]),
    ],
)
def test_a_value_comes_back_as_it_went(database: PostgresDatabase, cast: str, value: Any) -> None:
    [(found,)] = database.read(lambda tx: tx.rows(f"SELECT :value::{cast}", {"value": value}))
    assert value == found


def test_a_text_stands_for_whatever_the_statement_takes_it_for(database: PostgresDatabase) -> None:
    [(found,)] = database.read(lambda tx: tx.rows("SELECT :value::uuid", {"value": str(NAME)}))
    assert NAME == found


def test_a_zero_byte_in_a_text_is_refused_and_not_cut_off_there(database: PostgresDatabase) -> None:
    for value in ("a\0b", ["a\0b"]):
        with pytest.raises(InvalidParameterError, match="zero bytes"):
            database.read(lambda tx, value=value: tx.rows("SELECT :value::text", {"value": value}))  # type: ignore[misc]
    assert [(1,)] == database.read(lambda tx: tx.rows("SELECT 1"))


def test_more_statements_than_are_kept_prepared_still_run(database: PostgresDatabase) -> None:
    def many(tx: Any) -> list[Any]:
        return [tx.rows(f"SELECT {number} + :one", {"one": 1})[0][0] for number in range(300)]

    assert list(range(1, 301)) == database.read(many)
    assert list(range(1, 301)) == database.read(many)
