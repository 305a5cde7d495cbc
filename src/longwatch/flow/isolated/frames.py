"""The protocol between a worker and the child that computes a node: frames over one socket, each
with a kind and a payload.

The socket is the standard input of the child, which moves it away before any user code runs. The
child imports this module first, so it imports next to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PATH = b"P"  # worker: its sys.path, NUL between the entries
REQUEST = b"Q"  # worker: the function to call and the ids of the attempt, as JSON
INPUTS = b"I"  # worker: the values of the inputs, as JSON
CANCEL = b"C"  # worker: stop, with the reason
READY = b"Y"  # child: its signal handlers are installed
BEAT = b"B"  # child: the progress of the work, as JSON
RESULT = b"R"  # child: the result of the function, as JSON
RAISED = b"E"  # child: the exception of the function, as JSON

REPLIES = frozenset({RESULT, RAISED})
_HEADER = struct.Struct("!cQ")
Frame = tuple[bytes, bytes]


def encode_frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Decodes frames from a stream of chunks; raises ValueError for a frame of more than
    `max_bytes` bytes.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._data = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Add a chunk, and yield the frames that it completes."""
        self._data += chunk
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        if len(self._data) < _HEADER.size:
            return None
        kind, size = _HEADER.unpack_from(self._data)
        if size > self.max_bytes:
            raise ValueError(f"a frame of {size} bytes is larger than {self.max_bytes}")
        end = _HEADER.size + size
        if len(self._data) < end:
            return None
        payload = bytes(self._data[_HEADER.size : end])
        del self._data[:end]
        return kind, payload
