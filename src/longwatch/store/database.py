"""The interface over SQL databases that the layers above use.

A Database is lazy and per process: making one opens nothing, and after a fork the child opens its
own. Work is a function of a Transaction. The database may run it again after an error, so it does
nothing but SQL.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from longwatch.core.clock import Wakeup
from longwatch.core.masking import mask_text
from longwatch.errors import StoreError, UsageError
from longwatch.store.scan_bound import ScanBounds

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters = Mapping[str, object]
Channels = str | Iterable[str]
"""One channel, or several."""

CALL_TIMEOUT = 30.0
"""Seconds that a call waits for the database before it gives up."""


class StoreResetError(StoreError):
    """A row that others refer to is gone, because the store was restored or emptied. Callers must
    read again what they had cached.
    """


class StoredSchema(NamedTuple):
    """The schema of a store: its version (0: no schema), and the lowest version of a process that
    may use it (`store.migrations`).
    """

    version: int
    min_reader: int


NO_SCHEMA = StoredSchema(0, 0)


class PreconditionFailedError(Exception):
    """A precondition of a transaction does not hold. Nothing was written."""


@dataclass(slots=True)
class ClockJump:
    """Seconds that a test adds to a store's clocks."""

    lease: float = 0.0
    wall: float = 0.0


class OwnerRegistry:
    """The lease owners that this process registered in one store, and the default owner of bare
    receives.
    """

    def __init__(self) -> None:
        self.records: dict[int, dict[str, object]] = {}
        self._default_owners: dict[tuple[int, str], int] = {}

    def default_owner(self, table: str, register: Callable[[], int]) -> int:
        """Return the one owner without a beat page, registered at its first use. A forked child
        registers another.
        """
        key = os.getpid(), table
        found = self._default_owners.get(key)
        return found if found is not None else self._default_owners.setdefault(key, register())


class Transaction(Protocol):
    """One transaction in progress. Not thread-safe.

    Parameters are named `:like_this` in the SQL of every database. The database itself fills in two
    of them: `:lease_now`, the clock that decides leases, and `:wall_now`, wall time for delays and
    expiry. So clients send durations, never times.
    """

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement and return its rows."""

    def rows_many(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        """Run several statements in order, in one round trip to a server. Returns the rows of
        each.
        """

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement. Returns how many rows it changed."""

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        """Run a statement for several sets of parameters with the same names. Returns how many rows
        it changed in all.

        PostgreSQL gets all sets at once, each parameter as the array of its values, and its SQL is
        written for that.
        """

    def defer_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        """Queue an `execute_many`, as `defer` does."""

    def defer_rows(
        self, sql: str, parameters: Parameters, callback: Callable[[list[Row]], None]
    ) -> None:
        """Queue a query. `callback` gets its rows at the commit or before.

        The callback is not called if the commit succeeded and only the replies were lost.
        """

    def defer(self, sql: str, parameters: Parameters) -> None:
        """Queue a statement whose result is not needed. Errors surface at the next statement or at
        commit.
        """

    def require(self, sql: str, parameters: Parameters) -> None:
        """Fail the transaction unless this query returns true. This call or the commit raises
        PreconditionFailedError.
        """

    def notify(self, channel: str) -> None:
        """Notify the channel after the commit. A rollback notifies nothing. Does nothing in a
        transaction that only its user can commit.
        """

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call a function after the commit, before `write` returns and receivers are notified. It
        is not called if the commit failed or its result is unknown.
        """


class Database(ABC):
    """A store of rows. Every method is thread-safe, and every call with a timeout ends within
    it.
    """

    dialect: str
    url: str
    has_single_writer: bool = True
    """Whether writers wait for each other, so that it pays to read before a write that may be
    empty.
    """
    is_shared: bool = False
    """Whether other machines may use it."""

    def __init__(self) -> None:
        self.jump = ClockJump()
        self.owners = OwnerRegistry()
        self.scan_bounds = ScanBounds()
        self.generation = 0
        """Rises whenever the store was reopened and may be another one, and in a forked child.
        Callers must then read again what they had cached.
        """

    @property
    def identity(self) -> object:
        """Equal for two databases that are the same store, even under different URLs."""
        return self.url

    @property
    def absolute_url(self) -> str:
        """The URL by which any process of this machine can open it. May contain a password."""
        return self.url

    @property
    @abstractmethod
    def is_writing(self) -> bool:
        """Whether the calling thread runs the work of a write, in which it must begin no other."""

    @abstractmethod
    def write(self, work: Callable[[Transaction], T], *, timeout: float = CALL_TIMEOUT) -> T:
        """Run work in its own transaction. When this returns, the commit is on disk.

        If work raises, the transaction is rolled back and the error propagates. After a StoreError
        nothing was written either, unless its text says that this is unknown. Several threads' work
        may share one commit. A failure of one does not affect the others.
        """

    def write_inline(self, work: Callable[[Transaction], T]) -> T:
        """`write` in the calling thread if the writer thread is idle, which saves waking a thread.

        It has no timeout, so it blocks while a disk hangs.
        """
        return self.write(work)

    @abstractmethod
    def read(self, work: Callable[[Transaction], T], *, timeout: float = CALL_TIMEOUT) -> T:
        """Run work that only reads, on one consistent snapshot, without waiting for writers."""

    def notify(self, *channels: str, to_all: bool = False) -> None:  # noqa: ARG002 - the contract
        """Notify channels without writing anything. `to_all`: idle receivers in a shared store may
        not ignore it. In a store of one machine none ignores any notification.
        """

        def work(transaction: Transaction) -> None:
            for channel in channels:
                transaction.notify(channel)

        self.write(work)

    @abstractmethod
    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup whenever one of the channels is notified, and periodically.

        Returns a function that ends the subscription. Notifications reach this process and others,
        never block a commit, and may get lost.
        """

    @abstractmethod
    def stored_schema(self) -> StoredSchema | None:
        """Return the schema, with version 0 if there is none; None if there is no store. Only
        reads.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish queued writes, then close connections and threads. Idempotent.

        Later calls raise StoreClosedError. To use the store again, make another Database.
        """

    @abstractmethod
    def join(self, tx: Any) -> Transaction:
        """Check the transaction that a caller passed as `tx=`, and return it as a Transaction.

        It must be a transaction of this store, or on PostgreSQL a user's connection. Raises
        UnsupportedError for anything else. The owner of the transaction commits it.
        """

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """`write` under the name of the public API: sends and settles that get this transaction
        commit with it.
        """
        return self.write(lambda transaction: require_plain_result(work(transaction)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask_text(self.url)}>"


def require_plain_result(result: T) -> T:
    """Raise UsageError for the result of an async or a generator function: its body has not run,
    and the commit would not wait for it.
    """
    if isinstance(result, Coroutine):
        result.close()
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise UsageError(
            "transact() expects a plain function; an async or a generator function would run "
            "after the commit"
        )
    return result
