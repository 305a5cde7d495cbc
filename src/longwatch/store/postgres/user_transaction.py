"""A transaction on a user's psycopg connection.

Sends and settles in it commit with the user's own statements. A connection that leads to other
tables than the store's is refused: messages sent there would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from longwatch.errors import UnsupportedError
from longwatch.store.database import (
    ClockJump,
    Parameters,
    PreconditionFailedError,
    Row,
    Transaction,
)
from longwatch.store.postgres.errors import is_missing_mailbox, missing_mailbox_error
from longwatch.store.postgres.statement import bind, column_arrays
from longwatch.store.postgres.transaction import NO_PARAMETERS, RowsCallback


class UserTransaction:
    """The transaction that is open on a user's psycopg connection."""

    def __init__(self, connection: psycopg.Connection[Any], jump: ClockJump) -> None:
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._jump = jump

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        self._run(sql, parameters or NO_PARAMETERS)
        return self._cursor.fetchall() if self._cursor.description else []

    def rows_many(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self.rows(sql, parameters) for sql, parameters in statements]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        self._run(sql, parameters or NO_PARAMETERS)
        return max(self._cursor.rowcount, 0)

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return sum(self.execute(sql, arrays) for arrays in column_arrays(parameters))

    def defer_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        self.execute_many(sql, parameters)

    def defer_rows(self, sql: str, parameters: Parameters, callback: RowsCallback) -> None:
        callback(self.rows(sql, parameters))

    def defer(self, sql: str, parameters: Parameters) -> None:
        self._run(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        if not self.rows(sql, parameters)[0][0]:
            raise PreconditionFailedError

    def notify(self, channel: str) -> None:
        """Does nothing: the server would hold a lock of the whole database cluster from a NOTIFY to
        the end of the commit, and so make its commits wait for each other. Receivers also poll.
        """

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Does nothing: this process does not learn of the user's commit."""

    def _run(self, sql: str, parameters: Parameters) -> None:
        text, values = bind(sql, parameters, self._jump)
        try:
            self._cursor.execute(text, values, binary=True)
        except psycopg.errors.NotNullViolation as error:
            raise (
                missing_mailbox_error("the database of tx=") if is_missing_mailbox(error) else error
            ) from error.__cause__


def wrap_user_connection(connection: object, jump: ClockJump) -> UserTransaction:
    """Return the transaction of a psycopg connection. Raises UnsupportedError if none is open."""
    if isinstance(connection, psycopg.AsyncConnection):
        raise UnsupportedError(
            "tx= cannot be an AsyncConnection; pass a psycopg.Connection, from another thread "
            "if needed"
        )
    if not isinstance(connection, psycopg.Connection):
        raise UnsupportedError(
            f"tx= must be a psycopg.Connection or the transaction of transact(), not "
            f"{type(connection).__name__}"
        )
    if connection.closed:
        raise UnsupportedError("tx= is a closed connection; open it again and begin a transaction")
    if connection.autocommit and connection.info.transaction_status == pq.TransactionStatus.IDLE:
        raise UnsupportedError(
            "tx= is in autocommit and in no transaction; use it inside `with "
            "connection.transaction():`"
        )
    if connection.info.pipeline_status != pq.PipelineStatus.OFF:
        raise UnsupportedError(
            "tx= is in pipeline mode, which returns results too late; leave the pipeline first"
        )
    return UserTransaction(connection, jump)


TableLocation = tuple[int, int, int | None]
"""The start time of the server, and the oids of the database and of the messages table. None: there
is no such table.
"""

_LOCATE = """
    SELECT (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint,
           (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
           to_regclass('longwatch_messages')::oid::bigint
"""


def locate_tables(transaction: Transaction) -> TableLocation:
    """Return where a transaction finds the tables. Addresses do not suffice: two may lead to one
    server, and one to two.
    """
    [(started, database, table)] = transaction.rows(_LOCATE)
    return started, database, table


class UserConnectionCheck:
    """Checks that users' connections lead to the store's tables. Checks each connection once."""

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
        """Raise UnsupportedError for a connection that leads to other tables. `locate` queries a
        connection of the pool.
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
            f"open the mailbox in the database of tx="
        )
