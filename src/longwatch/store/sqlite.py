"""The SQLite engine: one file, WAL, one writer thread with group commit, readers beside it.

The file is made for its owner alone before SQLite opens it. A network file system is refused:
SQLite's locks do not hold there. Leases are counted on a clock that starts anew at every boot, so
they carry the boot they belong to.
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
from longwatch.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
    UnsupportedError,
)
from longwatch.store.database import CALL_TIMEOUT, Channels, Database
from longwatch.store.forks import Lock, hold_locks, survive_forks
from longwatch.store.sqlite_connection import SqliteTransaction
from longwatch.store.sqlite_errors import translated
from longwatch.store.sqlite_file import MOUNTS
from longwatch.store.sqlite_opened import OpenedFile, identity, schema_version

T = TypeVar("T")

BUSY_TIMEOUT = 5.0
"""How long SQLite waits for a lock that another program holds, in seconds."""


class SqliteDatabase(Database):
    """A database in one file, opened by the first call that needs it; an error of opening comes
    there, the next call tries again.

    `synchronous` is FULL: what `write` has returned survives a power cut. Closed by `close`, when
    nobody knows it any more, and when the interpreter exits; a forked child opens it anew.
    """

    dialect = "sqlite"

    def __init__(
        self, path: Path, *, busy_timeout: float = BUSY_TIMEOUT, mounts: Path = MOUNTS
    ) -> None:
        self.path = path.absolute()
        self.url = f"sqlite:///{quote(str(path))}"
        super().__init__()
        self._busy_timeout = busy_timeout
        self._mounts = mounts
        self._opening = threading.Lock()
        self._opened: OpenedFile | None = None
        self._ending: finalize[..., SqliteDatabase] | None = None
        self._closed = False
        self._held: list[Lock] = []
        survive_forks(self)

    @property
    def identity(self) -> object:
        return identity(self.path)

    @property
    def address(self) -> str:
        return f"sqlite:///{quote(str(self.path))}"

    def write(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        return _result(self._open().writer.submit(work), timeout)

    def write_here(self, work: Callable[[Any], T]) -> T:
        return _result(self._open().writer.submit(work, here=True), CALL_TIMEOUT)

    def read(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:  # noqa: ARG002 - readers wait for nobody
        """But for one that recovers the file after a crash: SQLite gives that up after some
        seconds, and we once more.
        """
        try:
            return self._open().read(work)
        except StoreBusyError:
            return self._open().read(work)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Whether the file is still there is seen by who looks into it."""
        return (self._opened or self._open_now()).wakeups.listen(channels, wakeup)

    def join(self, tx: Any) -> SqliteTransaction:
        if not isinstance(tx, SqliteTransaction):
            raise UnsupportedError(
                f"tx= takes the transaction that {self.url} gave to transact(), not "
                f"{type(tx).__name__}"
            )
        if tx.home != self.identity:
            raise UnsupportedError(
                f"tx= is a transaction of another store than {self.url}; open the mailbox in "
                f"that store"
            )
        return tx

    def schema_version(self) -> int | None:
        """Looked up without opening it for work, which would make or migrate it."""
        if not self.path.exists():
            return None
        with (
            translated(self.path),
            closing(
                sqlite3.connect(f"file:{quote(str(self.path))}?mode=rw", uri=True)
            ) as connection,
        ):
            return schema_version(connection)

    def close(self) -> None:
        with self._opening:
            self._closed = True
            ending, self._opened = self._ending, None
        if ending is not None:
            ending()

    def _open(self) -> OpenedFile:
        opened = self._opened or self._open_now()
        if opened.is_stranded:
            self._let_go_of(opened)
            raise StoreUnreachableError(
                f"{self.path} was removed or replaced; nothing was done, the next call opens "
                f"what is there"
            )
        return opened

    def _let_go_of(self, stranded: OpenedFile) -> None:
        with self._opening:
            if self._opened is stranded:
                self._opened = None
                self.generation += 1
        stranded.close()

    def _open_now(self) -> OpenedFile:
        with self._opening:
            if self._closed:
                raise StoreClosedError(f"{self.path} was closed; open it again")
            if self._opened is None:
                self._opened = OpenedFile(
                    self.path, busy_timeout=self._busy_timeout, mounts=self._mounts, jump=self.jump
                )
                self._ending = finalize(self, self._opened.close)
            return self._opened

    # --- forks ---

    def hold(self) -> None:
        self._held = hold_locks([self._opening])
        if self._opened is not None:
            self._held += hold_locks(self._opened.locks())

    def go_on(self) -> None:
        for lock in self._held:
            lock.release()

    def leave_behind(self) -> None:
        held, self._held = self._held, []
        opened, self._opened = self._opened, None
        if self._ending is not None:
            self._ending.detach()
            self._ending = None
        if opened is not None:
            opened.leave_behind(held)
        self._opening = threading.Lock()


def _result(future: Future[T], timeout: float) -> T:
    """What became of a job: its result, its error, or that it was not begun, or is not known."""
    try:
        return future.result(timeout)
    except FutureTimeoutError:  # ours, or the job's own
        if future.cancel():
            raise StoreBusyError(
                f"the store was busy for {timeout:g} s; nothing was written, try again"
            ) from None
        if not future.done():
            raise StoreError(
                f"no answer from the store within {timeout:g} s; whether it was written is unknown"
            ) from None
    return future.result()
