"""Formats the output of programs for the console: tagged text on a terminal, JSON records
elsewhere.

The JSON records of a worker process stay unchanged, except that they get the name of the program.
Every other line becomes the `text` of an `output_written` record.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from longwatch.core.clock import Clock
from longwatch.core.events.base import Level
from longwatch.core.sanitize import terminal_line
from longwatch.observe.event_log import timestamp

FormatLines = Callable[[bytes], bytes]
_RECORD_START = b'{"ts":"'


def tag_lines(tag: str, *, is_terminal: bool = False) -> FormatLines:
    """Return a function that puts the tag before each line of a block of whole lines.

    For a terminal it also escapes control characters, see `terminal_line`.
    """
    mark = tag.encode()

    def tagged(block: bytes) -> bytes:
        lines = block.removesuffix(b"\n").split(b"\n")
        if is_terminal:
            lines = list(map(terminal_line, lines))
        return b"".join(mark + line + b"\n" for line in lines)

    return tagged if mark or is_terminal else lambda block: block


class OutputRecords:
    """Turns each line of a program into one line of JSON that names the program."""

    def __init__(self, program: str, *, clock: Clock) -> None:
        self._program = program
        self._clock = clock
        self._record_end = f',"program":{json.dumps(program)}}}\n'.encode()

    def __call__(self, block: bytes) -> bytes:
        head = self._head()
        lines = block.removesuffix(b"\n").split(b"\n")
        return b"".join([self._format(line, head) for line in lines])

    def _head(self) -> bytes:
        """The JSON of all records of a block up to the text."""
        own = os.getpid()
        record = {
            "ts": timestamp(self._clock.wall()),
            "level": Level.INFO.value,
            "event": "output_written",
            "pid": own,
            "managerPid": own,
            "program": self._program,
        }
        return json.dumps(record, separators=(",", ":")).encode()[:-1] + b',"text":'

    def _format(self, line: bytes, head: bytes) -> bytes:
        start = line.find(_RECORD_START)
        record = None if start < 0 else self._own_record(line[start:])
        if record is None:
            return _text_record(line, head)
        # a process may print without a newline just before it logs
        return _text_record(line[:start], head) + record if start else record

    def _own_record(self, line: bytes) -> bytes | None:
        """The record of a Longwatch process with the name of the program; None for other text."""
        line = line.rstrip()
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if "event" not in record:
            return None
        return line + b"\n" if "program" in record else line[:-1] + self._record_end


def _text_record(line: bytes, head: bytes) -> bytes:
    text = json.dumps(line.decode("utf-8", "backslashreplace"))
    return b"%s%s}\n" % (head, text.encode())
