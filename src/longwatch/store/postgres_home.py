"""Whether a connection of the user's leads to the tables that we use: messages sent elsewhere
would be lost to us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import psycopg

from longwatch.errors import UnsupportedError
from longwatch.store.database import Transaction

Place = tuple[int, int, int | None]
"""When the server was started, and the numbers of the database and of the table of messages
there; None: there is no such table.
"""

_PLACE = """
    SELECT (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
           to_regclass('longwatch_messages')::oid::bigint
"""


def place(transaction: Transaction) -> Place:
    """Where a transaction is. Names and addresses would not do: two may lead to one server, and
    one to two.
    """
    [(started, database, table)] = transaction.rows(_PLACE)
    return started, database, table


class Home:
    """Where our tables are. A connection that was found to lead there is not asked again."""

    def __init__(self, shown_url: str) -> None:
        self._shown = shown_url
        self._ours: Place | None = None
        self._seen: WeakSet[psycopg.Connection[Any]] = WeakSet()

    def require(
        self,
        connection: psycopg.Connection[Any],
        transaction: Transaction,
        look: Callable[[], Place],
    ) -> None:
        """UnsupportedError for a connection that leads elsewhere; `look` asks over one of our
        own.
        """
        if connection in self._seen:
            return
        if self._ours is None:
            self._ours = look()
        theirs = place(transaction)
        if theirs != self._ours:
            self._ours = look()  # the server may have been restarted since
        if theirs != self._ours:
            raise UnsupportedError(self._refusal(theirs))
        self._seen.add(connection)

    def _refusal(self, theirs: Place) -> str:
        if self._ours is not None and theirs[:2] == self._ours[:2]:
            return (
                f"tx= does not find the tables of {self._shown}; connect with the same search_path"
            )
        return (
            f"tx= is a connection to another database than {self._shown}; connect to that one, or "
            f"open the mailbox in theirs"
        )
