"""The interface over SQL databases: what the layers above may ask of any of them.

A Database is lazy and per process: making one opens nothing, and after a fork the child opens its
own. Work is a function of a Transaction; it may be run again if the database has to retry, so it
does nothing but SQL.
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
from typing import Any, Protocol, Self, TypeVar

from longwatch.core.clock import Wakeup
from longwatch.core.masking import mask_text
from longwatch.errors import StoreError, UsageError

T = TypeVar("T")
Row = tuple[Any, ...]
Parameters = Mapping[str, object]
Channels = str | Iterable[str]
"""One, or several."""

CALL_TIMEOUT = 30.0
"""How long a call waits for the engine before it gives up, in seconds."""


class StoreResetError(StoreError):
    """A row that others refer to is gone: the store was restored or emptied, and what was learnt
    before is to be asked again.
    """


class PreconditionFailedError(Exception):
    """A precondition of a transaction does not hold; nothing of it was written."""


@dataclass(slots=True)
class ClockJump:
    """Seconds that a test adds to a store's clocks."""

    lease: float = 0.0
    wall: float = 0.0


class OwnerRegistry:
    """The lease owners of one store in this process: the record of each, and the default owner of
    bare receives.
    """

    def __init__(self) -> None:
        self.records: dict[int, dict[str, object]] = {}
        self._default_owners: dict[tuple[int, str], int] = {}

    def default_owner(self, table: str, register: Callable[[], int]) -> int:
        """The one owner without a beat page, registered when it is first needed; a forked child
        registers another.
        """
        key = os.getpid(), table
        found = self._default_owners.get(key)
        return found if found is not None else self._default_owners.setdefault(key, register())


class Transaction(Protocol):
    """One transaction in progress. Not for other threads.

    Parameters are named `:like_this` in the SQL of every engine. Two of them are the engine's own:
    `:lease_now`, the clock that judges leases, and `:wall_now`, wall time for delays and expiry; so
    durations come from clients, and moments never do.
    """

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement and return what it selects or returns."""

    def rows_many(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        """Run several statements in order, in one round trip where there is a server; return what
        each selects.
        """

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement; how many rows it changed."""

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        """Run a statement for each of several sets of parameters, which have the same names; how
        many rows were changed in all.

        A database may get all of them at once, each parameter as the array of its values, and
        its SQL is written for that.
        """

    def defer_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        """`execute_many`, queued as `defer` does."""

    def defer_rows(
        self, sql: str, parameters: Parameters, callback: Callable[[list[Row]], None]
    ) -> None:
        """Queue a query; `callback` gets its rows at the commit or before.

        It is never called if everything was committed and only the replies were lost.
        """

    def defer(self, sql: str, parameters: Parameters) -> None:
        """Queue a statement whose result is not needed; errors surface at the next statement or at
        commit.
        """

    def require(self, sql: str, parameters: Parameters) -> None:
        """Fail the transaction unless this selects true: PreconditionFailedError is raised here or
        by the commit.
        """

    def notify(self, channel: str) -> None:
        """Notify the channel once this is committed; not if it is not."""

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Have something called once this is committed, before anybody else learns of it; never
        if it is not, or nobody knows.
        """


class Database(ABC):
    """A store of rows. Every method may be called from any thread; every call ends within its
    timeout.
    """

    dialect: str
    url: str
    has_single_writer: bool = True
    """Whether it is worth a read to avoid a write that finds nothing to do: it is where writers
    wait for each other.
    """
    is_shared: bool = False
    """Whether other machines may use it as well."""

    def __init__(self) -> None:
        self.jump = ClockJump()
        self.owners = OwnerRegistry()
        self.generation = 0
        """Another number whenever the store was found anew, and may be another one: what was
        learnt before is to be asked again.
        """

    @property
    def identity(self) -> object:
        """Equal for two that are the same store, however each was named."""
        return self.url

    @property
    def absolute_url(self) -> str:
        """The URL by which any process of this machine can open it; it may have a password in
        it.
        """
        return self.url

    @abstractmethod
    def write(self, work: Callable[[Transaction], T], *, timeout: float = CALL_TIMEOUT) -> T:
        """Run work in a transaction of its own; when this returns, it is on disk.

        If work raises, nothing of it happened and its error comes out; a StoreError means the same.
        Several threads' work may share one commit without seeing each other's failures.
        """

    def write_inline(self, work: Callable[[Transaction], T]) -> T:
        """`write` in the calling thread, where the database has a writer thread that is idle: no
        thread has to be woken.

        It has no timeout: it waits for a disk that hangs.
        """
        return self.write(work)

    @abstractmethod
    def read(self, work: Callable[[Transaction], T], *, timeout: float = CALL_TIMEOUT) -> T:
        """Run work that only reads, on one consistent view, without waiting for writers."""

    @abstractmethod
    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup whenever a channel, or one of several, is notified, and periodically
        without that.

        Returns a function that ends it. Notifications reach this process and others, never block
        a commit, and may get lost.
        """

    @abstractmethod
    def schema_version(self) -> int | None:
        """At which version the schema is, 0 if there is none; None if there is no store. Makes
        nothing and changes nothing.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish what waits to be written, let go of connections and threads; idempotent. A closed
        database refuses work.

        To use the store again, make another one.
        """

    @abstractmethod
    def join(self, tx: Any) -> Transaction:
        """The transaction that a caller gave as `tx=`, checked: one of this store, or where the
        engine can, a user's connection.

        UnsupportedError for anything else, with the cure; what is written through it commits when
        its maker says so.
        """

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """`write`, by the name users know it: sends and settles that are given this transaction
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
    """Refuses what an async or a generator function returns: nothing of it has run, and the
    commit would not wait for it.
    """
    if isinstance(result, Coroutine):
        result.close()
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise UsageError(
            "transact() takes a plain function; an async one, or one that yields, would run "
            "after the commit"
        )
    return result
