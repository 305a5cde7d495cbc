"""What became of a commit whose answer was lost: known for certain, never guessed.

Every transaction that writes leaves a witness: a row that its connection has for itself, with a
number that rises with each commit. It is written with the commit, in the same round trip. Whoever
has lost the answer asks for the row; it says how far the commits came. The question also closes the
row: a commit that is being made is waited for, and one that is still on its way fails. So the
answer holds, through crashes, restarts and failovers of the server.

The server's own `pg_xact_status` will not do: in a crash it forgets transaction numbers that had
not reached its disk, gives them to others, and then tells of those.
"""

from __future__ import annotations

import secrets

from longwatch.store.postgres_wire import Order, Wire

MOST_COMMITS = 1000
"""Then a connection begins a new row: while somebody keeps old versions alive, one that was
changed often is slow to find.
"""

_TESTIFY = b"""
    INSERT INTO longwatch_commits (line, number, at)
    VALUES ($1, $2, extract(epoch from statement_timestamp()))
    ON CONFLICT (line) DO UPDATE
    SET number = excluded.number / (1 - longwatch_commits.closed), at = excluded.at
"""
"""On a line that was closed this divides by zero, and the commit behind it is not made."""
_ASK = b"""
    INSERT INTO longwatch_commits (line, number, closed, at)
    VALUES ($1, 0, 1, extract(epoch from statement_timestamp()))
    ON CONFLICT (line) DO UPDATE SET closed = 1 RETURNING number
"""
_FORGET = (
    b"DELETE FROM longwatch_commits WHERE at < extract(epoch from statement_timestamp()) - 3600"
)
"""Nobody asks once the time of a call is over."""


class Witness:
    """The row of one connection, and the number of its last commit."""

    __slots__ = ("line", "number")

    def __init__(self) -> None:
        self.line = 0
        self.number = MOST_COMMITS

    def next(self) -> Order:
        """What the next commit leaves."""
        if self.number == MOST_COMMITS:
            self.line, self.number = secrets.randbits(62), 0
        self.number += 1
        return _TESTIFY, (self.line, self.number)

    def behind(self) -> list[Order]:
        """What to do once that is made: whoever begins a row removes old ones."""
        return [(_FORGET, ())] if self.number == 1 else []


def was_committed(wire: Wire, line: int, number: int, deadline: float) -> bool:
    """Whether that commit was made; if it was not, it never will be."""
    [(last,)] = wire.ask(_ASK, (line,), deadline)
    return bool(last == number)
