"""Writes lines to a descriptor or file without ever blocking or failing the producer.

The producer is not affected by a terminal on hold (Ctrl-S), a pipe whose reader is stuck or gone,
or a disk that is full or does not respond. A `WriterThread` does the blocking write. The producer
only fills a bounded buffer. `O_NONBLOCK` is never set: it would apply to every process on the
terminal.

States of a line: accepted into the buffer → taken by the writer thread → written to the target. A
full buffer makes room for new lines by dropping the oldest ones that the thread has not taken yet.
Dropped lines are counted, and so are lines that the target refuses. No other line is lost. If a
descriptor refuses in the middle of a line, the torn line is ended first, so that two lines never
become one.

A buffer that is more than half full is *congested*: a producer that can wait should wait until the
buffer has drained to a quarter. A producer that has waited long enough gives up. From then on the
writer takes lines as if it were not congested, until it has drained once.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

from longwatch.host.writer_thread import WriterThread

GONE_ERRNOS = frozenset(
    {errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET, errno.ENOTCONN}
)
CHUNK_BYTES = 64 * 1024


class PutResult(NamedTuple):
    """The result of writing a chunk."""

    written: int
    """Bytes of the chunk that were written."""
    is_gone: bool = False
    """Whether the target will never accept anything again."""


class LineTarget(Protocol):
    """Where a writer's lines go. Used by the writer thread only, so it may block. Never raises."""

    @property
    def is_open(self) -> bool: ...

    def put(self, chunk: bytes, *, skipped: int, is_wanted: Callable[[], bool]) -> PutResult:
        """Write whole lines. `skipped` lines before them were dropped.

        Stops midway once `is_wanted` returns False.
        """

    def close(self) -> None: ...


class NonblockingWriter:
    """A target with a bounded buffer and a writer thread. Thread-safe, but not for signal handlers.

    A descriptor as the target is duplicated, so that closing and reusing the number elsewhere
    cannot misdirect a log line. The thread starts with the first write. A forked child starts with
    a new thread and an empty buffer. The producer's thread calls `on_full` once each time the
    buffer begins to drop lines.
    """

    def __init__(
        self,
        target: int | LineTarget,
        *,
        capacity: int = 1 << 20,
        name: str = "longwatch-writer",
        thread: WriterThread | None = None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self.capacity = capacity
        self.dropped = 0
        """Lines passed to `write` that will never be written."""
        self._target = DescriptorTarget(target) if isinstance(target, int) else target
        self._thread = thread or WriterThread(name)
        self._on_full = on_full
        self._pid = 0
        self._closed = False
        self._closed_clean = True
        self.broken = not self._target.is_open
        """Whether the target is gone for good: all lines are discarded."""
        self._reset()

    @property
    def pending(self) -> int:
        """Bytes accepted and not yet written."""
        return self._pending

    @property
    def congested(self) -> bool:
        """Whether a producer that can wait should wait."""
        return self._congested and not self._given_up

    def write(self, data: bytes) -> bool:
        """Accept whole lines; False if lines had to be dropped. Never blocks, never raises."""
        self._reset_after_fork()
        with self._thread.changed:
            before, was_full = self.dropped, self._full
            if self.broken or self._closed:
                self.dropped += count_lines(data)
            else:
                self._accept(data)
            dropped, became_full = self.dropped > before, self._full and not was_full
        if became_full:
            _call(self._on_full)
        return not dropped

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, from the writer thread, when the congestion ends; at once if there
        is none.
        """
        self._reset_after_fork()
        with self._thread.changed:
            if self.congested:
                self._on_drained.append(callback)
                return
        _call(callback)

    def give_up(self) -> None:
        """Stop waiting for the current congestion to end; lines are dropped instead."""
        with self._thread.changed:
            self._given_up = self._congested

    def flush(self, timeout: float) -> bool:
        """Wait until all accepted lines are written; False on timeout, or if the target is gone."""
        self._reset_after_fork()
        with self._thread.changed:
            return (
                self._thread.changed.wait_for(lambda: not self._pending or self.broken, timeout)
                and not self.broken
            )

    def close(self, timeout: float = 1.0) -> bool:
        """Flush, refuse further lines and close the target; True if everything was written.
        Idempotent.

        Lines not written within the timeout are dropped.
        """
        flushed = self.flush(timeout)
        with self._thread.changed:
            if self._closed:
                return self._closed_clean
            self._closed, self._closed_clean = True, flushed
            drained = self._discard()
            if self._thread.serves(self):
                self._thread.schedule(self)  # no target is closed under a blocked write
            else:
                self._target.close()
        _call_all(drained)
        if flushed or self.broken:
            self._thread.wait_released(self, timeout)
        return flushed

    # --- the producer's side, under the lock ---

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._thread.reset_after_fork()
            self._reset()

    def _reset(self) -> None:
        """Reset the state of one process: a forked child inherits neither the thread
        nor its lines.
        """
        self._pid = os.getpid()
        self._chunks: deque[bytes] = deque()
        self._in_flight = b""
        self._pending = 0
        self._skipped = 0
        self._full = False
        self._congested = False
        self._given_up = False
        self._on_drained: list[Callable[[], None]] = []

    def _accept(self, data: bytes) -> None:
        fitting = self._fitting(data)
        lost = count_lines(data[: len(data) - len(fitting)])
        while self._pending + len(fitting) > self.capacity:
            oldest = self._chunks.popleft()
            self._pending -= len(oldest)
            lost += count_lines(oldest)
        self._full = self._full or lost > 0
        self.dropped += lost
        self._skipped += lost
        if fitting:
            self._chunks.append(fitting)
            self._pending += len(fitting)
            self._congested = self._congested or self._pending > self.capacity // 2
            self._thread.schedule(self)

    def _fitting(self, data: bytes) -> bytes:
        """Return the last whole lines of `data` that fit beside the chunk being written."""
        room = self.capacity - len(self._in_flight)
        if len(data) <= room:
            return data
        begin = data.find(b"\n", len(data) - room - 1) + 1
        return data[begin:] if begin else b""

    # --- the writer thread ---

    def serve(self) -> bool:
        """Write the next chunk; False once the target is closed. For the `WriterThread`."""
        chunk, skipped = self._next_chunk()
        if chunk:
            result = self._target.put(
                chunk, skipped=skipped, is_wanted=lambda: bool(self._in_flight)
            )
            self._finish_chunk(chunk, result)
        with self._thread.changed:
            if self._chunks:
                self._thread.schedule(self)
            if self._chunks or not (self._closed or self.broken):
                return True
        self._target.close()
        return False

    def _next_chunk(self) -> tuple[bytes, int]:
        """Return the next bytes to write, and how many lines were dropped before them.

        They count as pending until `_finish_chunk`.
        """
        with self._thread.changed:
            taken = bytearray()
            while self._chunks and (not taken or len(taken) + len(self._chunks[0]) <= CHUNK_BYTES):
                taken += self._chunks.popleft()
            self._in_flight = bytes(taken)
            skipped, self._skipped = self._skipped, 0
            return self._in_flight, skipped

    def _finish_chunk(self, chunk: bytes, result: PutResult) -> None:
        with self._thread.changed:
            if self._in_flight:  # else close() has given it up
                self._pending -= len(chunk)
                self.dropped += count_lines(chunk[result.written :])
                self._in_flight = b""
            self.broken = self.broken or result.is_gone
            drained = self._discard() if result.is_gone else self._end_congestion()
            self._thread.changed.notify_all()
        _call_all(drained)

    def _end_congestion(self) -> list[Callable[[], None]]:
        """End the congestion if the buffer has drained; return the callbacks to call."""
        if self._pending > self.capacity // 4:
            return []
        self._congested = self._given_up = self._full = False
        due, self._on_drained = self._on_drained, []
        return due

    def _discard(self) -> list[Callable[[], None]]:
        """Drop all pending lines; return the callbacks to call."""
        self.dropped += count_lines(self._in_flight) + sum(map(count_lines, self._chunks))
        self._in_flight = b""
        self._chunks.clear()
        self._pending = 0
        return self._end_congestion()


class DescriptorTarget:
    """Writes to a duplicate of a descriptor that other processes may share."""

    def __init__(self, fd: int) -> None:
        self._fd = _duplicate(fd)
        self._torn = False

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def put(self, chunk: bytes, *, skipped: int, is_wanted: Callable[[], bool]) -> PutResult:  # noqa: ARG002 - a stream gets no notice of missing lines
        """Write as much of the chunk as the descriptor takes."""
        written, is_gone = 0, False
        try:
            if self._torn:
                os.write(self._fd, b"\n")
                self._torn = False
            while written < len(chunk) and is_wanted():
                written += self._write_some(chunk[written : written + CHUNK_BYTES])
        except OSError as error:
            is_gone = error.errno in GONE_ERRNOS
        if 0 < written < len(chunk):
            self._torn = chunk[written - 1 : written] != b"\n"
        return PutResult(written, is_gone)

    def close(self) -> None:
        """Close the descriptor. Only after the last write.

        The number of a descriptor closed under a blocked write could be reused by another file.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _write_some(self, piece: bytes) -> int:
        try:
            return os.write(self._fd, piece)
        except BlockingIOError:  # another process that shares it made it non-blocking
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll(200)
            return 0


def flush_all(
    writers: Iterable[NonblockingWriter], stall_timeout: float
) -> list[NonblockingWriter]:
    """Flush all writers at once, each as long as its reader reads; return the stuck ones.

    A writer is stuck if nothing of it was read for `stall_timeout` seconds. Blocks.
    """
    flushing, stuck = list(writers), list[NonblockingWriter]()
    while flushing:
        before = [writer.pending for writer in flushing]
        deadline = time.monotonic() + stall_timeout
        flushed = [writer.flush(max(deadline - time.monotonic(), 0.0)) for writer in flushing]
        left = [
            (writer, was)
            for writer, was, done in zip(flushing, before, flushed, strict=True)
            if not done
        ]
        stuck += [writer for writer, was in left if writer.broken or writer.pending >= was]
        flushing = [writer for writer, _ in left if writer not in stuck]
    return stuck


def _duplicate(fd: int) -> int:
    try:
        return os.dup(fd)
    except OSError:
        return -1


def count_lines(data: bytes) -> int:
    """Return the number of lines, including an unfinished last one."""
    return data.count(b"\n") + (data[-1:] not in {b"", b"\n"})


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        _call(callback)


def _call(callback: Callable[[], None]) -> None:
    with suppress(Exception):  # a producer that fails to resume must not end the writer
        callback()
