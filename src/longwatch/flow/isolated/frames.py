"""What a worker and the child that computes a node say to each other: frames over one socket, a
kind and a payload each.

The child has it in the place of its standard input, and takes it away from there before any code of
a user runs. This is imported by the child at its very beginning, so it imports next to nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

PATH = b"P"  # worker: its sys.path, NUL between the entries
REQUEST = b"Q"  # worker: what to call, and for whom, as JSON
INPUTS = b"I"  # worker: the values that it is called with, as JSON
CANCEL = b"C"  # worker: stop, with the reason
READY = b"Y"  # child: it hears signals from here on
BEAT = b"B"  # child: the work moves, and how far it is as JSON
RESULT = b"R"  # child: what the function returned, as JSON
RAISED = b"E"  # child: what it raised, as JSON

REPLIES = frozenset({RESULT, RAISED})
_HEADER = struct.Struct("!cQ")
Frame = tuple[bytes, bytes]


def encode_frame(kind: bytes, payload: bytes = b"") -> bytes:
    return _HEADER.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Finds the frames in a stream of chunks; ValueError for one that is larger than `max_bytes`
    bytes.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._data = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that this chunk completes."""
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
