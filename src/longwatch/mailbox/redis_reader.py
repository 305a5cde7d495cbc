"""What a Redis server says, read from its socket: the second version of its protocol, as far as
anything asked here is answered.
"""

from __future__ import annotations

from typing import Any

from redis import exceptions as redis

_USUAL = 16 << 10
_MOST = 1 << 20
"""Bytes asked for at once: as a rule, and while a large answer comes in."""


class Reader:
    """The answers on one connection, one after the other. What it raises is redis-py's; after
    that the connection is of no use.
    """

    def __init__(self, connection: Any) -> None:
        self._sock = connection._sock  # noqa: SLF001 - redis-py has no word for what it talks over
        self._as_error = connection._parser.parse_error  # noqa: SLF001 - which class stands for which refusal
        self._data = b""
        self._place = 0

    @property
    def has_more(self) -> bool:
        """Whether something has arrived that was not read yet."""
        return self._place < len(self._data)

    def read(self) -> Any:
        """The next answer, waited for. A refusal is returned as the error that it is, so that
        one inside an answer is read past.
        """
        line = self._line()
        kind, text = line[:1], line[1:]
        if kind == b"$":
            return self._bytes(int(text))
        if kind == b"*":
            return None if text == b"-1" else [self.read() for _ in range(int(text))]
        if kind == b":":
            return int(text)
        if kind == b"+":
            return text
        if kind == b"-":
            return self._as_error(text.decode(errors="replace"))
        raise redis.InvalidResponse(f"Protocol Error: {line!r}")

    def _line(self) -> bytes:
        while (end := self._data.find(b"\r\n", self._place)) < 0:
            self._data, self._place = self._data[self._place :] + self._received(_USUAL), 0
        line = self._data[self._place : end]
        self._place = end + 2
        return line

    def _bytes(self, size: int) -> bytes | None:
        if size < 0:
            return None
        if len(self._data) < self._place + size + 2:
            self._fill(size + 2)
        start, end = self._place, self._place + size
        self._place = end + 2
        return self._data[start:end]

    def _fill(self, size: int) -> None:
        """Have so many bytes at hand, put together once."""
        pieces = [self._data[self._place :]]
        missing = size - len(pieces[0])
        while missing > 0:
            pieces.append(self._received(min(max(missing, _USUAL), _MOST)))
            missing -= len(pieces[-1])
        self._data, self._place = b"".join(pieces), 0

    def _received(self, most: int) -> bytes:
        try:
            data: bytes = self._sock.recv(most)
        except TimeoutError as error:
            raise redis.TimeoutError("Timeout reading from socket") from error
        except OSError as error:
            raise redis.ConnectionError(f"Error while reading from socket: {error}") from error
        if not data:
            raise redis.ConnectionError("Connection closed by server.")
        return data
