"""An incremental parser of Server-Sent Events: bytes in, events out. It imports no other module.

The rules are those of the HTML standard, "Interpreting an event stream":
    bytes     UTF-8; a bad byte becomes U+FFFD. One byte order mark at the start is dropped.
    line      ends with CRLF, LF or CR. A CR ends its line at once; an LF right after it, also in
              the next chunk, is part of that line end.
    field     the name before the first colon and the value after it, without one space. A line
              without a colon is a name with an empty value. A line that begins with a colon is a
              comment.
    block     the fields up to an empty line. A block with data is an event. An `id` counts from the
              empty line on, with or without data.
    end       the stream may end anywhere; an unfinished block is discarded. Make a new parser for
              the next connection.

Bounds
    `max_line` and `max_event` bound the memory. A block with a longer line, or with more data, is
    dropped as a whole, its id included, and counted in `dropped`. The parser continues after the
    next empty line. The work is linear in the bytes, however the chunks are cut.

Speed
    Most blocks are ids and event names before one line of data. One regular expression reads such
    blocks, and comments between them; all other text is parsed line by line. The expression does
    not backtrack. Where it matches nothing, the stretches that are parsed by lines double.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LINE_BYTES = 1 << 20
MAX_EVENT_BYTES = 4 << 20
MAX_RETRY_MS = 10**12
_BOM = b"\xef\xbb\xbf"
_PLAIN_BLOCK = re.compile(
    r"(?:\n|:[^\n]*+\n)*+"  # empty lines and comments
    r"(?:id: ?([^\n\0]*+)\n|event: ?([^\n]*+)\n)*+data: ?([^\n]*+)\n\n"
    r"|[\s\S]"  # not a plain block: then the third group is None
)


class ServerSentEvent(NamedTuple):
    """One event of a stream. `id` is the stream's last event id when the event was complete."""

    data: str
    event: str = "message"
    id: str = ""


_new_event = tuple.__new__
"""Takes half the time of calling the class, once for each event."""


class EventStreamParser:
    """Parses one stream. Never blocks or raises. Not thread-safe.

    `last_event_id` may be given from an earlier connection; send it as `Last-Event-ID`. `retry_ms`
    is the reconnection time that the server asked for, at most `MAX_RETRY_MS`; None if it asked for
    none. `dropped` counts the blocks that were too large.
    """

    def __init__(
        self,
        *,
        max_line: int = MAX_LINE_BYTES,
        max_event: int = MAX_EVENT_BYTES,
        last_event_id: str = "",
    ) -> None:
        if max_line < 1 or max_event < 1:
            raise ValueError(
                f"max_line and max_event must be at least 1, not {max_line} and {max_event}"
            )
        self.last_event_id = last_event_id
        self.retry_ms: int | None = None
        self.dropped = 0
        self._max_line = max_line
        self._max_event = max_event
        self._max_plain = min(max_line, max_event)
        """No line and no event of fewer bytes can be too large."""
        self._start = b""
        """The first bytes of the stream, while they may be a byte order mark."""
        self._is_started = False
        self._ends_with_cr = False
        self._line = bytearray()
        """The unfinished line. Of a dropped block at most one byte, which shows that the line is
        not empty.
        """
        self._is_dropping = False
        self._data: list[bytes] = []
        self._size = 0
        self._event = b""
        self._id: bytes | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Parse a chunk; return the events that it completes."""
        if not self._is_started:
            chunk = self._strip_mark(self._start + chunk)
        text = self._unify_line_ends(chunk)
        start = 0 if self._is_between_blocks() else text.find(b"\n\n") + 2
        end = text.rfind(b"\n\n") + 2
        if start == 1 or end <= start or end - start > self._max_plain:
            return self._feed_lines(text)
        events = self._feed_lines(text[:start]) if start else []
        self._feed_blocks(text[start:end], events)
        if end < len(text):
            events += self._feed_lines(text[end:])
        return events

    def _is_between_blocks(self) -> bool:
        return not (
            self._line or self._data or self._event or self._is_dropping or self._id is not None
        )

    def _feed_blocks(self, blocks: bytes, events: list[ServerSentEvent]) -> None:
        """Parse whole blocks."""
        try:
            text = blocks.decode()
        except UnicodeDecodeError:
            events += self._feed_lines(blocks)
            return
        position = stretch = 0
        while position < len(text):
            start, position = position, self._match_blocks(text, position, events)
            if position < len(text):
                stretch = 0 if position > start else 2 * stretch + 64
                end = text.find("\n\n", position + stretch) + 2
                end = end if end > 1 else len(text)
                events += self._feed_lines(text[position:end].encode())
                position = end

    def _match_blocks(self, text: str, start: int, events: list[ServerSentEvent]) -> int:
        """Parse plain blocks up to the first other one; return its position. This is
        the hot loop.
        """
        last_id = self.last_event_id
        position = len(text)
        for match in _PLAIN_BLOCK.finditer(text, start):
            new_id, name, data = match.groups()
            if data is None:
                position = match.start()
                break
            if new_id is not None:
                last_id = new_id
            events.append(_new_event(ServerSentEvent, (data, name or "message", last_id)))
        self.last_event_id = last_id
        return position

    def _feed_lines(self, text: bytes) -> list[ServerSentEvent]:
        lines = text.split(b"\n")
        rest = lines.pop()
        if not lines:
            self._add_text(rest)
            return []
        if self._line:
            self._add_text(lines[0])
            lines[0] = bytes(self._line)
            self._line.clear()
        events = self._parse_lines(lines)
        self._add_text(rest)
        return events

    def _strip_mark(self, first: bytes) -> bytes:
        """Return the first bytes without the byte order mark; empty while they may still become
        one.
        """
        if len(first) < len(_BOM) and _BOM.startswith(first):
            self._start = first
            return b""
        self._is_started, self._start = True, b""
        return first.removeprefix(_BOM)

    def _unify_line_ends(self, chunk: bytes) -> bytes:
        """Return the chunk with LF as its only line end, without an LF that belongs to
        the last CR.
        """
        if not chunk:
            return chunk
        if self._ends_with_cr:
            chunk = chunk.removeprefix(b"\n")
        self._ends_with_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in chunk else chunk

    def _add_text(self, text: bytes) -> None:
        """Add to the unfinished line; drop its block if it is too long."""
        if self._is_dropping:
            self._line[:] = self._line[:1] or text[:1]
        elif len(self._line) + len(text) > self._max_line:
            self._drop_block()
            self._line[:] = b"."
        else:
            self._line += text

    def _parse_lines(self, lines: list[bytes]) -> list[ServerSentEvent]:
        """Return the events that these lines end; `data` is tested first."""
        events: list[ServerSentEvent] = []
        for line in lines:
            if self._is_dropping:
                self._is_dropping = line != b""
            elif not line:
                if self._data or self._id is not None:
                    self._end_block(events)
                self._event = b""
            elif len(line) > self._max_line:
                self._drop_block()
            elif line.startswith(b"data:"):
                self._add_data(line[6:] if line.startswith(b" ", 5) else line[5:])
            else:
                name, _, value = line.partition(b":")
                self._apply(name, value[1:] if value.startswith(b" ") else value)
        return events

    def _apply(self, name: bytes, value: bytes) -> None:
        if name == b"id":
            if b"\0" not in value:
                self._id = value
        elif name == b"event":
            self._event = value
        elif name == b"data":
            self._add_data(value)
        elif name == b"retry" and value.isdigit():
            digits = value.lstrip(b"0")[: len(str(MAX_RETRY_MS)) + 1] or b"0"
            self.retry_ms = min(int(digits), MAX_RETRY_MS)

    def _add_data(self, value: bytes) -> None:
        self._size += len(value) + 1
        if self._size - 1 > self._max_event:
            self._drop_block()
        else:
            self._data.append(value)

    def _end_block(self, events: list[ServerSentEvent]) -> None:
        if self._id is not None:
            self.last_event_id = self._id.decode(errors="replace")
            self._id = None
        if self._data:
            data = b"\n".join(self._data).decode(errors="replace")
            name = self._event.decode(errors="replace") if self._event else "message"
            events.append(ServerSentEvent(data, name, self.last_event_id))
            self._data.clear()
            self._size = 0

    def _drop_block(self) -> None:
        self.dropped += 1
        self._is_dropping = True
        self._line.clear()
        self._data.clear()
        self._size = 0
        self._event = b""
        self._id = None
