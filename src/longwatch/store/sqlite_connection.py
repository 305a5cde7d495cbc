"""One connection to a SQLite file, and a transaction on it."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from longwatch.errors import UsageError
from longwatch.store.database import ChangedError, Jump, Parameters, Row
from longwatch.store.forks import using
from longwatch.store.sqlite_errors import translated

_BUSY_SECONDS = 5.0
_CONTROL = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*(?:BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO))\b",
    re.IGNORECASE | re.DOTALL,
)
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SqliteTransaction:
    """A transaction on one connection. Its clocks stand still: they tell when they were first
    asked.

    Leases are counted on CLOCK_BOOTTIME, which neither jumps nor stops in sleep.
    """

    __slots__ = ("_clocks", "_connection", "_jump", "callbacks", "channels", "home")

    def __init__(
        self, connection: sqlite3.Connection, jump: Jump | None = None, *, home: object = None
    ) -> None:
        self.home = home
        self._connection = connection
        self._jump = jump or Jump()
        self._clocks: dict[str, object] = {}
        self.channels: set[str] = set()
        self.callbacks: list[Callable[[], None]] = []

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self._connection.execute(_checked(sql), self._timed(parameters or {})).fetchall()

    def rows_of(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self.rows(sql, parameters) for sql, parameters in statements]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        return self._connection.execute(_checked(sql), self._timed(parameters or {})).rowcount

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return self._connection.executemany(_checked(sql), map(self._timed, parameters)).rowcount

    def post_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        self.execute_many(sql, parameters)

    def ask(self, sql: str, parameters: Parameters, answer: Callable[[list[Row]], None]) -> None:
        answer(self.rows(sql, parameters))

    def post(self, sql: str, parameters: Parameters) -> None:
        self.execute(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        if not self.rows(sql, parameters)[0][0]:
            raise ChangedError

    def announce(self, channel: str) -> None:
        self.channels.add(channel)

    def after_commit(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def _timed(self, parameters: Parameters) -> dict[str, object]:
        clocks = self._clocks
        if not clocks:
            clocks["lease_now"] = time.clock_gettime(_LEASE_CLOCK) + self._jump.lease
            clocks["wall_now"] = time.time() + self._jump.wall
        return {**parameters, **clocks}

    @property
    def is_open(self) -> bool:
        """Whether the store still has it open; SQL can end it."""
        return self._connection.in_transaction

    def end(self) -> None:
        """From here on it refuses: the connection is somebody else's now."""
        self._connection = _ENDED


@lru_cache(maxsize=512)
def _checked(sql: str) -> str:
    """Others share the transaction: who ended it would end theirs."""
    if _CONTROL.match(sql):
        raise UsageError(
            f"{sql.split(maxsplit=1)[0].upper()} is the store's to say; return to commit, "
            f"raise to roll back"
        )
    return sql


class _Ended:
    """Stands where the connection was."""

    def execute(self, *_: object) -> NoReturn:
        raise UsageError(
            "this transaction has ended; use it only inside the function it was given to"
        )

    executemany = execute


_ENDED: Any = _Ended()


class SqliteConnection:
    """A connection that one thread uses at a time; `in_use` is held meanwhile, so that a fork
    can wait until it is not.
    """

    def __init__(
        self, path: Path, *, busy_timeout: float = _BUSY_SECONDS, reads_only: bool = False
    ) -> None:
        self.in_use = threading.RLock()
        with translated(path):
            self.raw = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=busy_timeout
            )
            try:
                self._prepare(busy_timeout, reads_only=reads_only)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Commits at the end; after an error nothing of it has happened."""
        with using(self.in_use):
            self.raw.execute(begin)
            try:
                yield self.raw
                self.raw.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self.raw.close()

    def _prepare(self, busy_timeout: float, *, reads_only: bool) -> None:
        self._use_wal(until=time.monotonic() + busy_timeout)
        self.raw.execute("PRAGMA synchronous = FULL")
        self.raw.execute("PRAGMA foreign_keys = ON")
        if reads_only:
            self.raw.execute("PRAGMA query_only = ON")

    def _use_wal(self, *, until: float) -> None:
        """Changing the journal does not wait for who else opens a new file; so wait with what
        does, and try again.
        """
        while True:
            try:
                self.raw.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                    raise
            else:
                return
            with self.transaction("BEGIN IMMEDIATE"):
                pass

    def _roll_back(self) -> None:
        """The error that led here is the one to tell, not one that comes of it."""
        if self.raw.in_transaction:
            with suppress(sqlite3.Error):
                self.raw.execute("ROLLBACK")
