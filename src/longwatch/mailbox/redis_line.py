"""One connection to a Redis server, for one question at a time.

redis-py makes it: address, encryption, login, database. The questions and answers after that are
written and read here, and the idle lines are kept by who uses them: what redis-py does about each
question costs more time than the server takes to answer it, and an interrupt inside its pool leaves
a connection that nobody will use or close. A line that nobody has any more closes itself.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Any

from redis import exceptions as redis

from longwatch.mailbox.redis_reader import Reader

_COPIED = 64 << 10
"""Commands up to so many bytes are sent in one piece."""


class Line:
    """A connection, made by its first use. One user at a time."""

    __slots__ = ("__weakref__", "_poll", "_reader", "_sock", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._sock: Any = None

    def prove(self) -> None:
        """Have it connected, silent and alive. One that was closed, or was idle for long and
        does not answer, is made anew.
        """
        connection = self.connection
        if self._sock is None or self._sock is not connection._sock:  # noqa: SLF001 - redis-py has no word for what it talks over
            self._connect()
        elif self._is_spoilt():
            connection.disconnect()
            self._connect()

    def send(self, words: Sequence[Any]) -> None:
        for piece in packed_command(words):
            self._sock.sendall(piece)

    def answer(self) -> Any:
        """What the server says; a refusal comes out as redis-py's error."""
        answer = self._reader.read()
        self.connection.next_health_check = time.monotonic() + self.connection.health_check_interval
        if isinstance(answer, redis.RedisError):
            raise answer
        return answer

    def close(self) -> None:
        self.connection.disconnect()

    def abandon(self) -> None:
        """In a forked child: close its copy of the parent's socket."""
        abandon(self.connection)

    def _connect(self) -> None:
        connection = self.connection
        connection.connect()
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # noqa: SLF001
        self._reader = Reader(connection)
        self._sock = connection._sock  # noqa: SLF001

    def _is_spoilt(self) -> bool:
        """Whether something came that nobody asked for, as a rule the end, or it was idle for long
        and does not answer. An encrypted line may have something to read that is no answer, so
        redis-py has the last word.
        """
        try:
            if self._poll.poll(0) and self.connection.can_read(timeout=0):
                return True
            self.connection.check_health()
        except (redis.ConnectionError, redis.TimeoutError):
            return True
        return False


def abandon(connection: Any) -> None:
    """Close a copy of another process's socket: the connection itself goes on there."""
    if connection._sock is not None:  # noqa: SLF001 - redis-py closes it only under locks that the fork may have found taken
        connection._sock.close()  # noqa: SLF001


def packed_command(words: Sequence[Any]) -> list[bytes]:
    """A command in the protocol of the server, in the pieces in which it is sent."""
    pieces = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if type(word) is bytes else str(word).encode()
        pieces += (b"$%d\r\n" % len(data), data, b"\r\n")
    return [b"".join(pieces)] if sum(map(len, pieces)) <= _COPIED else pieces
