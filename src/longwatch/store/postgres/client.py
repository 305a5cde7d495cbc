"""What one process has open of a PostgreSQL server: connections, and the notifications to and from
other processes.

A piece of work is tried once here; `database.py` retries until the deadline.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg

from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreLocationError, UsageError
from longwatch.store.database import Channels, ClockJump, Transaction
from longwatch.store.migrations import Migration, load_migrations, migrate, require_known_version
from longwatch.store.postgres.commit_marker import CommitMarker, was_committed
from longwatch.store.postgres.connection import PostgresConnection
from longwatch.store.postgres.connector import ServerAddress, begin_session, warn_unsafe
from longwatch.store.postgres.errors import CallTimeoutError, ConnectionLostError, first_line
from longwatch.store.postgres.listener import PostgresListener
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
"""Whoever changes the schema holds this advisory lock."""


_MIGRATE_CURE = (
    "run `longwatch db migrate --store URL`, or open it with open_store(url, auto_migrate=True)"
)
_SCHEMA_CURE = "run CREATE SCHEMA longwatch, and add options=-csearch_path=longwatch to the URL"


class CommitUnknownError(Exception):
    """The response to a commit was lost. Holds what is needed to find out whether it was made, and
    the result to return if it was.
    """

    def __init__(self, transaction: PostgresTransaction, marker: CommitMarker, result: Any) -> None:
        super().__init__("the answer to the commit was lost")
        self.transaction = transaction
        self.series = marker.series
        self.number = marker.number
        self.result = result


class PostgresClient:
    """Connections and threads of one process. Every method may be called from any thread."""

    def __init__(
        self, address: ServerAddress, *, jump: ClockJump, size: int, auto_migrate: bool
    ) -> None:
        self.was_reached = False
        self._has_warned = False
        self._address = address
        self._jump = jump
        self._auto_migrate = auto_migrate
        self._client_id = os.urandom(6).hex()
        self._pool = ConnectionPool(self._connect, size=size)
        self._listener = PostgresListener(
            lambda deadline: self._connect(deadline, warns=False), client_id=self._client_id
        )
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
        begin: Sequence[bytes] = BEGIN_READ_WRITE,
    ) -> T:
        """Run work and commit it; CommitUnknownError when the response to the commit was lost."""
        began = time.monotonic()
        with self._pool.connection(deadline) as connection:
            transaction = self._transaction(connection, deadline, begin)
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

    def read(self, work: Callable[[Any], T], deadline: Deadline) -> T:
        """Run work on one view of the data; the end of it is not waited for."""
        with self._pool.connection(deadline) as connection:
            transaction = self._transaction(connection, deadline, BEGIN_READ_ONLY)
            try:
                return work(transaction)
            except psycopg.errors.ReadOnlySqlTransaction:
                raise UsageError("a read cannot write; use write(), or transact()") from None
            finally:
                transaction.roll_back()
                transaction.end()

    def was_committed(self, unknown: CommitUnknownError, deadline: Deadline) -> bool:
        """What became of a commit; if it was not made, it never will be."""
        with self._pool.connection(deadline) as connection:
            found = was_committed(connection, unknown.series, unknown.number, deadline)
        if found:
            self._throttle.defer(self._remote_channels(unknown.transaction))
            self._after_commit(unknown.transaction)
        return found

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self._listener.listen(channels, wakeup)

    def _transaction(
        self, connection: PostgresConnection, deadline: Deadline, begin: Sequence[bytes]
    ) -> PostgresTransaction:
        return PostgresTransaction(
            connection,
            store_identity=self._address.identity,
            jump=self._jump,
            deadline=deadline,
            begin=begin,
        )

    def _commit(
        self, transaction: PostgresTransaction, connection: PostgresConnection, result: Any
    ) -> None:
        marker = self._markers.setdefault(connection, CommitMarker())
        marker_statement = marker.advance()
        due = self._throttle.take_due(self._remote_channels(transaction))
        notifications = [(NOTIFY_SQL, (self._payload(channel),)) for channel in due]
        try:
            transaction.commit(marker_statement, trailing=[*notifications, *marker.cleanup()])
        except (ConnectionLostError, CallTimeoutError) as error:
            if transaction.has_written:
                raise CommitUnknownError(transaction, marker, result) from error
        self._throttle.defer(self._remote_channels(transaction).difference(due))

    def _remote_channels(self, transaction: PostgresTransaction) -> frozenset[str]:
        """What other processes are to be told. Asked before the commit and after it: one that
        began meanwhile has been answered.
        """
        return (
            frozenset(transaction.channels)
            if self._listener.presence.may_have_peers
            else frozenset()
        )

    def _after_commit(self, transaction: PostgresTransaction) -> None:
        for callback in transaction.callbacks:
            callback()
        self._listener.subscriptions.wake(transaction.channels)

    # --- the schema ---

    def prepare(self, deadline: Deadline) -> None:
        """Once a process: see that the schema is there, make it if it is not."""
        if self._is_prepared:
            return
        left = deadline.remaining()
        if not self._prepare_lock.acquire(timeout=-1 if left is None else left):
            raise StoreBusyError(
                "the schema was looked at all the time; nothing was written, try again"
            )
        try:
            if not self._is_prepared:
                self._migrate(deadline)
            self._is_prepared = True
        finally:
            self._prepare_lock.release()

    def _migrate(self, deadline: Deadline) -> None:
        """Look first: where nothing is to be done, nothing is locked, and a user who may not
        change the schema need not.
        """
        known = load_migrations("postgresql")
        version = self.read(schema_version, deadline)
        newest = known[-1].version
        if version == newest:
            return
        require_known_version(version, known, store=self._address.masked_url)
        if not self._auto_migrate:
            raise StoreLocationError(
                f"{self._address.masked_url} is at schema {version} of {newest}; {_MIGRATE_CURE}"
            )
        try:
            self.write(lambda transaction: _migrate(transaction, known), deadline)
        except (psycopg.errors.DuplicateTable, psycopg.errors.InvalidSchemaName) as error:
            raise UsageError(
                f"{self._address.masked_url} has no place for our tables ({first_line(error)}); "
                f"{_SCHEMA_CURE}"
            ) from error

    # --- connections ---

    def _connect(self, deadline: Deadline, *, warns: bool = True) -> PostgresConnection:
        connection = self._address.connect(deadline)
        try:
            faults = begin_session(connection, self._address.masked_url, deadline)
            self.was_reached = True
            if warns and not self._has_warned:
                self._has_warned = True
                warn_unsafe(self._address.masked_url, faults)
        except BaseException:
            connection.close()
            raise
        return connection

    def _notify(self, channels: list[str]) -> None:
        deadline = Deadline.after(1.0, SystemClock())
        with self._pool.connection(deadline) as connection:
            for channel in channels:
                connection.send(NOTIFY_SQL, (self._payload(channel),))
            connection.sync(deadline)

    def _payload(self, channel: str) -> str:
        return f"{self._client_id}/{channel}"

    def close(self) -> None:
        """Tell what is still to be told, then let go of everything; idempotent."""
        self._throttle.close()
        self._listener.close()
        self._pool.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's sockets, without a word."""
        self._listener.abandon()
        self._pool.abandon()


def _close_if_read_only(
    connection: PostgresConnection, error: BaseException, *, since: float
) -> None:
    """The server may have been demoted: then its address leads to another one, but only for a new
    connection.

    What an older connection says proves nothing about the server of today; a new one is asked.
    """
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        connection.close("it is read-only")
        if connection.connected_at < since:
            raise ConnectionLostError("it has become read-only") from error


def schema_version(transaction: Transaction) -> int:
    """The version of the schema; 0 if there is none. A read, unlike that of `migrations`."""
    [(is_there,)] = transaction.rows("SELECT to_regclass('longwatch_schema') IS NOT NULL")
    if not is_there:
        return 0
    [(version,)] = transaction.rows("SELECT coalesce(max(version), 0) FROM longwatch_schema")
    return int(version)


def _migrate(transaction: Transaction, known: list[Migration]) -> list[Migration]:
    """Make the steps that are pending; whoever comes at the same time waits, and finds them
    made.
    """
    transaction.rows("SELECT pg_advisory_xact_lock(:key)", {"key": _SCHEMA_LOCK})
    return migrate(transaction, known)
