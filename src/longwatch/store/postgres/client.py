"""The connections of one process to a PostgreSQL server, and its notifications to and from other
processes. The databases that were opened by one URL share them (`shared_clients`).

Work is tried once here. `database.py` retries it until the deadline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreLocationError, UsageError
from longwatch.store.database import NO_SCHEMA, Channels, ClockJump, StoredSchema, Transaction
from longwatch.store.migrations import (
    Migration,
    is_up_to_date,
    load_migrations,
    migrate,
    read_schema,
    require_usable_schema,
)
from longwatch.store.postgres.commit_marker import CommitMarker, was_committed
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.connector import (
    ServerAddress,
    ServerFacts,
    check_server,
    warn_unsafe,
)
from longwatch.store.postgres.errors import CallTimeoutError, ConnectionLostError, first_line
from longwatch.store.postgres.listener import PostgresListener
from longwatch.store.postgres.notify_payload import encode_payloads, for_all_receivers
from longwatch.store.postgres.notify_throttle import NotifyThrottle
from longwatch.store.postgres.pool import ConnectionPool
from longwatch.store.postgres.transaction import (
    BEGIN_READ_ONLY,
    BEGIN_READ_WRITE,
    NOTIFY_SQL,
    PostgresTransaction,
)

T = TypeVar("T")

_SCHEMA_LOCK = 7_303_014_620_157_292_921
"""The key of the advisory lock that a process holds while it changes the schema."""


_MIGRATE_CURE = (
    "run `longwatch db migrate --store URL`, or open it with open_store(url, auto_migrate=True)"
)
_SCHEMA_CURE = "run CREATE SCHEMA longwatch, and add options=-csearch_path=longwatch to the URL"


_LOST_STATEMENTS = (
    psycopg.errors.DuplicatePreparedStatement,
    psycopg.errors.InvalidSqlStatementName,
)


class CommitUnknownError(Exception):
    """The reply to a commit was lost. Holds the marker with which to ask whether it was made, and
    the result to return if so.
    """

    def __init__(self, transaction: PostgresTransaction, marker: CommitMarker, result: Any) -> None:
        super().__init__("the reply to the commit was lost")
        self.transaction = transaction
        self.series = marker.series
        self.number = marker.number
        self.result = result


class PostgresClient:
    """The connections and threads of one process. Every method is thread-safe."""

    def __init__(self, address: ServerAddress, *, size: int) -> None:
        self.was_reached = False
        self._is_pooled = address.pooled
        """Whether a pooler lends connections for one transaction. None: not known yet."""
        self._has_warned = False
        self._address = address
        self._client_id = os.urandom(6).hex()
        self._pool = ConnectionPool(self._connect, size=size)
        self._listener = PostgresListener(self._connect_listener, client_id=self._client_id)
        self._throttle = NotifyThrottle(self._notify)
        self._markers: WeakKeyDictionary[PostgresConnection, CommitMarker] = WeakKeyDictionary()
        self._prepare_lock = threading.Lock()
        self._is_prepared = False

    # --- work ---

    def write(
        self,
        work: Callable[[Any], T],
        deadline: Deadline,
        *,
        jump: ClockJump,
        begin: Sequence[bytes] = BEGIN_READ_WRITE,
    ) -> T:
        """Run work and commit it. Raises CommitUnknownError when the reply to the commit was
        lost.
        """
        began = time.monotonic()
        with self._connection(deadline) as connection:
            transaction = self._transaction(connection, deadline, begin, jump)
            try:
                result = work(transaction)
                self._commit(transaction, connection, result)
            except BaseException as error:
                transaction.roll_back()
                _close_if_read_only(connection, error, since=began)
                raise
            finally:
                transaction.end()
        self._after_commit(transaction)
        return result

    def read(self, work: Callable[[Any], T], deadline: Deadline, *, jump: ClockJump) -> T:
        """Run work on one snapshot of the data. Does not wait for the end of the transaction."""
        with self._connection(deadline) as connection:
            transaction = self._transaction(connection, deadline, BEGIN_READ_ONLY, jump)
            try:
                return work(transaction)
            except psycopg.errors.ReadOnlySqlTransaction:
                raise UsageError("a read cannot write; use write(), or transact()") from None
            finally:
                transaction.roll_back()
                transaction.end()

    def was_committed(self, unknown: CommitUnknownError, deadline: Deadline) -> bool:
        """Return whether a commit was made. If it was not, it never will be."""
        with self._connection(deadline) as connection:
            found = was_committed(connection, unknown.series, unknown.number, deadline)
        if found:
            self._throttle.defer(unknown.transaction.channels)
            self._after_commit(unknown.transaction)
        return found

    def notify(self, channels: Collection[str], *, to_all: bool = False) -> None:
        """Notify channels without a commit. Other processes are notified in the background.
        `to_all`: no receiver may ignore it.
        """
        self._throttle.defer(for_all_receivers(channels) if to_all else channels)
        self._listener.subscriptions.wake(channels)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self._listener.listen(channels, wakeup)

    def _transaction(
        self,
        connection: PostgresConnection,
        deadline: Deadline,
        begin: Sequence[bytes],
        jump: ClockJump,
    ) -> PostgresTransaction:
        return PostgresTransaction(
            connection,
            store_identity=self._address.identity,
            jump=jump,
            deadline=deadline,
            begin=begin,
        )

    def _commit(
        self, transaction: PostgresTransaction, connection: PostgresConnection, result: Any
    ) -> None:
        marker = self._markers.setdefault(connection, CommitMarker())
        marker_statement = marker.advance()
        due = self._throttle.take_due(transaction.channels if transaction.has_written else ())
        trailing = [*self._notifications(due), *marker.cleanup()]
        try:
            transaction.commit(marker_statement, trailing=trailing)
        except BaseException as error:
            self._throttle.defer(due - transaction.channels)
            if not isinstance(error, ConnectionLostError | CallTimeoutError):
                raise
            if transaction.has_written:
                raise CommitUnknownError(transaction, marker, result) from error
        self._throttle.defer(transaction.channels - due)

    def _notifications(self, channels: Iterable[str]) -> list[tuple[bytes, tuple[str]]]:
        """Return the statements that notify the channels in other processes."""
        payloads = encode_payloads(self._client_id, channels)
        return [(NOTIFY_SQL, (payload,)) for payload in payloads]

    def _after_commit(self, transaction: PostgresTransaction) -> None:
        for callback in transaction.callbacks:
            callback()
        self._listener.subscriptions.wake(transaction.channels)

    # --- the schema ---

    def prepare(self, deadline: Deadline, *, auto_migrate: bool) -> None:
        """Check the schema once per process; migrate it with `auto_migrate`."""
        if self._is_prepared:
            return
        left = deadline.remaining()
        if not self._prepare_lock.acquire(timeout=-1 if left is None else left):
            raise StoreBusyError(
                "another thread was checking the schema until the timeout; nothing was written, "
                "try again"
            )
        try:
            if not self._is_prepared:
                self._migrate(deadline, auto_migrate=auto_migrate)
            self._is_prepared = True
        finally:
            self._prepare_lock.release()

    def _migrate(self, deadline: Deadline, *, auto_migrate: bool) -> None:
        """Read the schema first: an up-to-date schema is not locked, and its user needs no right
        to change it.
        """
        known = load_migrations("postgresql")
        found = self.read(stored_schema, deadline, jump=ClockJump())
        if is_up_to_date(found, known):
            return
        require_usable_schema(found, known, store=self._address.masked_url)
        if not auto_migrate:
            raise StoreLocationError(
                f"{self._address.masked_url} is at schema {found.version} of {known[-1].version}; "
                f"{_MIGRATE_CURE}"
            )
        try:
            self.write(lambda transaction: _migrate(transaction, known), deadline, jump=ClockJump())
        except (psycopg.errors.DuplicateTable, psycopg.errors.InvalidSchemaName) as error:
            raise UsageError(
                f"{self._address.masked_url} has no schema for Longwatch's tables "
                f"({first_line(error)}); {_SCHEMA_CURE}"
            ) from error

    # --- connections ---

    @contextmanager
    def _connection(self, deadline: Deadline) -> Iterator[PostgresConnection]:
        """Lend a connection of the pool. Without named statements if they prove to get lost."""
        with self._pool.connection(deadline) as connection:
            try:
                yield connection
            except _LOST_STATEMENTS as error:
                if not connection.names_statements:
                    raise
                self._is_pooled = True
                connection.close("a pooler gives its prepared statements to others")
                raise ConnectionLostError(connection.closed_reason) from error

    def _connect(self, deadline: Deadline) -> PostgresConnection:
        connection, facts = self._connect_to(self._address, deadline)
        if self._is_pooled is None:
            self._is_pooled = connection.announced_pid != facts.pid
        connection.names_statements = not self._is_pooled
        self.was_reached = True
        if not self._has_warned:
            self._has_warned = True
            warn_unsafe(self._address.masked_url, facts.faults)
        return connection

    def _connect_listener(self, deadline: Deadline) -> PostgresConnection | None:
        """Return a connection that may LISTEN, or None if only a pooler is there. A pooler's
        connection must not LISTEN: others would get what it receives.
        """
        address = self._address.listener or self._address
        if address is self._address and self._is_pooled:
            return None
        connection, facts = self._connect_to(address, deadline)
        if address is self._address and self._is_pooled is None:
            self._is_pooled = connection.announced_pid != facts.pid
        if address is self._address and self._is_pooled:
            connection.close()
            return None
        return connection

    def _connect_to(
        self, address: ServerAddress, deadline: Deadline
    ) -> tuple[PostgresConnection, ServerFacts]:
        connection = address.connect(deadline)
        try:
            return connection, check_server(connection, address.masked_url, deadline)
        except BaseException:
            connection.close()
            raise

    def _notify(self, channels: Iterable[str]) -> None:
        deadline = Deadline.after(1.0, SystemClock())
        with self._connection(deadline) as connection:
            for statement in self._notifications(channels):
                connection.send(*statement)
            connection.sync(deadline)

    def resize_pool(self, difference: int) -> None:
        """Allow so many connections more, or fewer if it is negative."""
        self._pool.resize(difference)

    def close(self) -> None:
        """Send deferred notifications, then close every connection and thread. Idempotent."""
        self._throttle.close()
        self._listener.close()
        self._pool.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's sockets without notifying the
        server.
        """
        self._listener.abandon()
        self._pool.abandon()


def _close_if_read_only(
    connection: PostgresConnection, error: BaseException, *, since: float
) -> None:
    """Close a connection whose server has become read-only.

    The server may have been demoted, and a new connection may reach another one. If the connection
    is older than the call, ConnectionLostError makes the caller retry on a new one.
    """
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        connection.close("the server is read-only")
        if connection.connected_at < since:
            raise ConnectionLostError("the server has become read-only") from error


def stored_schema(transaction: Transaction) -> StoredSchema:
    """Return the schema, with version 0 if there is none. Only reads, unlike `migrations`."""
    [(is_there,)] = transaction.rows("SELECT to_regclass('longwatch_schema') IS NOT NULL")
    if not is_there:
        return NO_SCHEMA
    return read_schema(transaction.rows)


def _migrate(transaction: Transaction, known: list[Migration]) -> list[Migration]:
    """Apply the pending migrations. A process that comes at the same time waits for the lock and
    finds them applied.
    """
    transaction.rows("SELECT pg_advisory_xact_lock(:key)", {"key": _SCHEMA_LOCK})
    return migrate(transaction, known)
