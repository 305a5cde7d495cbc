"""Notifications between the processes of one machine: datagrams on sockets with a path.

A process that listens binds a datagram socket in a short per-user directory (an AF_UNIX path ends
at 107 bytes). The socket's name is a hash of the database's path, then random digits. A process
that has committed sends the channel names to every such socket without blocking, and skips a full
one. Datagrams may get lost, so the listener also wakes its subscriptions once every wake interval.

Invariants
    1. A socket has its final name only after it is bound: it is bound under another name, made
       0600 and renamed. A socket of that name that refuses a datagram is one whose process has
       ended.
    2. The sockets of dead processes are removed twice: a sender removes those of its database that
       refuse a datagram, and a process that starts to listen removes those of all databases. The
       kernel decides, not a process id, which means another process in another container.
    3. A socket under its first name may still be on its way. It is removed only when it refuses
       and is older than a minute.

Failure cases
    The directory cannot be used (it belongs to another user, for example): the process neither
    sends nor receives datagrams and logs one warning. Its own commits wake its own subscriptions,
    and the wake interval wakes them for the commits of others. The socket or its directory is
    removed: the listener notices within a wake interval and binds a new socket.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf
from pathlib import Path

from longwatch.core.clock import Wakeup
from longwatch.errors import StoreUnreachableError, UsageError
from longwatch.host.runtime_dir import runtime_directory, runtime_directory_path
from longwatch.store.database import Channels
from longwatch.store.notify.listener import (
    WAKE_INTERVAL,
    ChannelsToWake,
    NotificationListener,
    Received,
    warn_of_polling,
)

MAX_DATAGRAM_BYTES = 4096
"""Bytes in one datagram."""
_WAKE_ALL = b""
_UNFINISHED = ".new"
"""The suffix of a socket's name until it is bound."""
_UNFINISHED_SECONDS = 60.0
_SOCKET_NAME = re.compile(rf"[0-9a-f]{{12}}-[0-9a-f]{{8}}({re.escape(_UNFINISHED)})?")


class DatagramSocket:
    """A bound datagram socket: the connection of a `DatagramListener`."""

    is_polling_only = False

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        unfinished = self._path.with_suffix(_UNFINISHED)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.bind(str(unfinished))
            unfinished.chmod(0o600)
            unfinished.rename(self._path)
        except OSError as error:
            self._socket.close()
            with suppress(OSError):
                unfinished.unlink()
            raise StoreUnreachableError(
                f"cannot bind the notification socket {path} ({error}); check its directory"
            ) from error
        self.fileno = self._socket.fileno()

    def start(self) -> Iterable[ChannelsToWake]:
        """Return nothing to wake: the socket has received since it was bound."""
        return ()

    def subscribe(self, channels: set[str]) -> None:
        """Does nothing: every channel arrives at this socket."""

    def receive(self) -> Received:
        with suppress(BlockingIOError):
            message = self._socket.recv(MAX_DATAGRAM_BYTES)
            is_for_all = message == _WAKE_ALL
            return Received(None if is_for_all else message.decode(errors="replace").split("\n"))
        return Received()

    def check_alive(self) -> Received:
        """Raise OSError if the socket's file was removed: no sender finds it then."""
        self._path.lstat()
        return Received()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()

    def abandon(self) -> None:
        self._socket.close()


class DatagramListener(NotificationListener):
    """Receives the datagrams that are sent to one path."""

    thread_name = "longwatch-notify"
    connection_errors = (OSError, StoreUnreachableError)
    connects_in_caller = True

    def __init__(self, path: str, *, wake_interval: float = WAKE_INTERVAL) -> None:
        super().__init__(wake_interval=wake_interval)
        self._path = path

    def connect(self) -> DatagramSocket:
        try:
            remove_dead_sockets(runtime_directory())
            return DatagramSocket(self._path)
        except (UsageError, StoreUnreachableError) as error:
            warn_of_polling(str(error))
            raise StoreUnreachableError(str(error)) from error


def remove_dead_sockets(directory: Path) -> None:
    """Remove the notification sockets of ended processes, for all databases."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _SOCKET_NAME.fullmatch(entry.name) and _is_dead(entry):
                with suppress(OSError):
                    Path(entry.path).unlink()


def _is_dead(entry: os.DirEntry[str]) -> bool:
    """Whether no process has the socket open; False for a socket that is being created."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        try:
            found = entry.stat(follow_symlinks=False)
            probe.connect(entry.path)
        except ConnectionRefusedError:
            age = time.time() - found.st_mtime
            return stat.S_ISSOCK(found.st_mode) and (
                not entry.name.endswith(_UNFINISHED) or age > _UNFINISHED_SECONDS
            )
        except OSError:
            return False
    return False


_MTIME_RESOLUTION = 0.05
"""Seconds within which an unchanged mtime of a directory proves nothing. Its resolution is one tick
of the kernel.
"""


class PeerSockets:
    """The sockets of one database in the runtime directory, listed again when that has changed. Not
    thread-safe.
    """

    def __init__(
        self, directory: Path, prefix: str, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._now = now
        self._mtime = -1
        self._mtime_seen_at = inf
        self._paths: list[str] = []
        self._is_current = False

    def paths(self) -> list[str]:
        """Return the paths of the sockets; none when the directory is gone."""
        try:
            mtime = os.stat(self._directory).st_mtime_ns  # noqa: PTH116 - three times as fast, on every commit
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
            self._paths = [
                entry.path
                for entry in entries
                if entry.name.startswith(self._prefix) and not entry.name.endswith(_UNFINISHED)
            ]
            self._is_current = now - self._mtime_seen_at > _MTIME_RESOLUTION


def _directory_problem() -> str:
    """Why the runtime directory cannot be used; empty if it can."""
    try:
        runtime_directory()
    except UsageError as error:
        return str(error)
    return ""


class LocalNotifier:
    """Notifies the processes that use one database, and listens for this one."""

    def __init__(self, database_path: Path, *, wake_interval: float = WAKE_INTERVAL) -> None:
        directory, self._problem = runtime_directory_path(), _directory_problem()
        prefix = hashlib.sha256(str(database_path.resolve()).encode()).hexdigest()[:12]
        self.socket_path = str(directory / f"{prefix}-{os.urandom(4).hex()}")
        self.listener = DatagramListener(self.socket_path, wake_interval=wake_interval)
        self._peers = PeerSockets(directory, prefix)
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    def notify(self, channels: Iterable[str]) -> None:
        """Notify every subscription to one of these channels. Not thread-safe."""
        names = tuple(channels)
        if self._problem:
            self._problem = _directory_problem()
        if self._problem:
            warn_of_polling(self._problem)
        else:
            self._notify_peers("\n".join(names).encode())
        self.listener.subscriptions.wake(names)

    def listen(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        return self.listener.listen(channels, wakeup)

    def close(self) -> None:
        """End the thread; idempotent."""
        self.listener.close()
        self._sender.close()

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's sockets."""
        self._sender.close()
        self.listener.abandon()

    def _notify_peers(self, message: bytes) -> None:
        for path in self._peers.paths():
            if path != self.socket_path:
                self._send(path, message if len(message) <= MAX_DATAGRAM_BYTES else _WAKE_ALL)

    def _send(self, path: str, message: bytes) -> None:
        try:
            self._sender.sendto(message, path)
        except ConnectionRefusedError:
            self._peers.remove(path)
        except OSError:
            return  # the socket is full, or was just removed
