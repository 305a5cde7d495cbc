"""The connections of one process to one Redis server: a connection, and a node with its idle
connections.

redis-py makes a connection, and writes and reads on it: address, Sentinel, encryption, login,
database, parser (hiredis if it is installed). This module keeps the idle connections. An interrupt
inside redis-py's pool leaves a connection that is never used or closed, and its client methods
spend more time on a command than the server. A connection without references closes itself.

A command fails in one of three ways. It could not be sent, or the server refused it: nothing was
done. Or it was sent and no response came: then the outcome is unknown. redis-py's own retries are
off, because they would repeat commands that must not be repeated.
"""

from __future__ import annotations

import select
import socket
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from weakref import WeakSet

from redis import exceptions as redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.retry import Retry
from redis.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)

from longwatch.core.masking import mask_text
from longwatch.errors import UnsafeSettingsWarning
from longwatch.mailbox.redis.errors import (
    ResponseLostError,
    is_demoted,
    refused_error,
    response_lost_error,
    unreachable_error,
)
from longwatch.mailbox.redis.scripts import load_script
from longwatch.mailbox.redis.url import SentinelLocation, connection_options, sentinel_location


class RedisConnection:
    """A connection that connects when it is first used. Not thread-safe, except `interrupt`."""

    __slots__ = ("__weakref__", "_poll", "_sock", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._sock: Any = None

    def ensure_alive(self) -> None:
        """Connect if needed. Reconnect if the connection was closed, has unread data, or was idle
        for long and does not reply to a PING.
        """
        connection = self.connection
        if self._sock is None or self._sock is not connection._sock:  # noqa: SLF001 - redis-py has no public name for its socket
            self._connect()
        elif self._is_unusable():
            connection.disconnect()
            self._connect()

    def send(self, command: Sequence[Any]) -> None:
        for piece in self.connection.pack_command(*command):
            self._sock.sendall(piece)

    def read_response(self) -> Any:
        """Wait for the response and return it. Raises redis-py's error if the server refused."""
        return self.connection.read_response()

    def close(self) -> None:
        self.connection.disconnect()

    def interrupt(self) -> None:
        """End the connection for the thread that uses it. Its call fails, and that closes it."""
        sock = self.connection._sock  # noqa: SLF001
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket's would end a read badly

    def close_after_fork(self) -> None:
        """In a forked child: close its copy of the parent's socket."""
        close_after_fork(self.connection)

    def _connect(self) -> None:
        connection = self.connection
        connection.connect()
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # noqa: SLF001
        self._sock = connection._sock  # noqa: SLF001

    def _is_unusable(self) -> bool:
        """Return whether data came without a request, usually the end of the connection, or whether
        it was idle for long and does not reply. TLS data may contain no response, so redis-py's
        `can_read` decides.
        """
        try:
            if self._poll.poll(0) and self.connection.can_read(timeout=0):
                return True
            self.connection.check_health()
        except (redis.ConnectionError, redis.TimeoutError):
            return True
        return False


def close_after_fork(connection: Any) -> None:
    """Close this process's copy of another process's socket. The connection stays open there."""
    if connection._sock is not None:  # noqa: SLF001 - redis-py closes it under locks that the fork may have left locked
        connection._sock.close()  # noqa: SLF001


RESPONSE_TIMEOUT = 10.0
"""Seconds to wait for one response, unless the URL has `?socket_timeout=`."""
CONNECT_TIMEOUT = 5.0
PING_AFTER_IDLE = 15.0
"""Seconds after which an idle connection must reply to a PING before it is used, because the other
end may be gone.
"""
_DEFAULT_OPTIONS: dict[str, Any] = {
    "socket_timeout": RESPONSE_TIMEOUT,
    "socket_connect_timeout": CONNECT_TIMEOUT,
    "health_check_interval": PING_AFTER_IDLE,
    "socket_keepalive": True,
    "max_connections": 10_000,
}
"""The defaults of options that the query of the URL may set."""


def _on_connect(connection: Any) -> None:
    """Log in and choose the database. Closes a connection that is interrupted here, because
    responses may still arrive.
    """
    try:
        connection.on_connect()
    except BaseException:
        connection.disconnect()
        raise


_FIXED_OPTIONS: dict[str, Any] = {
    "protocol": 2,
    "decode_responses": False,
    "retry": Retry(NoBackoff(), 0),
    "redis_connect_func": _on_connect,
}


def _connection_pool(url: str, overrides: dict[str, Any]) -> ConnectionPool:
    """Return a pool of redis-py, for its options and its kind of connection only."""
    location = sentinel_location(url)
    options = {
        **_DEFAULT_OPTIONS,
        **connection_options(url),
        **overrides,
        **_FIXED_OPTIONS,
    }
    return ConnectionPool(**options) if location is None else _sentinel_pool(location, options)


def _sentinel_pool(location: SentinelLocation, options: dict[str, Any]) -> SentinelConnectionPool:
    """Return a pool whose connections ask the Sentinels for the master each time they connect."""
    is_encrypted = options.pop("connection_class", None) is SSLConnection
    login = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    timeout = min(options["socket_timeout"], options["socket_connect_timeout"])
    encryption = {name: value for name, value in options.items() if name.startswith("ssl_")}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        location.sentinels,
        sentinel_kwargs={
            **login,
            **encryption,
            "ssl": is_encrypted,
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
        },
    )
    kind = SentinelManagedSSLConnection if is_encrypted else SentinelManagedConnection
    return SentinelConnectionPool(  # type: ignore[no-untyped-call]
        location.service, sentinel, connection_class=kind, **options
    )


class RedisNode:
    """The connections of one process to one server. The first command connects. Thread-safe.

    `overrides` replaces parts of the URL: host and port of another node of the same Cluster.
    """

    def __init__(self, url: str, **overrides: Any) -> None:
        self.url = url
        self._pool = _connection_pool(url, overrides)
        self.options: dict[str, Any] = self._pool.connection_kwargs
        self._connection_class: Any = self._pool.connection_class
        self._max_connections = self._pool.max_connections
        self._connections: WeakSet[RedisConnection] = WeakSet()
        self._idle: list[RedisConnection] = []
        self._lock = threading.Lock()
        self._settings_checked = False
        self.cluster: list[tuple[str, int]] = []
        """The nodes of the Cluster, as this node listed them at the first connection."""

    @property
    def response_timeout(self) -> float:
        return float(self.options["socket_timeout"])

    def validate(self) -> Self:
        """Raise ValueError or TypeError if the URL allows no connection. Opens nothing."""
        self._connection_class(**self.options)
        return self

    def run_script(self, name: str, key: str, arguments: Sequence[Any]) -> Any:
        """Run a script on a key. Sends the source if the server does not have the script, as after
        a restart.
        """
        script = load_script(name)
        try:
            return self.execute(b"EVALSHA", script.digest, b"1", key, *arguments)
        except redis.NoScriptError:
            return self.execute(b"EVAL", script.source, b"1", key, *arguments)

    def execute(self, *command: Any) -> Any:
        """Send a command and wait for its response. Raises redis-py's error if the server refuses.

        Closes the connection unless a whole response or error reply was read. Otherwise the rest
        would be taken for the response to the next command.
        """
        connection = self._acquire()
        try:
            self._send(connection, command)
            response = self._receive(connection)
        except redis.ResponseError as error:
            if is_demoted(error):
                connection.close()
                self._close_idle()
            self._idle.append(connection)
            raise
        except ResponseLostError:
            connection.close()
            self._close_idle()
            raise
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return response

    def connect(self) -> Any:
        """Open a separate connection for a listener. The caller closes it."""
        connection = self._connection_class(**self.options)
        connection.connect()
        return connection

    def close(self) -> None:
        """Close all connections, also those in use. Calls that wait on them fail at once."""
        self._close_idle()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.interrupt()
        if isinstance(self._pool, SentinelConnectionPool):
            for sentinel in self._pool.sentinel_manager.sentinels:
                sentinel.close()

    def close_after_fork(self) -> None:
        """In a forked child: close its copies of the parent's sockets. Sends nothing to the server
        and takes no lock.
        """
        for connection in list(self._connections):
            connection.close_after_fork()

    def _close_idle(self) -> None:
        """Close the idle connections. The fault that lost one response may affect them too, and
        each would take a whole timeout.
        """
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _acquire(self) -> RedisConnection:
        """Return the idle connection that was used last, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            connection = RedisConnection(self._connection_class(**self.options))
        with self._lock:
            if len(self._connections) >= self._max_connections:
                raise unreachable_error(self.url, redis.MaxConnectionsError("Too many connections"))
            self._connections.add(connection)
        return connection

    def _send(self, connection: RedisConnection, command: Sequence[Any]) -> None:
        """Send a command. If this raises, the server has not done it."""
        try:
            connection.ensure_alive()
            if not self._settings_checked:
                self._check_settings(connection)
            connection.send(command)
        except (redis.RedisError, OSError) as error:
            shows_sentinels = isinstance(error, MasterNotFoundError)  # with their passwords, if old
            raise unreachable_error(self.url, error) from (None if shows_sentinels else error)

    def _receive(self, connection: RedisConnection) -> Any:
        try:
            return connection.read_response()
        except redis.BusyLoadingError as error:
            raise refused_error(self.url, error) from error
        except redis.ConnectionError as error:
            demoted = error.__context__  # redis-py's error about a master that Sentinels demoted
            if isinstance(demoted, redis.ReadOnlyError):
                self._close_idle()
                raise refused_error(self.url, demoted) from error
            raise response_lost_error(self.url, error) from error
        except redis.TimeoutError as error:
            raise response_lost_error(self.url, error) from error

    def _check_settings(self, connection: RedisConnection) -> None:
        """Warn once about settings that may lose messages, and list the nodes of a Cluster. Does
        nothing if the server refuses INFO. The next command checks again if the connection is lost.
        """
        try:
            connection.send(("INFO",))
            response = connection.read_response()
        except redis.ResponseError:
            self._settings_checked = True
            return
        info = dict(
            entry.split(":", 1)
            for entry in response.decode(errors="replace").splitlines()
            if ":" in entry
        )
        if info.get("cluster_enabled") == "1":
            connection.send(("CLUSTER", "SLOTS"))
            with suppress(redis.ResponseError):  # the user may lack the right
                self.cluster = _addresses(connection.read_response())
        self._settings_checked = True
        for fault in unsafe_settings(info):
            warnings.warn(f"{mask_text(self.url)}: {fault}", UnsafeSettingsWarning, stacklevel=2)


def _addresses(slots: list[Any]) -> list[tuple[str, int]]:
    """Return the nodes in a reply to CLUSTER SLOTS, except those that do not know their address."""
    found = [(node[0], node[1]) for _, _, *nodes in slots for node in nodes]
    return [(host.decode(), port) for host, port in dict.fromkeys(found) if host]


def unsafe_settings(info: dict[str, str]) -> list[str]:
    """Return a warning for each setting in the reply to INFO that may lose messages."""
    faults = []
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        faults.append(
            f"maxmemory-policy is {policy}, so messages may be evicted; set it to noeviction"
        )
    if info.get("aof_enabled") == "0":
        faults.append(
            "appendonly is off, so a restart loses messages since the last snapshot; set it to yes"
        )
    return faults
