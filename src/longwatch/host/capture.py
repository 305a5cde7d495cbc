"""The output of a child: whole lines, bounded, never waiting for the end of a pipe that a stray
process may hold open.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

_CHUNK_BYTES = 1 << 16
_MAX_FINAL_BYTES = 1 << 20
"""How much is still read from a pipe once its tree is gone: what a pipe holds at the most."""
MAX_LINE = 64 * 1024
CUT_MARK = b" [line cut]\n"


class LineSink(Protocol):
    """Where captured lines go. Called on the loop, so nothing here may block."""

    def write(self, data: bytes) -> bool:
        """Take whole lines; False if they were dropped. Never raises."""

    @property
    def congested(self) -> bool:
        """Whether it would rather not get more now."""

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Have `callback` called once, from any thread, when it is not congested any more."""

    def give_up(self) -> None:
        """Do not be congested any more because of what holds it up now, until that is over: drop
        lines instead.
        """


class LineSplitter:
    """Cuts a stream of chunks at line ends; a line longer than `max_line` is cut short, marked,
    and its rest skipped.
    """

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._pending = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> bytes:
        """The lines that this chunk completes, as one block."""
        if self._skipping:
            _, newline, chunk = chunk.partition(b"\n")
            self._skipping = not newline
        data = self._pending + chunk
        end = data.rfind(b"\n") + 1
        block, self._pending = self._cut_long(data[:end]), data[end:]
        if len(self._pending) > self.max_line:
            block += self._pending[: self.max_line] + CUT_MARK
            self._pending, self._skipping = b"", True
        return block

    def _cut_long(self, block: bytes) -> bytes:
        """Cut the lines that came whole and are too long all the same."""
        if len(block) <= self.max_line:
            return block
        lines = block.split(b"\n")[:-1]
        return b"".join(
            line + b"\n" if len(line) <= self.max_line else line[: self.max_line] + CUT_MARK
            for line in lines
        )

    def flush(self) -> bytes:
        """What came after the last line end, made a line; empty if nothing did."""
        pending, self._pending = self._pending, b""
        return pending + b"\n" if pending else b""


class Capture:
    """Reads one pipe on the loop and hands whole lines to a sink.

    A congested sink is given time: reading pauses, so that the child feels the pressure as with any
    pipe. After `backpressure_seconds` the sink gives up on what holds it up, reading goes on, and
    the sink drops what it cannot take: neither a stuck reader of ours nor a disk that does not
    answer blocks a child for good.

    `on_output` is called for every chunk of bytes, whether it completes a line or not.
    """

    def __init__(
        self,
        descriptor: int,
        sink: LineSink,
        *,
        backpressure_seconds: float = 5.0,
        max_line: int = MAX_LINE,
        on_output: Callable[[], None] | None = None,
    ) -> None:
        self._descriptor = descriptor
        self._sink = sink
        self._backpressure_seconds = backpressure_seconds
        self._lines = LineSplitter(max_line)
        self._on_output = on_output
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(descriptor, False)
        self._resume()

    def finish(self) -> None:
        """Take what is in the pipe now and close it, whoever still holds the other end."""
        taken = 0
        while self._open and taken < _MAX_FINAL_BYTES:
            size = self._read_once()
            if size is None:
                break
            taken += size
        self._close()

    def _on_readable(self) -> None:
        self._read_once()
        if self._open and self._sink.congested:
            self._pause()

    def _read_once(self) -> int | None:
        """Read once; how many bytes, None if there are none now. The end of the pipe closes it."""
        try:
            chunk = os.read(self._descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        if not chunk:
            self._close()
            return None
        if self._on_output is not None:
            self._on_output()
        if block := self._lines.feed(chunk):
            self._sink.write(block)
        return len(chunk)

    def _pause(self) -> None:
        self._loop.remove_reader(self._descriptor)
        timer = self._loop.call_later(self._backpressure_seconds, self._stop_backpressure)
        self._sink.on_drained(lambda: self._resume_threadsafe(timer))

    def _resume_threadsafe(self, timer: asyncio.TimerHandle) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing is read any more
            self._loop.call_soon_threadsafe(self._resume, timer)

    def _stop_backpressure(self) -> None:
        """Read on until the sink has drained once: else each chunk would cost the child the full
        `backpressure_seconds` again.
        """
        self._sink.give_up()
        self._resume()

    def _resume(self, timer: asyncio.TimerHandle | None = None) -> None:
        if timer is not None:
            timer.cancel()
        if self._open:
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        if last_line := self._lines.flush():
            self._sink.write(last_line)
