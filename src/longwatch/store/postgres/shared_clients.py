"""The clients that the databases of one process share, one for each URL.

A process may open one URL many times: a mailbox, its reply mailboxes, a graph. Each is a Database
of its own, with its own clock offsets, owners and `close()`. Below, they share the client, and so
its connections, its listener and the rate of its notifications. Hence an idle process has two
connections, however many databases it has opened.

Invariants
    1. A client is open while a database holds it. The last release closes it.
    2. The pool of a client has places for all its databases, so that calls of one never wait longer
       than they would with a pool of its own.
    3. A release may run at any point of any thread, because garbage collection may run it. So the
       lock is reentrant, and `acquire` verifies that the client was not closed meanwhile.
    4. A forked child shares nothing with its parent: it forgets all clients.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from longwatch.store.forks import register_fork_hooks
from longwatch.store.postgres.client import PostgresClient


class _SharedClient:
    """A client and the number of its databases."""

    __slots__ = ("client", "is_closed", "users")

    def __init__(self, client: PostgresClient) -> None:
        self.client = client
        self.users = 0
        self.is_closed = False


class SharedClients:
    """The open clients by URL. Every method is thread-safe."""

    def __init__(self) -> None:
        self._by_url: dict[str, _SharedClient] = {}
        self._lock = threading.RLock()
        register_fork_hooks(self)

    def acquire(
        self, url: str, size: int, make: Callable[[], PostgresClient]
    ) -> tuple[PostgresClient, Callable[[], None]]:
        """Return the client of a URL, with `size` more places in its pool, and the function that
        releases it. The caller calls that once. `make` returns a client without a place.
        """
        with self._lock:
            while True:
                shared = self._by_url.get(url)
                if shared is None:
                    shared = self._by_url[url] = _SharedClient(make())
                shared.users += 1
                if not shared.is_closed:
                    break
            shared.client.resize_pool(size)
        return shared.client, lambda: self._release(url, shared, size)

    def _release(self, url: str, shared: _SharedClient, size: int) -> None:
        with self._lock:
            shared.users -= 1
            shared.is_closed = not shared.users
            if shared.is_closed and self._by_url.get(url) is shared:
                del self._by_url[url]
        if shared.is_closed:
            shared.client.close()
        else:
            shared.client.resize_pool(-size)

    # --- forks ---

    def before_fork(self) -> None:
        """Nothing to do before a fork."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do in the parent."""

    def after_fork_in_child(self) -> None:
        """Forget the clients of the parent. The databases close the copies of their sockets."""
        self._by_url = {}
        self._lock = threading.RLock()


SHARED_CLIENTS = SharedClients()
