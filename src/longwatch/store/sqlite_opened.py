"""What one process has open of a SQLite file: a writer with its thread, readers beside it, and
the hints to others.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TypeVar

from longwatch.errors import UsageError
from longwatch.store.database import Jump
from longwatch.store.forks import Lock
from longwatch.store.groupcommit import GroupCommit, Job
from longwatch.store.migrations import migrate, migrations
from longwatch.store.sqlite_batch import Outcome, run_batch
from longwatch.store.sqlite_connection import SqliteConnection, SqliteTransaction
from longwatch.store.sqlite_errors import translated
from longwatch.store.sqlite_file import prepare_file
from longwatch.store.sqlite_readers import Readers
from longwatch.store.wakeups import Wakeups

T = TypeVar("T")
_abandoned: list[SqliteConnection] = []
"""Copies of a parent's connections that were in the middle of something when it forked: used and
closed by nobody any more.
"""


class OpenedFile:
    """Connections and threads of one process. Making it opens the file; every method may be
    called from any thread.
    """

    def __init__(self, path: Path, *, busy_timeout: float, mounts: Path, jump: Jump) -> None:
        prepare_file(path, mounts=mounts)
        self._path = path
        self._home = identity(path)
        self._jump = jump
        self._busy_timeout = busy_timeout
        with ExitStack() as undo:
            self.wakeups = Wakeups(path)
            undo.callback(self.wakeups.close)
            self._connection = SqliteConnection(path, busy_timeout=busy_timeout)
            undo.callback(self._connection.close)
            self._bring_up_to_date()
            undo.pop_all()
        self._inode = _inode(path)
        self._readers = Readers(self._connect_reader)
        self.writer = GroupCommit(self._commit, name="longwatch-sqlite", at_end=self._let_go)

    def read(self, work: Callable[[SqliteTransaction], T]) -> T:
        with (
            translated(self._path),
            self._readers.one() as reader,
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
        """Finish what waits to be written, then let go of everything."""
        self.writer.close()

    @property
    def is_stranded(self) -> bool:
        """Whether the file was removed or replaced: what is written here nobody else would see."""
        return _inode(self._path) != self._inode

    # --- forks ---

    def locks(self) -> list[Lock]:
        """Held while something of this is in use."""
        return [
            self._connection.in_use,
            self._readers.opening,
            *(reader.in_use for reader in self._readers.all()),
        ]

    def leave_behind(self, held: list[Lock]) -> None:
        """In a forked child: close the copies of the parent's connections, but not one that is
        in the middle of something.
        """
        self.wakeups.leave_behind()
        for connection in (self._connection, *self._readers.all()):
            if connection.in_use in held and not connection.raw.in_transaction:
                connection.close()
            else:
                _abandoned.append(connection)

    # --- opening and closing ---

    def _bring_up_to_date(self) -> None:
        """Look first: a file that is up to date is opened without waiting for whoever writes."""
        known = migrations("sqlite")
        with translated(self._path):
            with self._connection.transaction("BEGIN") as raw:
                if schema_version(raw) == known[-1].version:
                    return
            with self._connection.transaction("BEGIN IMMEDIATE") as raw:
                migrate(SqliteTransaction(raw), known)

    def _connect_reader(self) -> SqliteConnection:
        return SqliteConnection(self._path, busy_timeout=self._busy_timeout, reads_only=True)

    def _let_go(self) -> None:
        self.wakeups.close()
        self._readers.close()
        self._connection.close()

    def _transaction(self, raw: sqlite3.Connection) -> SqliteTransaction:
        return SqliteTransaction(raw, self._jump, home=self._home)

    # --- the writer's thread ---

    def _commit(self, jobs: list[Job]) -> None:
        """Run the jobs in one transaction; every future is settled, with its result or with what
        went wrong.
        """
        outcomes = run_batch(jobs, self._begin, self._transaction)
        try:
            for callback in chain.from_iterable(outcome.callbacks for outcome in outcomes):
                callback()
            self._announce(outcomes)
        finally:
            for (_, future), outcome in zip(jobs, outcomes, strict=True):
                outcome.tell(future)

    @contextmanager
    def _begin(self) -> Iterator[sqlite3.Connection]:
        with translated(self._path), self._connection.transaction("BEGIN IMMEDIATE") as raw:
            yield raw

    def _announce(self, outcomes: Iterable[Outcome]) -> None:
        """Before the callers are told: whoever exits as soon as it knows would take the hint
        with it.
        """
        if channels := set().union(*(outcome.channels for outcome in outcomes)):
            self.wakeups.announce(channels)


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def identity(path: Path) -> object:
    """Equal for two names of one file."""
    return "sqlite", os.path.realpath(path)


def schema_version(raw: sqlite3.Connection) -> int:
    """The version of the schema; 0 if there is none. A read, unlike that of `migrations`."""
    if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = 'longwatch_schema'").fetchall():
        return 0
    [(version,)] = raw.execute("SELECT coalesce(max(version), 0) FROM longwatch_schema").fetchall()
    return int(version)
