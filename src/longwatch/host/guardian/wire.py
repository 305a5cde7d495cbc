"""How host and guardian talk: JSON messages with a length in front, and descriptors beside them.

A frame is `length (4 bytes) · number of descriptors (1 byte) · JSON`. The kernel never merges data
across a message that carried descriptors, so they arrive no later than the frame they belong to,
and in order.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections import deque

TYPE_CHECKING = False  # to import typing would take half a megabyte of the guardian's six
if TYPE_CHECKING:
    from typing import Any

ControlMessage = dict[str, "Any"]

_HEADER = struct.Struct("!IB")
_CHUNK_BYTES = 1 << 16
_MAX_DESCRIPTORS = 16
MAX_FRAME_BYTES = 8 << 20
"""A frame larger than this is refused by the sender: more than any argv and environment the
kernel would take.
"""


class FrameSender:
    """Frames on their way out. `flush` sends what the socket takes now; descriptors are closed
    here once they were sent.
    """

    def __init__(self) -> None:
        self._frames: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._frames)

    def put(self, message: ControlMessage, descriptors: tuple[int, ...] = ()) -> None:
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(body) > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(body)} bytes is larger than {MAX_FRAME_BYTES}")
        self._frames.append(
            (memoryview(_HEADER.pack(len(body), len(descriptors)) + body), descriptors)
        )

    def flush(self, sock: socket.socket) -> bool:
        """Send without blocking; True when nothing is left. A broken connection raises OSError."""
        while self._frames:
            data, descriptors = self._frames[0]
            try:
                sent = _send(sock, data, descriptors)
            except (BlockingIOError, InterruptedError):
                return False
            _close(descriptors)
            self._frames.popleft()
            if sent < len(data):
                self._frames.appendleft((data[sent:], ()))
        return True

    def discard(self) -> None:
        """Forget what was not sent, and close its descriptors."""
        while self._frames:
            _close(self._frames.popleft()[1])


class FrameReceiver:
    """Frames on their way in."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def receive(self, sock: socket.socket) -> bool:
        """Take what is there without blocking; False when the other side has closed."""
        space = socket.CMSG_SPACE(_MAX_DESCRIPTORS * array.array("i").itemsize)
        try:
            data, ancillary, _, _ = sock.recvmsg(_CHUNK_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        except (BlockingIOError, InterruptedError):
            return True
        except ConnectionError:
            return False
        for level, kind, payload in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._descriptors.extend(
                    array.array("i", payload[: len(payload) - len(payload) % 4])
                )
        self._data += data
        return bool(data)

    def take(self) -> list[tuple[ControlMessage, tuple[int, ...]]]:
        """The messages that are complete, each with its descriptors, which the taker now owns."""
        messages = []
        while len(self._data) >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._data)
            end = _HEADER.size + length
            if len(self._data) < end:
                break
            message = json.loads(self._data[_HEADER.size : end].decode("utf-8", "surrogatepass"))
            del self._data[:end]
            messages.append((message, tuple(self._descriptors.popleft() for _ in range(count))))
        return messages


def _send(sock: socket.socket, data: memoryview, descriptors: tuple[int, ...]) -> int:
    rights = (
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        if descriptors
        else []
    )
    return sock.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
