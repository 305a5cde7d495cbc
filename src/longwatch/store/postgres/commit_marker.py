"""Finds out whether a commit was made whose response was lost.

Every transaction that writes also writes a marker: the row of its connection, with a number that
rises with each commit. It is written with the commit, in the same round trip. A caller that has
lost the response reads the row, which has the number of the last commit. Reading also closes the
series: it waits for a commit in progress, and a commit that arrives later fails. So the answer
holds through crashes, restarts and failovers of the server.

The server's own `pg_xact_status` cannot be used: in a crash the server forgets transaction numbers
that had not reached its disk, reuses them, and then reports on those.
"""

from __future__ import annotations

import secrets

from longwatch.core.deadline import Deadline
from longwatch.store.postgres.connection import BoundStatement, PostgresConnection

MAX_SERIES_COMMITS = 1000
"""Commits after which a connection starts a new series: while a snapshot keeps old versions alive,
a row that changed often is slow to find.
"""

_MARK = b"""
    INSERT INTO longwatch_commits (series, number, updated_at)
    VALUES ($1, $2, extract(epoch from statement_timestamp()))
    ON CONFLICT (series) DO UPDATE
    SET number = excluded.number / (1 - longwatch_commits.closed), updated_at = excluded.updated_at
"""
"""In a closed series this divides by zero, so the commit after it is not made."""
_CLOSE_SERIES = b"""
    INSERT INTO longwatch_commits (series, number, closed, updated_at)
    VALUES ($1, 0, 1, extract(epoch from statement_timestamp()))
    ON CONFLICT (series) DO UPDATE SET closed = 1 RETURNING number
"""
_DELETE_OLD = (
    b"DELETE FROM longwatch_commits WHERE updated_at < extract(epoch from statement_timestamp()) "
    b"- 3600"
)
"""No caller asks once the time of its call is over."""


class CommitMarker:
    """The series of one connection, and the number of its last commit."""

    __slots__ = ("number", "series")

    def __init__(self) -> None:
        self.series = 0
        self.number = MAX_SERIES_COMMITS

    def advance(self) -> BoundStatement:
        """The statement that marks the next commit."""
        if self.number == MAX_SERIES_COMMITS:
            self.series, self.number = secrets.randbits(62), 0
        self.number += 1
        return _MARK, (self.series, self.number)

    def cleanup(self) -> list[BoundStatement]:
        """The statements that follow that commit: the first of a series deletes old ones."""
        return [(_DELETE_OLD, ())] if self.number == 1 else []


def was_committed(
    connection: PostgresConnection, series: int, number: int, deadline: Deadline
) -> bool:
    """Whether that commit was made; if it was not, it never will be."""
    [(last,)] = connection.query(_CLOSE_SERIES, (series,), deadline)
    return bool(last == number)
