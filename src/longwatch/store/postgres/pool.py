"""The connection pool of one process: as many connections as are used at once, up to a limit. All
but one are closed again when they have not been used for a while.

psycopg_pool is not used. It connects from its own threads at start. This pool connects when a call
needs it, within the time of that call, and a forked child can abandon it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreClosedError
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.postgres.connection import PostgresConnection

POOL_SIZE = 8
IDLE_SECONDS = 10.0
"""Seconds without use after which a connection is closed, unless it is the only free one."""


class _Checkout:
    """One place in the pool, and the connection that occupies it."""

    __slots__ = ("__weakref__", "connection")

    def __init__(self) -> None:
        self.connection: PostgresConnection | None = None


class ConnectionPool:
    """Lends connections. Every method is thread-safe."""

    def __init__(
        self, connect: Callable[[Deadline], PostgresConnection], *, size: int = POOL_SIZE
    ) -> None:
        self._connect = connect
        self._size = size
        self._connections: WeakSet[PostgresConnection] = WeakSet()
        self._generations: WeakKeyDictionary[PostgresConnection, int] = WeakKeyDictionary()
        self._generation = 0
        """Raised whenever a connection failed in use. Connections of an older generation are not
        used again.
        """
        self._free: list[PostgresConnection] = []
        self._checkouts: WeakSet[_Checkout] = (
            WeakSet()
        )  # weak: a checkout that an interrupt skipped past ends with its caller's frame
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._closing = threading.Condition(lock)
        self._shrinker: BackgroundThread | None = None
        self._closed = False

    @contextmanager
    def connection(self, deadline: Deadline) -> Iterator[PostgresConnection]:
        """Lend a connection for exclusive use. The most recently used one is lent first."""
        checkout = _Checkout()
        try:
            self._check_out(checkout, deadline)
            if checkout.connection is None:
                generation = self._generation
                checkout.connection = self._connect(deadline)
                self._generations[checkout.connection] = generation
                self._connections.add(checkout.connection)
            yield checkout.connection
        finally:
            self._check_in(checkout)

    def resize(self, difference: int) -> None:
        """Allow so many connections more, or fewer if it is negative."""
        with self._changed:
            self._size += difference
            self._changed.notify_all()

    def close(self) -> None:
        """Close the free connections. The others are closed when they are returned. Idempotent."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
            self._closing.notify_all()
        for connection in free:
            self._discard(connection)

    def abandon(self) -> None:
        """In a forked child: close the copies of all sockets without notifying the server."""
        for connection in self._connections:
            connection.abandon()

    def _check_out(self, checkout: _Checkout, deadline: Deadline) -> None:
        """Take a place, with a free connection if there is one."""
        with self._changed:
            while not self._closed:
                if len(self._checkouts) < self._size:
                    self._checkouts.add(checkout)
                    checkout.connection = self._pop_alive()
                    return
                if not self._changed.wait(deadline.remaining()):
                    raise StoreBusyError(
                        f"all {self._size} connections were in use until the timeout; nothing "
                        f"was written, try again"
                    )
        raise StoreClosedError("the store was closed; open it again")

    def _pop_alive(self) -> PostgresConnection | None:
        while self._free:
            connection = self._free.pop()
            if connection.is_alive():
                return connection
            self._discard(connection)
        return None

    def _check_in(self, checkout: _Checkout) -> None:
        """Return a connection to the pool.

        If it failed in use, all connections of its generation are discarded. On a dead network all
        of them seem alive, and connections to a demoted server stay read-only.
        """
        dropped: list[PostgresConnection] = []
        connection = checkout.connection
        with self._changed:
            self._checkouts.discard(checkout)
            if connection is not None and connection.is_idle and not self._closed:
                if self._generations[connection] == self._generation:
                    self._keep(connection)
                else:
                    dropped.append(connection)
            elif connection is not None:
                dropped, self._free = [connection, *self._free], []
                self._generation += 1
            self._changed.notify()
        for each in dropped:
            self._discard(each)

    # --- connections that are no longer needed ---

    def _keep(self, connection: PostgresConnection) -> None:
        """Add a free connection. While there are several, a thread watches their age."""
        connection.used_at = time.monotonic()
        self._free.append(connection)
        if len(self._free) > 1 and self._shrinker is None:
            self._shrinker = BackgroundThread(
                self._shrink, name="longwatch-postgres-pool", report_errors=True
            )
            try:
                self._shrinker.start()
            except RuntimeError:  # no thread can start; the next return tries again
                self._shrinker = None

    def _shrink(self) -> None:
        while idle := self._next_idle():
            for connection in idle:
                self._discard(connection)

    def _next_idle(self) -> list[PostgresConnection]:
        """Wait until connections have been idle for long, and take them. Empty when at most one is
        free: the thread then ends.
        """
        with self._changed:
            while len(self._free) > 1:
                left = self._free[0].used_at + IDLE_SECONDS - time.monotonic()
                if left <= 0:
                    return [self._free.pop(0)]
                self._closing.wait(left)
            self._shrinker = None
            return []

    def _discard(self, connection: PostgresConnection) -> None:
        self._connections.discard(connection)
        connection.close()
