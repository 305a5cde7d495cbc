"""A SQLite database: one file, WAL, one writer thread with group commit, and concurrent readers.

The file is created for its owner only, before SQLite opens it. A network file system is refused,
because SQLite's locks do not hold there. Leases are counted on a clock that restarts at every boot,
so each lease names its boot.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote
from weakref import finalize

from longwatch.core.clock import Wakeup
from longwatch.core.duration import format_duration
from longwatch.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
    UnsupportedError,
)
from longwatch.store.database import CALL_TIMEOUT, Channels, Database, StoredSchema
from longwatch.store.forks import LockLike, acquire_locks, register_fork_hooks
from longwatch.store.sqlite.connection import SqliteTransaction
from longwatch.store.sqlite.errors import translate_errors
from longwatch.store.sqlite.file import MOUNTINFO
from longwatch.store.sqlite.handle import SqliteHandle, file_identity, stored_schema

T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""Seconds that SQLite waits for a lock that another program holds."""


class SqliteDatabase(Database):
    """A database in one file. The first call opens it; if that fails, it raises, and the next call
    tries again.

    `synchronous` is FULL: a write that has returned survives a power cut. The database is closed by
    `close`, when it is garbage collected, and when the interpreter exits. A forked child opens it
    again.
    """

    dialect = "sqlite"

    def __init__(
        self, path: Path, *, busy_timeout: float = BUSY_TIMEOUT, mountinfo: Path = MOUNTINFO
    ) -> None:
        self.path = path.absolute()
        self.url = f"sqlite:///{quote(str(path))}"
        super().__init__()
        self._busy_timeout = busy_timeout
        self._mountinfo = mountinfo
        self._open_lock = threading.Lock()
        self._handle: SqliteHandle | None = None
        self._finalizer: finalize[..., SqliteDatabase] | None = None
        self._closed = False
        self._fork_locks: list[LockLike] = []
        register_fork_hooks(self)

    @property
    def identity(self) -> object:
        return file_identity(self.path)

    @property
    def absolute_url(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    @property
    def is_writing(self) -> bool:
        handle = self._handle
        return handle is not None and handle.writer.is_writing

    def write(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        return _wait_for_result(self._open().writer.submit(work), timeout)

    def write_inline(self, work: Callable[[Any], T]) -> T:
        return _wait_for_result(self._open().writer.submit(work, inline=True), CALL_TIMEOUT)

    def read(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:  # noqa: ARG002 - readers wait for no other call
        """Run work that only reads. If another process recovers the file after a crash, SQLite
        gives up after some seconds; the read is then tried once more.
        """
        try:
            return self._open().read(work)
        except StoreBusyError:
            return self._open().read(work)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Listen without checking that the file still exists. The next read or write checks
        that.
        """
        return (self._handle or self._open_handle()).notifier.listen(channels, wakeup)

    def join(self, tx: Any) -> SqliteTransaction:
        if not isinstance(tx, SqliteTransaction):
            raise UnsupportedError(
                f"tx= must be a transaction of transact() on {self.url}, not {type(tx).__name__}"
            )
        if tx.store_identity != self.identity:
            raise UnsupportedError(
                f"tx= is a transaction of another store than {self.url}; open the mailbox in "
                f"the store of tx="
            )
        return tx

    def stored_schema(self) -> StoredSchema | None:
        """Return the schema without opening the store, which would create or migrate it."""
        if not self.path.exists():
            return None
        with (
            translate_errors(self.path),
            closing(
                sqlite3.connect(f"file:{quote(str(self.path))}?mode=rw", uri=True)
            ) as connection,
        ):
            return stored_schema(connection)

    def close(self) -> None:
        with self._open_lock:
            self._closed = True
            finalizer, self._handle = self._finalizer, None
        if finalizer is not None:
            finalizer()

    def _open(self) -> SqliteHandle:
        handle = self._handle or self._open_handle()
        if handle.is_stale:
            self._discard(handle)
            raise StoreUnreachableError(
                f"{self.path} was removed or replaced; nothing was done, the next call opens "
                f"the new file"
            )
        return handle

    def _discard(self, stale: SqliteHandle) -> None:
        with self._open_lock:
            if self._handle is stale:
                self._handle = None
                self.generation += 1
        stale.close()

    def _open_handle(self) -> SqliteHandle:
        with self._open_lock:
            if self._closed:
                raise StoreClosedError(f"{self.path} was closed; open it again")
            if self._handle is None:
                self._handle = SqliteHandle(
                    self.path,
                    busy_timeout=self._busy_timeout,
                    mountinfo=self._mountinfo,
                    jump=self.jump,
                )
                self._finalizer = finalize(self, self._handle.close)
            return self._handle

    # --- forks ---

    def before_fork(self) -> None:
        self._fork_locks = acquire_locks([self._open_lock])
        if self._handle is not None:
            self._fork_locks += acquire_locks(self._handle.locks())

    def after_fork_in_parent(self) -> None:
        for lock in self._fork_locks:
            lock.release()

    def after_fork_in_child(self) -> None:
        fork_locks, self._fork_locks = self._fork_locks, []
        handle, self._handle = self._handle, None
        self.generation += 1
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if handle is not None:
            handle.abandon(fork_locks)
        self._open_lock = threading.Lock()


def _wait_for_result(future: Future[T], timeout: float) -> T:
    """Wait for a job. Raises its error, StoreBusyError if it did not begin in time, or StoreError
    if its result is unknown.
    """
    try:
        return future.result(timeout)
    except FutureTimeoutError:  # of this wait, or raised by the job
        if future.cancel():
            raise StoreBusyError(
                f"the store was busy for {format_duration(timeout)}; nothing was written, try again"
            ) from None
        if not future.done():
            raise StoreError(
                f"no reply from the store within {format_duration(timeout)}; whether it was "
                f"written is unknown"
            ) from None
    return future.result()
