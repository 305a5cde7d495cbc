"""The seam over SQL engines: what the layers above may ask of any of them.

A Database is lazy and per process: making one opens nothing, and after a fork the child opens its
own. Work is a function of a Transaction; it may be run again if the engine has to retry, so it does
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


class VanishedError(StoreError):
    """A row that others refer to is gone: the store was restored or emptied, and what was learnt
    before is to be asked again.
    """


class ChangedError(Exception):
    """What a transaction was sure of is not so; nothing of it was made."""


@dataclass(slots=True)
class Jump:
    """Seconds that a test adds to a store's clocks."""

    lease: float = 0.0
    wall: float = 0.0


class Owners:
    """Who leases rows of a store from this process: what each said when it entered, and who
    stands for the bare receives.
    """

    def __init__(self) -> None:
        self.facts: dict[int, dict[str, object]] = {}
        self._guests: dict[tuple[int, str], int] = {}

    def guest(self, table: str, enter: Callable[[], int]) -> int:
        """The one owner that keeps no beat page, entered when it is first needed; a forked child
        becomes another.
        """
        key = os.getpid(), table
        found = self._guests.get(key)
        return found if found is not None else self._guests.setdefault(key, enter())


class Transaction(Protocol):
    """One transaction in progress. Not for other threads.

    Parameters are named `:like_this` in the SQL of every engine. Two of them are the engine's own:
    `:lease_now`, the clock that judges leases, and `:wall_now`, wall time for delays and expiry; so
    durations come from clients, and moments never do.
    """

    def rows(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Run a statement and return what it selects or returns."""

    def rows_of(self, statements: Sequence[tuple[str, Parameters]]) -> list[list[Row]]:
        """Run several statements, in their order, and return what each selects; where asking
        takes its time, ask once for all.
        """

    def execute(self, sql: str, parameters: Parameters | None = None) -> int:
        """Run a statement; how many rows it changed."""

    def execute_many(self, sql: str, parameters: Sequence[Parameters]) -> int:
        """Run a statement for each of several sets of parameters, which have the same names; how
        many rows were changed in all.

        An engine may give it all of them at once, each parameter as the array of its values, and
        its SQL is written for that.
        """

    def post_many(self, sql: str, parameters: Sequence[Parameters]) -> None:
        """`execute_many`, in the way of `post`."""

    def ask(self, sql: str, parameters: Parameters, answer: Callable[[list[Row]], None]) -> None:
        """`rows` for who needs the answer no sooner than the commit: `answer` is called with it by
        then.

        Never, if all was committed and only the answers were lost.
        """

    def post(self, sql: str, parameters: Parameters) -> None:
        """The same for who needs none: it may leave with the next statement or the commit, and
        fail there.
        """

    def require(self, sql: str, parameters: Parameters) -> None:
        """Go on only if this selects what is true: or else ChangedError comes out of the whole,
        here or in place of the commit.
        """

    def announce(self, channel: str) -> None:
        """Announce the channel once this is committed; nothing if it is not."""

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
    looks_first: bool = True
    """Whether it is worth a read to avoid a write that finds nothing to do: it is where writers
    wait for each other.
    """
    is_shared: bool = False
    """Whether other machines may use it as well."""

    def __init__(self) -> None:
        self.jump = Jump()
        self.owners = Owners()
        self.generation = 0
        """Another number whenever the store was found anew, and may be another one: what was
        learnt before is to be asked again.
        """

    @property
    def identity(self) -> object:
        """Equal for two that are the same store, however each was named."""
        return self.url

    @property
    def address(self) -> str:
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

    def write_here(self, work: Callable[[Transaction], T]) -> T:
        """`write` by the thread that asks, where an engine has another one for that which rests:
        nobody has to be woken.

        For who has all the time it takes: a disk that hangs is waited for.
        """
        return self.write(work)

    @abstractmethod
    def read(self, work: Callable[[Transaction], T], *, timeout: float = CALL_TIMEOUT) -> T:
        """Run work that only reads, on one consistent view, without waiting for writers."""

    @abstractmethod
    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set whenever a channel, or one of several, is announced, and now and then
        without that.

        Returns what ends it. Announcements are hints: they reach this process and others, never
        block a commit, and may get lost.
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
        return self.write(lambda transaction: done(work(transaction)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask_text(self.url)}>"


def done(result: T) -> T:
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
