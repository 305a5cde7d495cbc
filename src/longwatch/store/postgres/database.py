"""A PostgreSQL database: a few connections per process, every call under a deadline, and no commit
whose result is guessed.

Isolation is READ COMMITTED. The server's clock decides leases and delays. Tables are named without
a schema, so the user's `search_path` decides where they are. In a shared database create a schema
for them and name it in the URL with `options=-csearch_path=NAME`. A connection that is passed as
`tx=` must find the same tables.

A call survives a broken connection, a server restart and a deadlock: its work is retried until the
deadline. A commit whose reply was lost is not simply repeated. The server is asked whether it was
made (`commit_marker`).

Every commit waits for the server's disk, also that of a claim. Without that wait nothing would be
lost or settled twice. A forgotten claim leaves its row free and its owner fenced off, and a settle
on disk has its claim before it. But a server that crashes would forget its last claims. That work
would run twice, and a message that crashes the server would never be blamed.

Behind a pooler that lends connections for one transaction (PgBouncer's pool_mode=transaction)
nothing is left in the session: no settings, no prepared statements, no LISTEN. Receivers then find
messages by polling, up to a second late, unless the URL names the server itself with `listen_url`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import finalize

import psycopg

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import SystemClock, Wakeup
from longwatch.core.deadline import Deadline
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
    StoredSchema,
    StoreResetError,
    Transaction,
    require_plain_result,
)
from longwatch.store.forks import register_fork_hooks
from longwatch.store.postgres.client import CommitUnknownError, PostgresClient, stored_schema
from longwatch.store.postgres.connector import (
    ServerAddress,
    ServerNotReadyError,
    ServerUnreachableError,
    TooManyConnectionsError,
)
from longwatch.store.postgres.errors import CallTimeoutError, is_transient, translate_error
from longwatch.store.postgres.pool import POOL_SIZE
from longwatch.store.postgres.shared_clients import SHARED_CLIENTS
from longwatch.store.postgres.transaction import (
    BEGIN_OF_USER,
    BEGIN_READ_WRITE,
    PostgresTransaction,
)
from longwatch.store.postgres.user_transaction import (
    UserConnectionCheck,
    locate_tables,
    wrap_user_connection,
)
from longwatch.store.retry import retry

T = TypeVar("T")

RETRY_BACKOFF = BackoffPolicy(initial=0.02, factor=2.0, cap=1.0, jitter=0.25)


class PostgresDatabase(Database):
    """A database on a server. The first call connects; if that fails, it raises, and the next call
    tries again.

    `size` limits the connections of this process; one more is used for listening. `auto_migrate`
    migrates the schema at first use. Without it, run `longwatch db migrate`. The database is closed
    by `close`, when it is garbage collected, and when the interpreter exits. A forked child makes
    its own connections. With `shares_connections` it uses one pool and one listener together with
    the other such databases of its URL (`shared_clients`).
    """

    dialect = "postgresql"
    has_single_writer = False
    is_shared = True

    def __init__(
        self,
        url: str,
        *,
        size: int = POOL_SIZE,
        auto_migrate: bool = True,
        shares_connections: bool = False,
    ) -> None:
        self.url = url
        super().__init__()
        self._address = ServerAddress(url)
        self._size = size
        self._auto_migrate = auto_migrate
        self._shares_connections = shares_connections
        self._open_lock = threading.Lock()
        self._client: PostgresClient | None = None
        self._finalizer: finalize[..., PostgresDatabase] | None = None
        self._connection_check = UserConnectionCheck(self._address.masked_url)
        self._closed = Wakeup()
        self._clock = SystemClock()
        self._thread_state = threading.local()
        register_fork_hooks(self)

    @property
    def identity(self) -> object:
        return self._address.identity

    @property
    def is_writing(self) -> bool:
        return getattr(self._thread_state, "write", False)

    def write(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        return self._run(work, BEGIN_READ_WRITE, timeout)

    def transact(self, work: Callable[[Any], T]) -> T:
        """`write` with the default planner settings, which users' statements need."""
        return self._run(
            lambda transaction: require_plain_result(work(transaction)),
            BEGIN_OF_USER,
            CALL_TIMEOUT,
        )

    def read(self, work: Callable[[Any], T], *, timeout: float = CALL_TIMEOUT) -> T:
        client, deadline = self._open(), Deadline.after(timeout, self._clock)
        return self._retry(lambda: self._read(client, work, deadline), client, deadline)

    def notify(self, *channels: str, to_all: bool = False) -> None:
        self._open().notify(channels, to_all=to_all)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self._open().listen(channels, wakeup)

    def join(self, tx: Any) -> Transaction:
        """Return a transaction of this store as it is, or wrap the user's psycopg connection."""
        if not isinstance(tx, PostgresTransaction):
            transaction = wrap_user_connection(tx, self.jump)
            self._connection_check.require(tx, transaction, lambda: self.read(locate_tables))
            return transaction
        if tx.store_identity != self.identity:
            masked_url = self._address.masked_url
            raise UnsupportedError(
                f"tx= is a transaction of another store than {masked_url}; open the mailbox in "
                f"the store of tx="
            )
        return tx

    def stored_schema(self, *, timeout: float = CALL_TIMEOUT) -> StoredSchema:
        """Return the schema, with version 0 if there is none. Only reads."""
        client, deadline = self._open(), Deadline.after(timeout, self._clock)
        return self._retry(
            lambda: client.read(stored_schema, deadline, jump=self.jump), client, deadline
        )

    def close(self) -> None:
        with self._open_lock:
            self._closed.set()
            finalizer, self._client = self._finalizer, None
        if finalizer is not None:
            finalizer()

    # --- attempts ---

    def _run(self, work: Callable[[Any], T], begin: Sequence[bytes], timeout: float) -> T:
        client, deadline = self._open(), Deadline.after(timeout, self._clock)
        with self._refuse_nesting():
            return self._retry(lambda: self._write(client, work, begin, deadline), client, deadline)

    def _write(
        self,
        client: PostgresClient,
        work: Callable[[Any], T],
        begin: Sequence[bytes],
        deadline: Deadline,
    ) -> T:
        client.prepare(deadline, auto_migrate=self._auto_migrate)
        while True:
            try:
                return client.write(work, deadline, begin=begin, jump=self.jump)
            except CommitUnknownError as unknown:
                if self._was_committed(client, unknown, deadline):
                    result: T = unknown.result
                    return result

    def _read(self, client: PostgresClient, work: Callable[[Any], T], deadline: Deadline) -> T:
        client.prepare(deadline, auto_migrate=self._auto_migrate)
        return client.read(work, deadline, jump=self.jump)

    def _retry(self, attempt: Callable[[], T], client: PostgresClient, deadline: Deadline) -> T:
        """Retry until the attempt succeeds, fails for good, or the deadline passes. Translates the
        last error.

        A timeout gives no reason. If an earlier attempt failed with one, its error is raised
        instead.
        """
        learnt: list[BaseException] = []

        def should_retry(error: Exception) -> bool:
            if not isinstance(error, StoreError | psycopg.Error):
                return False  # an error of the work itself
            self._learn(error, learnt)
            return _may_retry(error, client)

        try:
            return self._retry_until(deadline, attempt, should_retry)
        except StoreClosedError:
            raise
        except (StoreError, psycopg.Error) as error:
            cause = error if learnt[-1] is not error else error.__cause__
            raise learnt[-1] from cause

    def _learn(self, error: Exception, learnt: list[BaseException]) -> None:
        """Record an error as the reason, unless it is a timeout after another error."""
        if isinstance(error, CallTimeoutError) and learnt:
            return
        learnt.append(translate_error(self.url, error))
        if isinstance(learnt[-1], StoreUnreachableError | StoreResetError):
            # The server that comes back may be another one, after a restore or a failover.
            self._begin_generation()

    def _begin_generation(self) -> None:
        self.generation += 1
        self.scan_bounds.clear()

    def _was_committed(
        self, client: PostgresClient, unknown: CommitUnknownError, deadline: Deadline
    ) -> bool:
        """Ask until the server replies. Raises StoreError when it does not."""
        try:
            return self._retry_until(
                deadline,
                lambda: client.was_committed(unknown, deadline),
                lambda error: error is unknown or _may_retry(error, client),
                unknown,
            )
        except (StoreError, psycopg.Error, CommitUnknownError) as error:
            reason = translate_error(self.url, error)
            raise StoreError(
                f"the connection was lost at the commit; whether it was written is unknown "
                f"({reason})"
            ) from reason

    def _retry_until(
        self,
        deadline: Deadline,
        attempt: Callable[[], T],
        should_retry: Callable[[Exception], bool],
        error: Exception | None = None,
    ) -> T:
        return retry(
            attempt,
            policy=RETRY_BACKOFF,
            deadline=deadline,
            should_retry=should_retry,
            pause=self._pause,
            error=error,
        )

    def _pause(self, delay: float) -> None:
        if self._clock.wait(self._closed, delay):
            raise StoreClosedError(f"{self._address.masked_url} was closed; open it again")

    @contextmanager
    def _refuse_nesting(self) -> Iterator[None]:
        if self.is_writing:
            raise UsageError(
                "a write inside a write would be a separate transaction; pass the "
                "transaction on with tx="
            )
        self._thread_state.write = True
        try:
            yield
        finally:
            self._thread_state.write = False

    def _open(self) -> PostgresClient:
        return self._client or self._open_client()

    def _open_client(self) -> PostgresClient:
        with self._open_lock:
            if self._closed.is_set():
                raise StoreClosedError(f"{self._address.masked_url} was closed; open it again")
            if self._client is None:
                self._client, close = self._make_client()
                self._finalizer = finalize(self, close)
            return self._client

    def _make_client(self) -> tuple[PostgresClient, Callable[[], None]]:
        """Return a client, and the function that closes it or releases a shared one."""
        if self._shares_connections:
            return SHARED_CLIENTS.acquire(
                self.url, self._size, lambda: PostgresClient(self._address, size=0)
            )
        client = PostgresClient(self._address, size=self._size)
        return client, client.close

    # --- forks ---

    def before_fork(self) -> None:
        """Does nothing: the child uses no connection of the parent."""

    def after_fork_in_parent(self) -> None:
        """Does nothing: no lock was taken."""

    def after_fork_in_child(self) -> None:
        client, self._client = self._client, None
        self._begin_generation()
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        if client is not None:
            client.abandon()
        self._open_lock = threading.Lock()
        self._thread_state = threading.local()


def _may_retry(error: BaseException, client: PostgresClient) -> bool:
    """Return whether another attempt may succeed. A server that was never reached is reported at
    once.
    """
    if isinstance(error, ServerUnreachableError):
        return client.was_reached
    return isinstance(error, ServerNotReadyError | TooManyConnectionsError) or is_transient(error)
