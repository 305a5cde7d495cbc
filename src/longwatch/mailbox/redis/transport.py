"""The connections of one process to one Redis server: a reader of RESP version 2, a connection, and
a node with its idle connections.

redis-py makes a connection: address, encryption, login, database. This module writes the commands,
reads the responses and keeps idle connections. redis-py would spend more time on a command than the
server. An interrupt inside its pool leaves a connection that is never used or closed. A connection
without references closes itself.

A command fails in one of three ways. It could not be sent, or the server refused it: nothing was
done. Or it was sent and no response came: then the outcome is unknown. redis-py's own retries are
off, because they would repeat commands that must not be repeated.
"""

from __future__ import annotations

import select
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self
from weakref import WeakSet

from redis import exceptions as redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.retry import Retry

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
from longwatch.mailbox.redis.url import connection_options

_READ_BYTES = 16 << 10
_MAX_READ_BYTES = 1 << 20
"""Bytes that one `recv` requests: normally, and while a large response arrives."""


class RespReader:
    """Reads the responses of one connection in order. Raises redis-py's errors, after which the
    connection must be closed.
    """

    def __init__(self, connection: Any) -> None:
        self._sock = connection._sock  # noqa: SLF001 - redis-py has no public name for its socket
        self._parse_error = connection._parser.parse_error  # noqa: SLF001 - maps error codes to classes
        self._buffer = b""
        self._position = 0

    @property
    def has_buffered(self) -> bool:
        """Whether received bytes are still to be read."""
        return self._position < len(self._buffer)

    def read(self) -> Any:
        """Wait for the next response and return it. An error reply is returned, not raised, so that
        a response that contains one is read to its end.
        """
        line = self._read_line()
        kind, text = line[:1], line[1:]
        if kind == b"$":
            return self._read_bytes(int(text))
        if kind == b"*":
            return None if text == b"-1" else [self.read() for _ in range(int(text))]
        if kind == b":":
            return int(text)
        if kind == b"+":
            return text
        if kind == b"-":
            return self._parse_error(text.decode(errors="replace"))
        raise redis.InvalidResponse(f"Protocol Error: {line!r}")

    def _read_line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n", self._position)) < 0:
            self._buffer, self._position = (
                self._buffer[self._position :] + self._receive(_READ_BYTES),
                0,
            )
        line = self._buffer[self._position : end]
        self._position = end + 2
        return line

    def _read_bytes(self, size: int) -> bytes | None:
        if size < 0:
            return None
        if len(self._buffer) < self._position + size + 2:
            self._fill(size + 2)
        start, end = self._position, self._position + size
        self._position = end + 2
        return self._buffer[start:end]

    def _fill(self, size: int) -> None:
        """Receive until `size` bytes are buffered, and join them once."""
        pieces = [self._buffer[self._position :]]
        missing = size - len(pieces[0])
        while missing > 0:
            pieces.append(self._receive(min(max(missing, _READ_BYTES), _MAX_READ_BYTES)))
            missing -= len(pieces[-1])
        self._buffer, self._position = b"".join(pieces), 0

    def _receive(self, size: int) -> bytes:
        try:
            data: bytes = self._sock.recv(size)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from socket: {error}") from error
        if not data:
            raise redis.ConnectionError("Connection closed by server.")
        return data


_MAX_JOINED_BYTES = 64 << 10
"""Commands up to this many bytes are sent in one piece."""


class RedisConnection:
    """A connection that connects when it is first used. Not thread-safe."""

    __slots__ = ("__weakref__", "_poll", "_reader", "_sock", "connection")

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
        for piece in encode_command(command):
            self._sock.sendall(piece)

    def read_response(self) -> Any:
        """Wait for the response and return it. Raises redis-py's error if the server refused."""
        response = self._reader.read()
        self.connection.next_health_check = time.monotonic() + self.connection.health_check_interval
        if isinstance(response, redis.RedisError):
            raise response
        return response

    def close(self) -> None:
        self.connection.disconnect()

    def close_after_fork(self) -> None:
        """In a forked child: close its copy of the parent's socket."""
        close_after_fork(self.connection)

    def _connect(self) -> None:
        connection = self.connection
        connection.connect()
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # noqa: SLF001
        self._reader = RespReader(connection)
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


def encode_command(command: Sequence[Any]) -> list[bytes]:
    """Encode a command in RESP, in the pieces in which it is sent."""
    pieces = [b"*%d\r\n" % len(command)]
    for word in command:
        data = word if type(word) is bytes else str(word).encode()
        pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return [b"".join(pieces)] if sum(map(len, pieces)) <= _MAX_JOINED_BYTES else pieces


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


class RedisNode:
    """The connections of one process to one server. The first command connects. Thread-safe.

    `overrides` replaces parts of the URL: host and port of another node of the same Cluster.
    """

    def __init__(self, url: str, **overrides: Any) -> None:
        self.url = url
        pool = ConnectionPool(
            **{**_DEFAULT_OPTIONS, **connection_options(url), **overrides, **_FIXED_OPTIONS}
        )
        self.options: dict[str, Any] = pool.connection_kwargs
        self._connection_class: Any = pool.connection_class
        self._max_connections = pool.max_connections
        self._connections: WeakSet[RedisConnection] = WeakSet()
        self._idle: list[RedisConnection] = []
        self._lock = threading.Lock()
        self._settings_checked = False

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
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

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
            raise unreachable_error(self.url, error) from error

    def _receive(self, connection: RedisConnection) -> Any:
        try:
            return connection.read_response()
        except redis.BusyLoadingError as error:
            raise refused_error(self.url, error) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise response_lost_error(self.url, error) from error

    def _check_settings(self, connection: RedisConnection) -> None:
        """Warn once about settings that may lose messages. Does nothing if the server refuses
        INFO.
        """
        self._settings_checked = True
        try:
            connection.send(("INFO",))
            response = connection.read_response()
        except redis.ResponseError:
            return
        info = dict(
            entry.split(":", 1)
            for entry in response.decode(errors="replace").splitlines()
            if ":" in entry
        )
        for fault in unsafe_settings(info):
            warnings.warn(f"{mask_text(self.url)}: {fault}", UnsafeSettingsWarning, stacklevel=2)


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
