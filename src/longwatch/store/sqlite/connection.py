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

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import BOOTTIME_CLOCK, SystemClock
from longwatch.core.deadline import Deadline
from longwatch.errors import UsageError
from longwatch.store.database import ClockJump, Parameters, PreconditionFailedError, Row
from longwatch.store.forks import fork_guarded
from longwatch.store.retry import retry
from longwatch.store.sqlite.errors import translate_errors

_BUSY_TIMEOUT = 5.0
_NO_DELAY = BackoffPolicy(initial=0.0)
_TRANSACTION_CONTROL = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*(?:BEGIN|COMMIT|END|ROLLBACK(?!(?:\s+TRANSACTION)?\s+TO))\b",
    re.IGNORECASE | re.DOTALL,
)


class SqliteTransaction:
    """A transaction on one connection. Its clocks are read once, at the first statement.

    Leases are counted on CLOCK_BOOTTIME, which neither jumps nor stops during suspend.
    """

    __slots__ = ("_clocks", "_connection", "_jump", "callbacks", "channels", "store_identity")

    def __init__(
        self,
        connection: sqlite3.Connection,
        jump: ClockJump | None = None,
        *,
        store_identity: object = None,
    ) -> None:
        self.store_identity = store_identity
        self._connection = connection
        self._jump = jump or ClockJump()
        self._clocks: dict[str, object] = {}
        self.channels: set[str] = set()
        self.callbacks: list[Callable[[], None]] = []

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        return self._connection.execute(
            _refuse_control(sql), self._with_clocks(parameters or {})
        ).fetchall()

    def rows_many(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        return [self.rows(sql, parameters) for sql, parameters in statements]

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        return self._connection.execute(
            _refuse_control(sql), self._with_clocks(parameters or {})
        ).rowcount

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        return self._connection.executemany(
            _refuse_control(sql), map(self._with_clocks, parameters)
        ).rowcount

    def defer_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        self.execute_many(sql, parameters)

    def defer_rows(
        self, sql: str, parameters: Parameters, callback: Callable[[list[Row]], None]
    ) -> None:
        callback(self.rows(sql, parameters))

    def defer(self, sql: str, parameters: Parameters) -> None:
        self.execute(sql, parameters)

    def require(self, sql: str, parameters: Parameters) -> None:
        if not self.rows(sql, parameters)[0][0]:
            raise PreconditionFailedError

    def notify(self, channel: str) -> None:
        self.channels.add(channel)

    def after_commit(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def _with_clocks(self, parameters: Parameters) -> dict[str, object]:
        clocks = self._clocks
        if not clocks:
            clocks["lease_now"] = time.clock_gettime(BOOTTIME_CLOCK) + self._jump.lease
            clocks["wall_now"] = time.time() + self._jump.wall
        return {**parameters, **clocks}

    @property
    def is_open(self) -> bool:
        """Whether the transaction is still open. SQL can end it."""
        return self._connection.in_transaction

    def end(self) -> None:
        """Make every later call raise UsageError: another caller may use the connection now."""
        self._connection = _ENDED_CONNECTION


@lru_cache(maxsize=512)
def _refuse_control(sql: str) -> str:
    """Raise UsageError for SQL that would end the transaction, which other callers share."""
    if _TRANSACTION_CONTROL.match(sql):
        raise UsageError(
            f"{sql.split(maxsplit=1)[0].upper()} is not allowed here; return to commit, "
            f"raise to roll back"
        )
    return sql


class _EndedConnection:
    """Replaces the connection of a transaction that has ended, and raises UsageError."""

    def execute(self, *_: object) -> NoReturn:
        raise UsageError(
            "this transaction has ended; use it only inside the function it was given to"
        )

    executemany = execute


_ENDED_CONNECTION: Any = _EndedConnection()


class SqliteConnection:
    """A connection that one thread uses at a time. `use_lock` is held meanwhile, so that a fork can
    wait for it.
    """

    def __init__(
        self, path: Path, *, busy_timeout: float = _BUSY_TIMEOUT, read_only: bool = False
    ) -> None:
        self.use_lock = threading.RLock()
        with translate_errors(path):
            self.raw = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=busy_timeout
            )
            try:
                self._configure(busy_timeout, read_only=read_only)
            except BaseException:
                self.close()
                raise

    @contextmanager
    def transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Run a transaction. Commits at the end, and rolls back after an error."""
        with fork_guarded(self.use_lock):
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

    def _configure(self, busy_timeout: float, *, read_only: bool) -> None:
        self._enable_wal(Deadline.after(busy_timeout, SystemClock()))
        self.raw.execute("PRAGMA synchronous = FULL")
        self.raw.execute("PRAGMA foreign_keys = ON")
        if read_only:
            self.raw.execute("PRAGMA query_only = ON")

    def _enable_wal(self, deadline: Deadline) -> None:
        """Set the journal mode. SQLite does not wait for another process that opens the same new
        file, so wait for its write lock between attempts.
        """
        retry(
            lambda: self.raw.execute("PRAGMA journal_mode = WAL"),
            policy=_NO_DELAY,
            deadline=deadline,
            should_retry=(
                lambda error: getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
            ),
            pause=lambda _: self._wait_for_writer(),
        )

    def _wait_for_writer(self) -> None:
        with self.transaction("BEGIN IMMEDIATE"):
            pass

    def _roll_back(self) -> None:
        """Roll back. Errors are suppressed, so that the error that led here is raised."""
        if self.raw.in_transaction:
            with suppress(sqlite3.Error):
                self.raw.execute("ROLLBACK")
