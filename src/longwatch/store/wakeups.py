"""Waking those who wait for a row, in this process and in others: datagrams as hints, a look now
and then as the net below.

Whoever listens binds a datagram socket in a short per-user directory (a path of AF_UNIX ends at 107
bytes), named after the database and by chance. Whoever has committed something sends the channel's
name to all of them, without blocking; a full socket is passed over, a dead one removed. Hints may
get lost, so every listener is also woken every NET seconds.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreUnreachableError, UsageError
from longwatch.host.runtimedir import runtime_directory
from longwatch.store.database import Channels
from longwatch.store.ear import LARGEST, Ear
from longwatch.store.listeners import Listeners
from longwatch.store.neighbours import Neighbours

NET = 1.0
"""Seconds after which a listener is woken though no hint came."""
_EVERYBODY = b""


class Wakeups:
    """Hints about one database."""

    def __init__(self, path: Path, *, net: float = NET) -> None:
        try:
            directory = runtime_directory()
        except UsageError as error:
            raise StoreUnreachableError(str(error)) from error
        prefix = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
        self.place = str(directory / f"{prefix}-{os.urandom(4).hex()}")
        self._net = net
        self._neighbours = Neighbours(directory, prefix)
        self._listeners = Listeners()
        self._lock = threading.Lock()
        self._ear: Ear | None = None
        self._closed = False
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def announce(self, channels: Iterable[str]) -> None:
        """Tell everybody who listens to one of these channels. For one thread at a time."""
        names = tuple(channels)
        message = "\n".join(names).encode()
        for place in self._neighbours.sockets():
            if place != self.place:
                self._tell(place, message if len(message) <= LARGEST else _EVERYBODY)
        self._listeners.wake(names)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set on every announcement, and every NET seconds in any case."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            if self._ear is None:
                self._ear = Ear(self.place, self._hear, every=self._net)
            return self._listeners.add(channels, wakeup)

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            self._closed = True
            ear = self._ear
        if ear is not None:
            ear.close()
        self._sender.close()

    def leave_behind(self) -> None:
        """In a forked child: let go of the parent's sockets, whose thread is not here."""
        self._sender.close()
        if self._ear is not None:
            self._ear.leave_behind()

    def _tell(self, place: str, message: bytes) -> None:
        try:
            self._sender.sendto(message, place)
        except ConnectionRefusedError:
            self._neighbours.remove(place)
        except OSError:
            return  # it is full, or just gone

    def _hear(self, message: bytes) -> None:
        if message:
            self._listeners.wake(message.decode(errors="replace").split("\n"))
        else:
            self._listeners.wake_all()
