"""A transaction on one of our connections, and one on a connection of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGresult
from psycopg.rows import tuple_row

from longwatch.errors import StoreError, UnsupportedError, UsageError
from longwatch.store.database import ChangedError, Jump, Parameters, Row
from longwatch.store.postgres_errors import (
    CallTimeoutError,
    ConnectionLostError,
    is_without_mailbox,
    vanished,
)
from longwatch.store.postgres_statement import bound, columns
from longwatch.store.postgres_wire import Order, Wire

CHANNEL = "longwatch"
NOTIFY = b"SELECT pg_notify('longwatch', $1)"
"""One channel of the server for everybody; what it is about, and who says it, is in the payload."""

READ_WRITE = (b"BEGIN ISOLATION LEVEL READ COMMITTED",)
READ_ONLY = (b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
_HAS_WRITTEN = b"SELECT pg_current_xact_id_if_assigned() IS NOT NULL"
_NO_PARAMETERS: Parameters = {}
_REQUIRED = "SELECT ln(({})::int)"
"""Zero has no logarithm: the statement fails, with an error that no other has, and what comes
behind it is not done.
"""

Answer = Callable[[list[Row]], None]


class PostgresTransaction:
    """A transaction on one connection. It begins with the first statement, in the same round trip.

    Along with every statement the server is asked whether it has written, until it has. One that
    has not need not be waited for. A statement that was posted leaves with the next one, or with
    the commit.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        home: object,
        jump: Jump,
        deadline: float,
        begin: Sequence[bytes] = READ_WRITE,
    ) -> None:
        self.home = home
        self._wire: Wire | None = wire
        self._jump = jump
        self._deadline = deadline
        self._begin = begin
        self._is_begun = False
        self._ahead: list[Answer | None] = []
        self._is_posted = self._requires = False
        self.has_written = False
        self.channels: set[str] = set()
        self.callbacks: list[Callable[[], None]] = []

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self._here().rows(self._run(sql, parameters or _NO_PARAMETERS))

    def rows_of(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self._here().rows(result) for result in self._run_all(statements)]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        return self._run(sql, parameters or _NO_PARAMETERS).command_tuples or 0

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return sum(self.execute(sql, arrays) for arrays in columns(parameters))

    def post_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        pieces = list(columns(parameters))
        for arrays in pieces[:-1]:
            self.execute(sql, arrays)
        for arrays in pieces[-1:]:
            self._post(sql, arrays)

    def ask(self, sql: str, parameters: Parameters, answer: Answer) -> None:
        self._post(sql, parameters, answer)

    def post(self, sql: str, parameters: Parameters) -> None:
        self._post(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        self._requires = True
        self._post(_REQUIRED.format(sql), parameters)

    def announce(self, channel: str) -> None:
        self.channels.add(channel)

    def after_commit(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def commit(self, testimony: Order, *, behind: Sequence[Order] = ()) -> None:
        """Commit, leaving the testimony; the rest goes out behind it. After ConnectionLostError,
        CallTimeoutError nobody knows.
        """
        wire = self._here()
        if not self._is_begun:
            return
        if not self.has_written:
            wire.send(b"COMMIT")
            wire.leave(self._deadline)
            return
        self._is_posted = False
        wire.send(*testimony)
        wire.send(b"COMMIT")
        try:
            self._hand_out(wire.answer(self._deadline, behind=behind))
        except psycopg.errors.InvalidArgumentForLogarithm:
            self._tell_changed()
            raise
        except psycopg.errors.InFailedSqlTransaction:
            raise StoreError(
                "nothing was written: a statement had failed, and its error was passed over"
            ) from None

    def roll_back(self) -> None:
        """Undo it, without waiting for that. A connection in the middle of something is given
        up: the server undoes it then.
        """
        wire = self._here()
        if not self._is_begun or wire.trouble:
            return
        try:
            if self._is_posted:
                wire.leave(self._deadline)
            if wire.is_quiet:
                wire.send(b"ROLLBACK")
                wire.leave(self._deadline)
        except (ConnectionLostError, CallTimeoutError):
            pass
        if not wire.is_quiet:
            wire.close("it was given up in the middle of a statement")

    def end(self) -> None:
        """From here on it refuses: the connection is somebody else's now."""
        self._wire = None

    def _run(self, sql: str, parameters: Parameters) -> PGresult:
        return self._run_all([(sql, parameters)])[0]

    def _run_all(self, statements: Sequence[tuple[str, Parameters]]) -> list[PGresult]:
        wire = self._here()
        for sql, parameters in statements:
            self._send(sql, parameters)
        asks = not self.has_written and self._begin is not READ_ONLY
        if asks:
            wire.send(_HAS_WRITTEN)
        self._is_posted = False
        try:
            results = self._hand_out(wire.answer(self._deadline))
        except psycopg.errors.InvalidArgumentForLogarithm:
            self._tell_changed()
            raise
        if asks:
            [(self.has_written,)] = wire.rows(results[-1])
        return results[: len(statements)]

    def _tell_changed(self) -> None:
        """A logarithm of zero in the user's SQL is the user's."""
        if self._requires:
            raise ChangedError from None

    def _post(self, sql: str, parameters: Parameters, answer: Answer | None = None) -> None:
        self._send(sql, parameters)
        self._ahead.append(answer)
        self.has_written = self._is_posted = True

    def _hand_out(self, results: list[PGresult]) -> list[PGresult]:
        """Give those who posted a question its answer; what was answered behind them."""
        ahead, self._ahead = self._ahead, []
        for result, answer in zip(results, ahead, strict=False):
            if answer is not None:
                answer(self._here().rows(result))
        return results[len(ahead) :]

    def _send(self, sql: str, parameters: Parameters) -> None:
        wire = self._here()
        text, values = bound(sql, parameters, self._jump)
        self._is_posted = False
        if not self._is_begun:
            self._is_begun = True
            for statement in self._begin:
                wire.send(statement)
            wire.prove()
            self._ahead += [None] * len(self._begin)
        wire.send(text, values)

    def _here(self) -> Wire:
        if self._wire is None:
            raise UsageError(
                "this transaction has ended; use it only inside the function it was given to"
            )
        return self._wire


class UsersTransaction:
    """The transaction that is open on a psycopg connection of the user's: what is done in it
    commits with theirs, or not at all.
    """

    def __init__(self, connection: psycopg.Connection[Any], jump: Jump) -> None:
        self._cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
        self._jump = jump

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        self._run(sql, parameters or _NO_PARAMETERS)
        return self._cursor.fetchall() if self._cursor.description else []

    def rows_of(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self.rows(sql, parameters) for sql, parameters in statements]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        self._run(sql, parameters or _NO_PARAMETERS)
        return max(self._cursor.rowcount, 0)

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return sum(self.execute(sql, arrays) for arrays in columns(parameters))

    def post_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        self.execute_many(sql, parameters)

    def ask(self, sql: str, parameters: Parameters, answer: Answer) -> None:
        answer(self.rows(sql, parameters))

    def post(self, sql: str, parameters: Parameters) -> None:
        self._run(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        if not self.rows(sql, parameters)[0][0]:
            raise ChangedError

    def announce(self, channel: str) -> None:
        """At once, in their transaction: the server tells nobody before it commits, and tells
        once.
        """
        self._cursor.execute(NOTIFY, (f"/{channel}",))

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Nobody here learns of it."""

    def _run(self, sql: str, parameters: Parameters) -> None:
        text, values = bound(sql, parameters, self._jump)
        try:
            self._cursor.execute(text, values, binary=True)
        except psycopg.errors.NotNullViolation as error:
            raise (
                vanished("the database of tx=") if is_without_mailbox(error) else error
            ) from error.__cause__


def users_transaction(given: object, jump: Jump) -> UsersTransaction:
    """The transaction of a psycopg connection; UnsupportedError for what is none, or has none."""
    if isinstance(given, psycopg.AsyncConnection):
        raise UnsupportedError(
            "tx= cannot be an AsyncConnection; give a psycopg.Connection, in a thread of its "
            "own if need be"
        )
    if not isinstance(given, psycopg.Connection):
        raise UnsupportedError(
            f"tx= must be a psycopg.Connection, or what transact() gives its function, not "
            f"{type(given).__name__}"
        )
    if given.closed:
        raise UnsupportedError(
            "tx= is a connection that was closed; open it again and begin a transaction"
        )
    if given.autocommit and given.info.transaction_status == pq.TransactionStatus.IDLE:
        raise UnsupportedError(
            "tx= is in autocommit and in no transaction; use it inside `with "
            "connection.transaction():`"
        )
    if given.info.pipeline_status != pq.PipelineStatus.OFF:
        raise UnsupportedError(
            "tx= is a connection in pipeline mode, which answers too late; leave the pipeline first"
        )
    return UsersTransaction(given, jump)
