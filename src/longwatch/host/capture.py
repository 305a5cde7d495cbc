"""Captures the output of a child as whole lines of bounded length.

It never waits for the end of a pipe, which a stray process may hold open.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

_CHUNK_BYTES = 1 << 16
_MAX_FINAL_BYTES = 1 << 20
"""Bytes still read from a pipe once its tree is gone: the most that a pipe can hold."""
MAX_LINE = 64 * 1024
CUT_MARK = b" [line cut]\n"


class LineSink(Protocol):
    """Where captured lines go. Called on the loop, so it must not block."""

    def write(self, data: bytes) -> bool:
        """Accept whole lines; False if they were dropped. Never raises."""

    @property
    def congested(self) -> bool:
        """Whether the producer should pause."""

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from any thread, when it is not congested any more."""

    def give_up(self) -> None:
        """End the current congestion: drop lines instead, until the sink has drained once."""


class LineSplitter:
    """Splits a stream of chunks into lines; a line longer than `max_line` is cut and marked."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self.max_line = max_line
        self._pending = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> bytes:
        """Return the lines that this chunk completes, as one block."""
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
        """Cut the complete lines that are too long."""
        if len(block) <= self.max_line:
            return block
        lines = block.split(b"\n")[:-1]
        return b"".join(
            line + b"\n" if len(line) <= self.max_line else line[: self.max_line] + CUT_MARK
            for line in lines
        )

    def flush(self) -> bytes:
        """Return the bytes after the last line end as a line; empty if there are none."""
        pending, self._pending = self._pending, b""
        return pending + b"\n" if pending else b""


class Capture:
    """Reads one pipe on the loop and passes whole lines to a sink.

    While the sink is congested, reading pauses, so that the child is slowed down as by any full
    pipe. After `backpressure_seconds` the sink gives up, reading continues, and the sink drops
    lines it cannot take. So neither a stuck reader nor a disk that does not respond blocks a child
    for ever.

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
        """Read the bytes that are in the pipe now and close it, even if another process holds it
        open.
        """
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
        """Read once; return the number of bytes, None if there are none now. Closes the pipe at its
        end.
        """
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
        """Read on until the sink has drained once.

        Otherwise each chunk would cost the child the full `backpressure_seconds` again.
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
