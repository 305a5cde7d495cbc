"""The connections of one process to a SQLite file: a writer with its thread, a pool of readers, and
notifications to other processes.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeVar

from longwatch.errors import UsageError
from longwatch.store.database import NO_SCHEMA, ClockJump, StoredSchema
from longwatch.store.forks import LockLike
from longwatch.store.migrations import is_up_to_date, load_migrations, migrate, read_schema
from longwatch.store.notify.local import LocalNotifier
from longwatch.store.sqlite.connection import SqliteConnection, SqliteTransaction
from longwatch.store.sqlite.errors import translate_errors
from longwatch.store.sqlite.file import prepare_file
from longwatch.store.sqlite.groupcommit import GroupCommit, Job, JobResult, run_batch


class ReaderPool:
    """Lends connections for reading, as many as are used at once. Every method is thread-safe."""

    def __init__(self, connect: Callable[[], SqliteConnection]) -> None:
        self.lock = threading.Lock()
        self._connect = connect
        self._readers: list[SqliteConnection] = []
        self._free: list[SqliteConnection] = []
        self._closed = False

    @contextmanager
    def reader(self) -> Iterator[SqliteConnection]:
        """Lend a connection for exclusive use."""
        reader = self._take()
        try:
            yield reader
        finally:
            self._put_back(reader)

    def readers(self) -> list[SqliteConnection]:
        return list(self._readers)

    def close(self) -> None:
        """Close the free connections. The others are closed when they are returned."""
        with self.lock:
            self._closed = True
            free, self._free = self._free, []
        for reader in free:
            reader.close()

    def _take(self) -> SqliteConnection:
        with self.lock:
            if self._free:
                return self._free.pop()
            reader = self._connect()
            self._readers.append(reader)
            return reader

    def _put_back(self, reader: SqliteConnection) -> None:
        with self.lock:
            if not self._closed:
                self._free.append(reader)
                return
        reader.close()


T = TypeVar("T")
_abandoned: list[SqliteConnection] = []
"""Copies of a parent's connections that were in use when it forked. They are kept here, neither
used nor closed.
"""


class SqliteHandle:
    """The connections and threads of one process. The constructor opens the file. Every method is
    thread-safe.
    """

    def __init__(
        self, path: Path, *, busy_timeout: float, mountinfo: Path, jump: ClockJump
    ) -> None:
        prepare_file(path, mountinfo=mountinfo)
        self._path = path
        self._file = os.fspath(path)
        self._identity = file_identity(path)
        self._jump = jump
        self._busy_timeout = busy_timeout
        with ExitStack() as undo:
            self.notifier = LocalNotifier(path)
            undo.callback(self.notifier.close)
            self._connection = SqliteConnection(path, busy_timeout=busy_timeout)
            undo.callback(self._connection.close)
            self._migrate()
            undo.pop_all()
        self._inode = _inode(self._file)
        self._readers = ReaderPool(self._connect_reader)
        self.writer = GroupCommit(self._commit, name="longwatch-sqlite", on_close=self._close_all)

    def read(self, work: Callable[[SqliteTransaction], T]) -> T:
        with (
            translate_errors(self._path),
            self._readers.reader() as reader,
            reader.transaction("BEGIN") as raw,
        ):
            transaction = self._transaction(raw)
            try:
                return work(transaction)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                    raise UsageError("a read cannot write; use write(), or transact()") from None
                raise
            finally:
                transaction.end()

    def close(self) -> None:
        """Finish queued writes, then close every connection and thread."""
        self.writer.close()

    @property
    def is_stale(self) -> bool:
        """Whether the file was removed or replaced, so that no other process would see what is
        written here.
        """
        return _inode(self._file) != self._inode

    # --- forks ---

    def locks(self) -> list[LockLike]:
        """Return the locks that are held while a connection is in use."""
        return [
            self._connection.use_lock,
            self._readers.lock,
            *(reader.use_lock for reader in self._readers.readers()),
        ]

    def abandon(self, held_locks: list[LockLike]) -> None:
        """In a forked child: close the copies of the parent's connections, except those in use."""
        self.notifier.abandon()
        for connection in (self._connection, *self._readers.readers()):
            if connection.use_lock in held_locks and not connection.raw.in_transaction:
                connection.close()
            else:
                _abandoned.append(connection)

    # --- opening and closing ---

    def _migrate(self) -> None:
        """Read the schema first: an up-to-date file is opened without waiting for a writer."""
        known = load_migrations("sqlite")
        with translate_errors(self._path):
            with self._connection.transaction("BEGIN") as raw:
                if is_up_to_date(stored_schema(raw), known):
                    return
            with self._connection.transaction("BEGIN IMMEDIATE") as raw:
                migrate(SqliteTransaction(raw), known, store=str(self._path))

    def _connect_reader(self) -> SqliteConnection:
        return SqliteConnection(self._path, busy_timeout=self._busy_timeout, read_only=True)

    def _close_all(self) -> None:
        self.notifier.close()
        self._readers.close()
        self._connection.close()

    def _transaction(self, raw: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(raw, self._jump, store_identity=self._identity)

    # --- in the writer thread ---

    def _commit(self, jobs: list[Job]) -> None:
        """Run the jobs in one transaction, and resolve every future with its result or its
        error.
        """
        results = run_batch(jobs, self._begin, self._transaction)
        try:
            for callback in chain.from_iterable(result.callbacks for result in results):
                callback()
            self._notify(results)
        finally:
            for (_, future), result in zip(jobs, results, strict=True):
                result.resolve(future)

    @contextmanager
    def _begin(self) -> Iterator[sqlite3.Connection]:
        with translate_errors(self._path), self._connection.transaction("BEGIN IMMEDIATE") as raw:
            yield raw

    def _notify(self, results: Iterable[JobResult]) -> None:
        """Notify before the callers get their results: a caller may exit at once, and the
        notification would be lost.
        """
        if channels := set().union(*(result.channels for result in results)):
            self.notifier.notify(channels)


def _inode(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - faster than Path.stat, and done by every call
    except OSError:
        return None
    return found.st_dev, found.st_ino


def file_identity(path: Path) -> object:
    """Return a value that is equal for two names of one file."""
    return "sqlite", os.path.realpath(path)


def stored_schema(raw: sqlite3.Connection) -> StoredSchema:
    """Return the schema of a file, with version 0 if it has none. Only reads."""
    if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'longwatch_schema'").fetchall():
        return NO_SCHEMA
    return read_schema(lambda sql: raw.execute(sql).fetchall())
