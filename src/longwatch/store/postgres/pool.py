"""The connection pool of one process: as many connections as are used at once, up to a limit. All
but one are closed again when they have not been used for a while.

The threads of an idle process poll a few times a second, and sometimes two of them at once. That
does not pay for a second connection. So a call that finds all connections in use first waits a
moment for one of them, and a short call in such a rare overlap does not count as a use that keeps
a connection open. If calls overlap often, the process is busy: a call connects at once, and every
use counts.

psycopg_pool is not used. It connects from its own threads at start. This pool connects when a call
needs it, within the time of that call, and a forked child can abandon it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
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

OVERLAP_WAIT = 0.1
"""Seconds that a call waits for a connection in use, before it makes another one. A call that takes
longer always counts as use.
"""
FREQUENT_OVERLAPS = 20
"""Calls of one period that began during another call; any further call makes the process busy."""
OVERLAP_PERIOD = 1.0


class _Checkout:
    """One place in the pool, and the connection that occupies it."""

    __slots__ = ("__weakref__", "began_at", "connection", "is_rare_overlap")

    def __init__(self) -> None:
        self.connection: PostgresConnection | None = None
        self.is_rare_overlap = False
        self.began_at = time.monotonic()

    @property
    def counts_as_use(self) -> bool:
        """Whether this use keeps the connection open."""
        return not self.is_rare_overlap or time.monotonic() - self.began_at > OVERLAP_WAIT


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
        self._overlapped_at: deque[float] = deque(maxlen=FREQUENT_OVERLAPS)
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._closing = threading.Condition(lock)
        self._shrinker: BackgroundThread | None = None
        self._closed = False

    @contextmanager
    def connection(self, deadline: Deadline) -> Iterator[PostgresConnection]:
        """Lend a connection for exclusive use, first the one that was used last."""
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
            checkout.is_rare_overlap = self._is_rare_overlap()
            if checkout.is_rare_overlap and len(self._checkouts) < self._size:
                wait = deadline.capped(OVERLAP_WAIT).remaining()
                self._changed.wait_for(lambda: self._free or self._closed, wait)
            while not self._closed:
                if len(self._checkouts) < self._size:
                    self._checkouts.add(checkout)
                    checkout.began_at = time.monotonic()
                    checkout.connection = self._pop_alive()
                    return
                if not self._changed.wait(deadline.remaining()):
                    raise StoreBusyError(
                        f"all {self._size} connections were in use until the timeout; nothing "
                        f"was written, try again"
                    )
        raise StoreClosedError("the store was closed; open it again")

    def _is_rare_overlap(self) -> bool:
        """Whether a call begins during another one, which has not happened often of late."""
        if not self._checkouts:
            return False
        now, overlapped_at = time.monotonic(), self._overlapped_at
        is_frequent = len(overlapped_at) == FREQUENT_OVERLAPS
        is_busy = is_frequent and now - overlapped_at[0] < OVERLAP_PERIOD
        overlapped_at.append(now)
        return not is_busy

    def _pop_alive(self) -> PostgresConnection | None:
        while self._free:
            connection = max(self._free, key=_used_at)
            self._free.remove(connection)
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
                    self._keep(connection, counts_as_use=checkout.counts_as_use)
                else:
                    dropped.append(connection)
            elif connection is not None:
                dropped, self._free = [connection, *self._free], []
                self._generation += 1
            self._changed.notify()
        for each in dropped:
            self._discard(each)

    # --- connections that are no longer needed ---

    def _keep(self, connection: PostgresConnection, *, counts_as_use: bool) -> None:
        """Add a free connection. While there are several, a thread watches their age."""
        if counts_as_use:
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
                oldest = min(self._free, key=_used_at)
                left = oldest.used_at + IDLE_SECONDS - time.monotonic()
                if left <= 0:
                    self._free.remove(oldest)
                    return [oldest]
                self._closing.wait(left)
            self._shrinker = None
            return []

    def _discard(self, connection: PostgresConnection) -> None:
        self._connections.discard(connection)
        connection.close()


def _used_at(connection: PostgresConnection) -> float:
    return connection.used_at
