"""Notifications between the processes of one machine that use one database file.

A process that listens binds a datagram socket in a short per-user directory (an AF_UNIX path has at
most 107 bytes), named after the database plus a random part. A process that has committed sends the
channel's name to all of these sockets without blocking: it skips a full socket and removes a dead
one. Notifications may get lost, so every listener is also woken every WAKE_INTERVAL seconds.
"""

from __future__ import annotations

import hashlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from longwatch.core.clock import Wakeup
from longwatch.errors import StoreClosedError, StoreUnreachableError, UsageError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.runtime_dir import runtime_directory
from longwatch.store.database import Channels
from longwatch.store.notify.subscriptions import Subscriptions

MAX_DATAGRAM_BYTES = 4096
"""Bytes in one datagram."""
_CLOSE_TIMEOUT = 2.0


class DatagramListener:
    """Calls `on_datagram(datagram)` in its own thread for every datagram, and with an empty one
    every `interval` seconds.
    """

    def __init__(self, path: str, on_datagram: Callable[[bytes], None], *, interval: float) -> None:
        self._path = Path(path)
        self._on_datagram = on_datagram
        self._interval = interval
        self._socket = _bind(path)
        self._stop_reader, self._stop_writer = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._poll.register(self._stop_reader, select.POLLIN)
        self._lock = threading.Lock()
        self._is_open = True
        self._thread = BackgroundThread(self._run, name="longwatch-notify", report_errors=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._clean_up()
            raise StoreUnreachableError(f"no thread to listen with ({error}); try again") from error

    def close(self) -> None:
        """End the thread and wait for that, unless it is the calling thread; idempotent."""
        with self._lock:
            if self._is_open:
                os.write(self._stop_writer, b"\0")
        if not self._thread.in_own_thread:
            self._thread.done.block(_CLOSE_TIMEOUT)

    def abandon(self) -> None:
        """In a forked child: close the parent's descriptors. The socket file stays, and the thread
        does not exist here.
        """
        if self._is_open:
            self._close_descriptors()

    def _run(self) -> None:
        try:
            while self._receive_for_interval():
                pass
        finally:
            self._clean_up()

    def _receive_for_interval(self) -> bool:
        """Receive datagrams for one interval, then report an empty one; False when stopped."""
        deadline = time.monotonic() + self._interval
        while (left := deadline - time.monotonic()) > 0:
            ready = dict(self._poll.poll(left * 1000))
            if self._stop_reader in ready:
                return False
            with suppress(BlockingIOError):
                self._on_datagram(self._socket.recv(MAX_DATAGRAM_BYTES))
        self._on_datagram(b"")
        return True

    def _clean_up(self) -> None:
        with self._lock:
            self._is_open = False
            self._path.unlink(missing_ok=True)
            self._close_descriptors()

    def _close_descriptors(self) -> None:
        self._socket.close()
        os.close(self._stop_reader)
        os.close(self._stop_writer)


def _bind(path: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        bound.bind(path)
        Path(path).chmod(0o600)
    except OSError as error:
        bound.close()
        raise StoreUnreachableError(
            f"{path} cannot be listened at ({error}); check its directory"
        ) from error
    return bound


_MTIME_RESOLUTION = 0.05
"""Seconds for which a new mtime of a directory proves nothing: it is as coarse as a tick of the
kernel.
"""


class PeerSockets:
    """The sockets whose names begin with a prefix. One owner; not thread-safe."""

    def __init__(
        self, directory: Path, prefix: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._now = now
        self._mtime = -1
        self._mtime_seen_at = 0.0
        self._paths: list[str] = []
        self._is_current = False

    def paths(self) -> list[str]:
        """Their paths; none when the directory is gone."""
        try:
            mtime = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - a third of the time, on every commit
        except OSError:
            return []
        if mtime != self._mtime:
            self._mtime, self._mtime_seen_at, self._is_current = mtime, self._now(), False
        if not self._is_current:
            self._list()
        return self._paths

    def remove(self, path: str) -> None:
        """Remove the socket of a process that has ended."""
        with suppress(OSError):
            Path(path).unlink()

    def _list(self) -> None:
        now = self._now()
        with suppress(OSError), os.scandir(self._directory) as entries:
            self._paths = [entry.path for entry in entries if entry.name.startswith(self._prefix)]
            self._is_current = now - self._mtime_seen_at > _MTIME_RESOLUTION


WAKE_INTERVAL = 1.0
"""Seconds after which a listener is woken without a notification."""
_WAKE_ALL = b""


class LocalNotifier:
    """Sends and receives the notifications of one database."""

    def __init__(self, database_path: Path, *, wake_interval: float = WAKE_INTERVAL) -> None:
        try:
            directory = runtime_directory()
        except UsageError as error:
            raise StoreUnreachableError(str(error)) from error
        prefix = hashlib.sha256(str(database_path.resolve()).encode()).hexdigest()[:12]
        self.socket_path = str(directory / f"{prefix}-{os.urandom(4).hex()}")
        self._wake_interval = wake_interval
        self._peers = PeerSockets(directory, prefix)
        self._subscriptions = Subscriptions()
        self._lock = threading.Lock()
        self._listener: DatagramListener | None = None
        self._closed = False
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def notify(self, channels: Iterable[str]) -> None:
        """Notify every listener of these channels. For one thread at a time."""
        names = tuple(channels)
        message = "\n".join(names).encode()
        for path in self._peers.paths():
            if path != self.socket_path:
                self._send(path, message if len(message) <= MAX_DATAGRAM_BYTES else _WAKE_ALL)
        self._subscriptions.wake(names)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup on every notification, and every WAKE_INTERVAL seconds in any case."""
        with self._lock:
            if self._closed:
                raise StoreClosedError("the store was closed; open it again")
            if self._listener is None:
                self._listener = DatagramListener(
                    self.socket_path, self._on_datagram, interval=self._wake_interval
                )
            return self._subscriptions.add(channels, wakeup)

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._lock:
            self._closed = True
            listener = self._listener
        if listener is not None:
            listener.close()
        self._sender.close()

    def abandon(self) -> None:
        """In a forked child: close the parent's sockets, whose thread is not here."""
        self._sender.close()
        if self._listener is not None:
            self._listener.abandon()

    def _send(self, path: str, message: bytes) -> None:
        try:
            self._sender.sendto(message, path)
        except ConnectionRefusedError:
            self._peers.remove(path)
        except OSError:
            return  # it is full, or just gone

    def _on_datagram(self, message: bytes) -> None:
        if message:
            self._subscriptions.wake(message.decode(errors="replace").split("\n"))
        else:
            self._subscriptions.wake_all()
