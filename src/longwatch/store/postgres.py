"""The PostgreSQL engine: a few connections a process, every call in its time, and no commit left to
guessing.

Isolation is READ COMMITTED. The server's clock judges leases and delays. Tables are named without a
schema, so the `search_path` of the user decides where they are: in a database that is shared, give
them a schema of their own and name it in the URL with `options=-csearch_path=NAME`. A connection
that is given as `tx=` has to find them, too.

A call survives what passes: a connection that broke, a server that restarts, a deadlock. Its work
is run again, until its time is over. Only a commit whose answer was lost is not just made again:
first the server is asked what became of it (`postgres_witness`).

Every commit waits for the server's disk, that of a claim too. Without that wait nothing would be
lost or settled twice: a claim that is forgotten leaves its row free, whoever had it is fenced off,
and a settle that is on the disk has its claim before it there. But a server that crashes would
forget the claims of its last moments: that work would run twice, and a message that takes the
server down would never be blamed for it.

Behind PgBouncer use pool_mode=session. With pool_mode=transaction announcements do not arrive and
the settings of a session are shared with others; messages are then found by looking for them, up to
a second late.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import finalize

import psycopg

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.errors import (
    StoreClosedError,
    StoreError,
    StoreUnreachableError,
    UnsupportedError,
    UsageError,
)
from longwatch.store.database import (
    CALL_TIMEOUT,
    Channels,
    Database,
    Transaction,
    VanishedError,
    done,
)
from longwatch.store.forks import survive_forks
from longwatch.store.postgres_address import Address, AwayError, ComingError, CrowdedError
from longwatch.store.postgres_errors import CallTimeoutError, is_passing, told
from longwatch.store.postgres_home import Home, place
from longwatch.store.postgres_opened import OpenedServer, UnsureError, schema_version
from longwatch.store.postgres_pool import SIZE
from longwatch.store.postgres_session import USUAL_PLANS
from longwatch.store.postgres_transaction import READ_WRITE, PostgresTransaction, users_transaction

T = TypeVar("T")

RETRY = BackoffPolicy(initial=0.02, factor=2.0, cap=1.0, jitter=0.25)


class PostgresDatabase(Database):
    """A database on a server, reached by the first call that needs it; an error of that comes
    there, the next call tries again.

    `size` bounds the connections of this process, one more is used for listening. `auto_migrate`:
    bring the schema up to date when it is first used; without it that is left to `longwatch db
    migrate`. Closed by `close`, when nobody knows it any more, and when the interpreter exits; a
    forked child makes connections of its own.
    """

    dialect = "postgresql"
    looks_first = False
    is_shared = True

    def __init__(self, url: str, *, size: int = SIZE, auto_migrate: bool = True) -> None:
        self.url = url
        super().__init__()
        self._address = Address(url)
        self._size = size
        self._auto_migrate = auto_migrate
        self._opening = threading.Lock()
        self._opened: OpenedServer | None = None
        self._ending: finalize[..., PostgresDatabase] | None = None
        self._home = Home(self._address.shown)
        self._closed = Wakeup()
        self._inside = threading.local()
        survive_forks(self)

    @property
    def identity(self) -> object:
        return self._address.identity

    def write(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        return self._run(work, READ_WRITE, timeout)

    def transact(self, work: Callable[[Any], T]) -> T:
        """`write`, with the plans that other statements than ours need."""
        return self._run(
            lambda transaction: done(work(transaction)), (*READ_WRITE, USUAL_PLANS), CALL_TIMEOUT
        )

    def read(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        opened, deadline = self._open(), time.monotonic() + timeout
        return self._persist(lambda: self._read(opened, work, deadline), opened, deadline)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self._open().listen(channels, wakeup)

    def join(self, tx: Any) -> Transaction:
        """Ours as it is; the user's own psycopg connection as the transaction it is in."""
        if not isinstance(tx, PostgresTransaction):
            transaction = users_transaction(tx, self.jump)
            self._home.require(tx, transaction, lambda: self.read(place))
            return transaction
        if tx.home != self.identity:
            shown = self._address.shown
            raise UnsupportedError(
                f"tx= is a transaction of another store than {shown}; open the mailbox in "
                f"that store"
            )
        return tx

    def schema_version(self, *, timeout: float = CALL_TIMEOUT) -> int:
        """At which version the schema is, 0 if there is none; makes nothing and changes nothing."""
        opened, deadline = self._open(), time.monotonic() + timeout
        return self._persist(lambda: opened.read(schema_version, deadline), opened, deadline)

    def close(self) -> None:
        with self._opening:
            self._closed.set()
            ending, self._opened = self._ending, None
        if ending is not None:
            ending()

    # --- trying, and trying again ---

    def _run(self, work: Callable[[Any], T], begin: Sequence[bytes], timeout: float) -> T:
        opened, deadline = self._open(), time.monotonic() + timeout
        with self._alone():
            return self._persist(
                lambda: self._write(opened, work, begin, deadline), opened, deadline
            )

    def _write(
        self,
        opened: OpenedServer,
        work: Callable[[Any], T],
        begin: Sequence[bytes],
        deadline: float,
    ) -> T:
        opened.prepare(deadline)
        while True:
            try:
                return opened.write(work, deadline, begin=begin)
            except UnsureError as unsure:
                if self._was_committed(opened, unsure, deadline):
                    result: T = unsure.result
                    return result

    def _read(self, opened: OpenedServer, work: Callable[[Any], T], deadline: float) -> T:
        opened.prepare(deadline)
        return opened.read(work, deadline)

    def _persist(self, attempt: Callable[[], T], opened: OpenedServer, deadline: float) -> T:
        """Try until it works, fails for good, or the time is over; what the last try had no time
        to hear, an earlier one heard.
        """
        backoff = Backoff(RETRY)
        heard: BaseException | None = None
        while True:
            try:
                return attempt()
            except (StoreError, psycopg.Error) as error:
                final = told(self.url, error)
                if isinstance(error, CallTimeoutError) and heard is not None:
                    raise heard from error
                heard = final
                if isinstance(final, StoreUnreachableError | VanishedError):
                    self.generation += (
                        1  # when it is back it may be another one, restored or failed over to
                    )
                if not _may_pass(error, opened) or not self._pause(backoff, deadline):
                    raise final from (error if final is not error else error.__cause__)

    def _was_committed(self, opened: OpenedServer, unsure: UnsureError, deadline: float) -> bool:
        """Ask until the server can say; StoreError when it cannot."""
        backoff = Backoff(RETRY)
        why: BaseException = unsure
        while self._pause(backoff, deadline):
            try:
                return opened.was_committed(unsure, deadline)
            except (StoreError, psycopg.Error) as error:
                why = told(self.url, error)
                if not _may_pass(error, opened):
                    break
        raise StoreError(
            f"the connection was lost at the commit; whether it was written is unknown ({why})"
        ) from why

    def _pause(self, backoff: Backoff, deadline: float) -> bool:
        """Wait a little, or not at all when the time is over."""
        delay = backoff.failed(lasted=0.0)
        if time.monotonic() + delay >= deadline:
            return False
        if self._closed.block(delay):
            raise StoreClosedError(f"{self._address.shown} was closed; open it again")
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if getattr(self._inside, "write", False):
            raise UsageError(
                "a write inside a write would be a transaction of its own; pass the "
                "transaction on with tx="
            )
        self._inside.write = True
        try:
            yield
        finally:
            self._inside.write = False

    def _open(self) -> OpenedServer:
        return self._opened or self._open_now()

    def _open_now(self) -> OpenedServer:
        with self._opening:
            if self._closed.is_set():
                raise StoreClosedError(f"{self._address.shown} was closed; open it again")
            if self._opened is None:
                self._opened = OpenedServer(
                    self._address, jump=self.jump, size=self._size, auto_migrate=self._auto_migrate
                )
                self._ending = finalize(self, self._opened.close)
            return self._opened

    # --- forks ---

    def hold(self) -> None:
        """Nothing waits for a fork: the child uses nothing of the parent's."""

    def go_on(self) -> None:
        """And nothing was held."""

    def leave_behind(self) -> None:
        opened, self._opened = self._opened, None
        if self._ending is not None:
            self._ending.detach()
            self._ending = None
        if opened is not None:
            opened.leave_behind()
        self._opening = threading.Lock()
        self._inside = threading.local()


def _may_pass(error: BaseException, opened: OpenedServer) -> bool:
    """Whether it is worth another try. A server that nobody has reached yet is told to be away
    at once.
    """
    if isinstance(error, AwayError):
        return opened.was_reached
    return isinstance(error, ComingError | CrowdedError) or is_passing(error)
