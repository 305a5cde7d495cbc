"""The protocol between host and guardian: length-prefixed JSON messages with file descriptors.

A frame is `length (4 bytes) · number of descriptors (1 byte) · JSON`. The kernel never merges data
across a message that carried descriptors. So descriptors arrive in order, and no later than the
frame they belong to.
"""

from __future__ import annotations

import array
import json
import os
import socket
import struct
from collections import deque

TYPE_CHECKING = False  # typing would add half a megabyte to the guardian's six
if TYPE_CHECKING:
    from typing import Any

ControlMessage = dict[str, "Any"]

_HEADER = struct.Struct("!IB")
_CHUNK_BYTES = 1 << 16
_MAX_DESCRIPTORS = 16
MAX_FRAME_BYTES = 8 << 20
"""The sender refuses larger frames: no argv and environment the kernel accepts needs more."""


class FrameSender:
    """Queues outgoing frames; `flush` sends as many as the socket takes now.

    Descriptors are closed here once they are sent.
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
        """Send without blocking; True when no frame is left. Raises OSError if the connection
        broke.
        """
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
        """Drop the frames that were not sent, and close their descriptors."""
        while self._frames:
            _close(self._frames.popleft()[1])


class FrameReceiver:
    """Collects received bytes and splits them into messages."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._descriptors: deque[int] = deque()

    def receive(self, sock: socket.socket) -> bool:
        """Read the available bytes without blocking; False if the other side has closed."""
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
        """Return the complete messages, each with its descriptors, which the caller now owns."""
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
