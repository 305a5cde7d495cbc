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

TableLocation = tuple[int, int, int | None]
"""When the server was started, and the numbers of the database and of the table of messages
there; None: there is no such table.
"""

_LOCATE = """
    SELECT (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
           to_regclass('longwatch_messages')::oid::bigint
"""


def locate_tables(transaction: Transaction) -> TableLocation:
    """Where a transaction is. Names and addresses would not do: two may lead to one server, and
    one to two.
    """
    [(started, database, table)] = transaction.rows(_LOCATE)
    return started, database, table


class UserConnectionCheck:
    """Where our tables are. A connection that was found to lead there is not asked again."""

    def __init__(self, masked_url: str) -> None:
        self._masked_url = masked_url
        self._location: TableLocation | None = None
        self._checked: WeakSet[psycopg.Connection[Any]] = WeakSet()

    def require(
        self,
        connection: psycopg.Connection[Any],
        transaction: Transaction,
        locate: Callable[[], TableLocation],
    ) -> None:
        """UnsupportedError for a connection that leads elsewhere; `locate` asks over a connection
        of ours.
        """
        if connection in self._checked:
            return
        if self._location is None:
            self._location = locate()
        theirs = locate_tables(transaction)
        if theirs != self._location:
            self._location = locate()  # the server may have been restarted since
        if theirs != self._location:
            raise UnsupportedError(self._refusal(theirs))
        self._checked.add(connection)

    def _refusal(self, theirs: TableLocation) -> str:
        if self._location is not None and theirs[:2] == self._location[:2]:
            return (
                f"tx= does not find the tables of {self._masked_url}; connect with the same "
                f"search_path"
            )
        return (
            f"tx= is a connection to another database than {self._masked_url}; connect to "
            f"that one, or "
            f"open the mailbox in theirs"
        )
