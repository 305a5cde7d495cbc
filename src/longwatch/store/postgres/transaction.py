"""A transaction on a connection of the pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import psycopg
from psycopg.pq.abc import PGresult

from longwatch.core.deadline import Deadline
from longwatch.errors import StoreError, UsageError
from longwatch.store.database import (
    CALL_TIMEOUT,
    ClockJump,
    Parameters,
    PreconditionFailedError,
    Row,
)
from longwatch.store.postgres.connection import BoundStatement, PostgresConnection
from longwatch.store.postgres.errors import (
    CallTimeoutError,
    ConnectionLostError,
)
from longwatch.store.postgres.statement import bind, column_arrays

NOTIFY_CHANNEL = "longwatch"
NOTIFY_SQL = b"SELECT pg_notify('longwatch', $1)"
"""All processes share one channel of the server. The payload names the sender and the channel."""

_TIME_LIMITS = {
    "statement_timeout": f"{CALL_TIMEOUT:.0f}s",
    "idle_in_transaction_session_timeout": f"{2 * CALL_TIMEOUT:.0f}s",
    "jit": "off",
}
_INDEX_PLANS = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
}


def _settings(values: Mapping[str, str]) -> bytes:
    """Return the statement that sets these until the end of the transaction."""
    calls = (f"set_config('{name}', '{value}', true)" for name, value in values.items())
    return b"SELECT " + ", ".join(calls).encode()


SETTINGS = _settings({**_TIME_LIMITS, **_INDEX_PLANS})
"""The settings of a transaction, which end with it: behind a pooler the session belongs to others
too.

The timeouts end a statement soon after its call, and free the locks of a client that froze in a
transaction. Statements are planned once, to use an index: a plan made while a queue was empty must
also suit a million messages.
"""
BEGIN_READ_WRITE = (b"BEGIN ISOLATION LEVEL READ COMMITTED", SETTINGS)
BEGIN_READ_ONLY = (b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", SETTINGS)
BEGIN_OF_USER = (BEGIN_READ_WRITE[0], _settings(_TIME_LIMITS))
"""The begin of a transaction with users' statements, which get the plans of the server's
settings.
"""
_HAS_WRITTEN = b"SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
NO_PARAMETERS: Parameters = {}
_REQUIRE_SQL = "SELECT ln(({})::int)"
"""ln(0) fails with an error that no other statement raises, and the server skips the statements
after it.
"""

RowsCallback = Callable[[list[Row]], None]


class PostgresTransaction:
    """A transaction on one connection. It begins with the first statement, in the same round trip.

    Until the transaction has written, every round trip asks the server whether it has. The commit
    of a transaction that only read is not waited for. A deferred statement is sent with the next
    one, or with the commit.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        *,
        store_identity: object,
        jump: ClockJump,
        deadline: Deadline,
        begin: Sequence[bytes] = BEGIN_READ_WRITE,
    ) -> None:
        self.store_identity = store_identity
        self._connection: PostgresConnection | None = connection
        self._jump = jump
        self._deadline = deadline
        self._begin_statements = begin
        self._has_begun = False
        self._deferred: list[RowsCallback | None] = []
        self._has_unsent = self._has_preconditions = False
        self.has_written = False
        self.channels: set[str] = set()
        self.callbacks: list[Callable[[], None]] = []

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self._live_connection().rows(self._run(sql, parameters or NO_PARAMETERS))

    def rows_many(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self._live_connection().rows(result) for result in self._run_all(statements)]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        return self._run(sql, parameters or NO_PARAMETERS).command_tuples or 0

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return sum(self.execute(sql, arrays) for arrays in column_arrays(parameters))

    def defer_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        chunks = list(column_arrays(parameters))
        for arrays in chunks[:-1]:
            self.execute(sql, arrays)
        for arrays in chunks[-1:]:
            self._defer(sql, arrays)

    def defer_rows(self, sql: str, parameters: Parameters, callback: RowsCallback) -> None:
        self._defer(sql, parameters, callback)

    def defer(self, sql: str, parameters: Parameters) -> None:
        self._defer(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        self._has_preconditions = True
        self._defer(_REQUIRE_SQL.format(sql), parameters)

    def notify(self, channel: str) -> None:
        self.channels.add(channel)

    def after_commit(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def commit(
        self, marker_statement: BoundStatement, *, trailing: Sequence[BoundStatement] = ()
    ) -> None:
        """Commit together with the marker. The trailing statements are sent behind it. After
        ConnectionLostError or CallTimeoutError the result is unknown.
        """
        connection = self._live_connection()
        if not self._has_begun:
            return
        if not self.has_written:
            connection.send(b"COMMIT")
            connection.sync_nowait(self._deadline)
            return
        self._has_unsent = False
        connection.send(*marker_statement)
        connection.send(b"COMMIT")
        try:
            self._deliver_results(connection.sync(self._deadline, trailing=trailing))
        except psycopg.errors.InvalidArgumentForLogarithm:
            self._raise_precondition_failed()
            raise
        except psycopg.errors.InFailedSqlTransaction:
            raise StoreError(
                "nothing was written: a statement failed and its error was ignored; let the "
                "error propagate"
            ) from None

    def roll_back(self) -> None:
        """Roll back without waiting. A connection with a statement in progress is closed, and the
        server then rolls back.
        """
        connection = self._live_connection()
        if not self._has_begun or connection.closed_reason:
            return
        try:
            if self._has_unsent:
                connection.sync_nowait(self._deadline)
            if connection.is_idle:
                connection.send(b"ROLLBACK")
                connection.sync_nowait(self._deadline)
        except (ConnectionLostError, CallTimeoutError):
            pass
        if not connection.is_idle:
            connection.close("it was abandoned during a statement")

    def end(self) -> None:
        """Make every later call raise UsageError: another caller may use the connection now."""
        self._connection = None

    def _run(self, sql: str, parameters: Parameters) -> PGresult:
        return self._run_all([(sql, parameters)])[0]

    def _run_all(self, statements: Sequence[tuple[str, Parameters]]) -> list[PGresult]:
        connection = self._live_connection()
        for sql, parameters in statements:
            self._send(sql, parameters)
        asks_has_written = not self.has_written and self._begin_statements is not BEGIN_READ_ONLY
        if asks_has_written:
            connection.send(_HAS_WRITTEN)
        self._has_unsent = False
        try:
            results = self._deliver_results(connection.sync(self._deadline))
        except psycopg.errors.InvalidArgumentForLogarithm:
            self._raise_precondition_failed()
            raise
        if asks_has_written:
            [(self.has_written,)] = connection.rows(results[-1])
        return results[: len(statements)]

    def _raise_precondition_failed(self) -> None:
        """Raise PreconditionFailedError if there are preconditions. Otherwise the logarithm is in
        the user's SQL.
        """
        if self._has_preconditions:
            raise PreconditionFailedError from None

    def _defer(
        self, sql: str, parameters: Parameters, callback: RowsCallback | None = None
    ) -> None:
        self._send(sql, parameters)
        self._deferred.append(callback)
        self.has_written = self._has_unsent = True

    def _deliver_results(self, results: list[PGresult]) -> list[PGresult]:
        """Pass the results of deferred statements to their callbacks, and return the other
        results.
        """
        deferred, self._deferred = self._deferred, []
        for result, callback in zip(results, deferred, strict=False):
            if callback is not None:
                callback(self._live_connection().rows(result))
        return results[len(deferred) :]

    def _send(self, sql: str, parameters: Parameters) -> None:
        connection = self._live_connection()
        text, values = bind(sql, parameters, self._jump)
        self._has_unsent = False
        if not self._has_begun:
            self._has_begun = True
            for statement in self._begin_statements:
                connection.send(statement)
            connection.probe()
            self._deferred += [None] * len(self._begin_statements)
        connection.send(text, values)

    def _live_connection(self) -> PostgresConnection:
        if self._connection is None:
            raise UsageError(
                "this transaction has ended; use it only inside the function it was given to"
            )
        return self._connection
