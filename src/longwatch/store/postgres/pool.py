"""The connections of one process: as many as are used at once, up to a bound.

psycopg_pool is not used: it connects from threads of its own at start, where this one connects when
somebody needs it, in the time that call has, and can be left behind in a fork.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, WeakSet

from longwatch.core.deadline import Deadline
from longwatch.errors import StoreBusyError, StoreClosedError
from longwatch.store.postgres.connection import PostgresConnection

POOL_SIZE = 8


class _Checkout:
    """A place among the connections, and the one that has it."""

    __slots__ = ("__weakref__", "connection")

    def __init__(self) -> None:
        self.connection: PostgresConnection | None = None


class ConnectionPool:
    """Lends connections. Every method may be called from any thread."""

    def __init__(
        self, connect: Callable[[Deadline], PostgresConnection], *, size: int = POOL_SIZE
    ) -> None:
        self._connect = connect
        self._size = size
        self._connections: WeakSet[PostgresConnection] = WeakSet()
        self._generations: WeakKeyDictionary[PostgresConnection, int] = WeakKeyDictionary()
        self._generation = 0
        """Raised whenever one could not be used to the end: those that were made before are not
        used again.
        """
        self._free: list[PostgresConnection] = []
        self._checkouts: WeakSet[_Checkout] = (
            WeakSet()
        )  # one that an interrupt tore out of our hands ends with whoever had it
        self._changed = threading.Condition()
        self._closed = False

    @contextmanager
    def connection(self, deadline: Deadline) -> Iterator[PostgresConnection]:
        """A connection that nobody else uses meanwhile; the one that was used last, for it is
        warm.
        """
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

    def close(self) -> None:
        """Close those that are free; the others are closed when they come back. Idempotent."""
        with self._changed:
            self._closed = True
            free, self._free = self._free, []
            self._changed.notify_all()
        for connection in free:
            self._discard(connection)

    def abandon(self) -> None:
        """In a forked child."""
        for connection in self._connections:
            connection.abandon()

    def _check_out(self, checkout: _Checkout, deadline: Deadline) -> None:
        """A place, with a free connection if there is one."""
        with self._changed:
            while not self._closed:
                if len(self._checkouts) < self._size:
                    self._checkouts.add(checkout)
                    checkout.connection = self._pop_alive()
                    return
                if not self._changed.wait(deadline.remaining()):
                    raise StoreBusyError(
                        f"all {self._size} connections were in use all the time; nothing was "
                        f"written, try again"
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
        """If one could not be used to the end, no other of its time is trusted: on a dead network
        all look alive, and those to a server that was demoted stay read-only.
        """
        dropped: list[PostgresConnection] = []
        connection = checkout.connection
        with self._changed:
            self._checkouts.discard(checkout)
            if connection is not None and connection.is_idle and not self._closed:
                (
                    self._free if self._generations[connection] == self._generation else dropped
                ).append(connection)
            elif connection is not None:
                dropped, self._free = [connection, *self._free], []
                self._generation += 1
            self._changed.notify()
        for each in dropped:
            self._discard(each)

    def _discard(self, connection: PostgresConnection) -> None:
        self._connections.discard(connection)
        connection.close()
