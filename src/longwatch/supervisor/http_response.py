"""Reads an HTTP answer to a health probe as it comes in, and decides whether it is healthy.

It is healthy with status 200 and JSON with `"status": "healthy"`. The body ends at its length or
its last chunk, else at the end of the connection. A truncated body counts as no answer. An answer
of more than 1 MiB is not read to its end.
"""

from __future__ import annotations

import json
import re

MAX_RESPONSE_BYTES = 1 << 20
_MAX_SIZE_LINE = 4096
_MAX_DIGITS = 20
_OK = 200
_END_OF_HEAD = b"\r\n\r\n"
_STATUS_LINE = re.compile(rb"HTTP/\d\.\d (\d{3})(?: [^\r\n]*)?(?:\r\n|$)")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?", re.DOTALL)
_TRUNCATED = "the answer was cut short"
_TOO_LONG = "the answer is longer than 1 MiB"


class HttpHealthResponse:
    """One answer, as far as received. Call `feed` until it is `complete` or the connection ended,
    then `failure`.
    """

    def __init__(self) -> None:
        self._size = 0
        self._head = bytearray()
        self._status_failure: str | None = None
        self._body: _SizedBody | _ChunkedBody | None = None

    @property
    def complete(self) -> bool:
        """Whether further data cannot change the result."""
        return (
            self._size > MAX_RESPONSE_BYTES
            or self._status_failure is not None
            or (self._body is not None and self._body.complete)
        )

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._body is not None:
            self._body.feed(data)
        else:
            self._read_head(data)

    def failure(self) -> str | None:
        """Return None if the answer is healthy, else why not."""
        if self._status_failure is not None:
            return self._status_failure
        if self._body is None:
            return "not an HTTP answer" if self._size <= MAX_RESPONSE_BYTES else _TOO_LONG
        failure = self._body.failure
        if self._size > MAX_RESPONSE_BYTES and not (self._body.complete and failure is None):
            return _TOO_LONG
        return failure if failure is not None else _body_failure(self._body.content)

    def _read_head(self, data: bytes) -> None:
        """Look for the end of the head. The bytes after it begin the body."""
        searched = max(len(self._head) - len(_END_OF_HEAD) + 1, 0)
        self._head += data
        end = self._head.find(_END_OF_HEAD, searched)
        if end < 0:
            return
        head = bytes(self._head[:end])
        self._status_failure = _status_failure(head)
        self._body = (
            _ChunkedBody()
            if _header(head, b"transfer-encoding").lower().endswith(b"chunked")
            else _SizedBody(_content_length(head))
        )
        self._body.feed(bytes(self._head[end + len(_END_OF_HEAD) :]))
        self._head.clear()


class _SizedBody:
    """A body of a known length, or one that ends with the connection."""

    def __init__(self, length: int | None) -> None:
        self._length = length
        self._data = bytearray()

    @property
    def complete(self) -> bool:
        return self._length is not None and len(self._data) >= self._length

    @property
    def failure(self) -> str | None:
        return None if self._length is None or self.complete else _TRUNCATED

    @property
    def content(self) -> bytes:
        return bytes(self._data[: self._length])

    def feed(self, data: bytes) -> None:
        self._data += data


class _ChunkedBody:
    """A body in chunks, each after its size. The chunk of size 0 ends it, and the trailer is
    ignored.
    """

    def __init__(self) -> None:
        self.complete = False
        self._malformed = False
        self._raw = bytearray()
        self._data = bytearray()

    @property
    def failure(self) -> str | None:
        if self._malformed:
            return "the chunks of the answer are malformed"
        return None if self.complete else _TRUNCATED

    @property
    def content(self) -> bytes:
        return bytes(self._data)

    def feed(self, data: bytes) -> None:
        self._raw += data
        while not self.complete and self._take_chunk():
            pass

    def _take_chunk(self) -> bool:
        """Move one chunk to the data; False if it is not complete yet."""
        end = self._raw.find(b"\r\n", 0, _MAX_SIZE_LINE)
        if end < 0:
            return self._mark_malformed() if len(self._raw) >= _MAX_SIZE_LINE else False
        size = _CHUNK_SIZE.fullmatch(self._raw, 0, end)
        if size is None:
            return self._mark_malformed()
        first, last = end + 2, end + 2 + int(size[1], 16)
        if first == last:
            self.complete = True
            return False
        return self._move_chunk(first, last)

    def _move_chunk(self, first: int, last: int) -> bool:
        closing = self._raw[last : last + 2]
        if len(closing) < len(b"\r\n"):
            return False
        if closing != b"\r\n":
            return self._mark_malformed()
        self._data += self._raw[first:last]
        del self._raw[: last + 2]
        return True

    def _mark_malformed(self) -> bool:
        self.complete = self._malformed = True
        return False


def _status_failure(head: bytes) -> str | None:
    """Return why this head rules out a healthy answer; None if it does not."""
    status = _STATUS_LINE.match(head)
    if status is None:
        return "not an HTTP answer"
    return None if int(status[1]) == _OK else f"status {int(status[1])}"


def _content_length(head: bytes) -> int | None:
    """Return the Content-Length; None if there is none. Only the first digits of an absurd length
    count.
    """
    text = _header(head, b"content-length")
    return int(text[:_MAX_DIGITS]) if text.isdigit() else None


def _header(head: bytes, name: bytes) -> bytes:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return b""


def _body_failure(body: bytes) -> str | None:
    try:
        document = json.loads(body)
        status = document.get("status") if isinstance(document, dict) else None
        return (
            None if status == "healthy" else f'"status" is {json.dumps(status)[:40]}, not "healthy"'
        )
    except (ValueError, RecursionError):
        return "the body is not JSON"
