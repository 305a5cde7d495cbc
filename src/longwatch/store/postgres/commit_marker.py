"""Finds out whether a commit was made whose reply was lost.

Every transaction that writes also writes a marker: the row of its connection, with a number that
rises with each commit. It is written with the commit, in the same round trip. A caller that has
lost the reply reads the row, which has the number of the last commit. The read also closes the
series: it waits for a commit in progress, and a commit that arrives later fails. So the result
holds through crashes, restarts and failovers of the server.

The server's own `pg_xact_status` cannot be used: in a crash the server forgets transaction numbers
that had not reached its disk, reuses them, and then reports on those.
"""

from __future__ import annotations

import secrets

import psycopg

from longwatch.core.deadline import Deadline
from longwatch.store.postgres.connection import BoundStatement, PostgresConnection
from longwatch.store.postgres.errors import first_line
from longwatch.store.postgres.transaction import BEGIN_READ_WRITE

MAX_SERIES_COMMITS = 1000
"""Commits after which a connection starts a new series. While a snapshot keeps old row versions
alive, a row that changed often is slow to find.
"""

_MARK = b"""
    INSERT INTO longwatch_commits (series, number, updated_at)
    VALUES ($1, $2, extract(epoch from statement_timestamp()))
    ON CONFLICT (series) DO UPDATE
    SET number = excluded.number / (1 - longwatch_commits.closed), updated_at = excluded.updated_at
"""
"""In a closed series this divides by zero, so the commit fails."""
_CLOSE_SERIES = b"""
    INSERT INTO longwatch_commits (series, number, closed, updated_at)
    VALUES ($1, 0, 1, extract(epoch from statement_timestamp()))
    ON CONFLICT (series) DO UPDATE SET closed = 1 RETURNING number
"""
_DELETE_OLD = (
    b"DELETE FROM longwatch_commits WHERE updated_at < extract(epoch from statement_timestamp()) "
    b"- 3600"
)
"""A caller asks only during its call, so old series are not needed."""


class CommitMarker:
    """The series of one connection, and the number of its last commit."""

    __slots__ = ("number", "series")

    def __init__(self) -> None:
        self.series = 0
        self.number = MAX_SERIES_COMMITS

    def advance(self) -> BoundStatement:
        """Return the statement that marks the next commit."""
        if self.number == MAX_SERIES_COMMITS:
            self.series, self.number = secrets.randbits(62), 0
        self.number += 1
        return _MARK, (self.series, self.number)

    def cleanup(self) -> list[BoundStatement]:
        """Return the statements to run after that commit: the first commit of a series deletes old
        series.
        """
        return [(_DELETE_OLD, ())] if self.number == 1 else []


def was_committed(
    connection: PostgresConnection, series: int, number: int, deadline: Deadline
) -> bool:
    """Return whether that commit was made. If it was not, it never will be.

    Closes the connection when a statement fails, because its transaction stays open.
    """
    for statement in BEGIN_READ_WRITE:
        connection.send(statement)
    connection.send(_CLOSE_SERIES, (series,))
    connection.send(b"COMMIT")
    try:
        results = connection.sync(deadline)
    except psycopg.Error as error:
        connection.close(f"a commit could not be looked up: {first_line(error)}")
        raise
    [(last,)] = connection.rows(results[len(BEGIN_READ_WRITE)])
    return bool(last == number)
