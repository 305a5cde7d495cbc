"""The socket of a parent of worker processes, in the hands of a test."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from longwatch.host.parent_channel import MAX_DATAGRAM_BYTES, decode_datagram

TIMEOUT = 30.0


class Parent:
    """The other end of the line: a real socket."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.settimeout(TIMEOUT)

    def receive(self) -> dict[str, Any]:
        return dict(decode_datagram(self._socket.recv(MAX_DATAGRAM_BYTES)))

    def receive_about(self, about: str) -> dict[str, Any]:
        """The next word about that; others are passed over."""
        while (word := self.receive())["about"] != about:
            pass
        return word

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            return not self._socket.recv(MAX_DATAGRAM_BYTES)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(TIMEOUT)

    def close(self) -> None:
        self._socket.close()
        Path(self.address).unlink(missing_ok=True)
