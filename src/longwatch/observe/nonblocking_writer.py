"""Where bytes leave the process without ever blocking or killing it.

A terminal on hold (Ctrl-S), a pipe whose reader is stuck, a reader that went away, a full disk
behind `> file`: code that writes through a NonblockingWriter notices none of it. A thread of its
own does the blocking write; the producer only fills a bounded buffer. `O_NONBLOCK` is never set: it
would apply to everybody who shares the terminal.

Life of a line: accepted into the buffer → taken by the writer thread → written. A line that finds
no room, or no descriptor that takes it, is dropped and counted; nothing else is ever lost. Should
the descriptor refuse midway, the torn line is ended before the next one, so that two lines never
become one.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

GONE_ERRNOS = frozenset(
    {errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO, errno.ECONNRESET, errno.ENOTCONN}
)
CHUNK_BYTES = 64 * 1024


class NonblockingWriter:
    """A descriptor with a bounded buffer and a writer thread in front of it.

    Works on a duplicate of `fd`, so that closing and reusing the number elsewhere cannot misdirect
    a log line. The thread starts with the first write, and anew in a forked child, which starts
    with an empty buffer. Any thread may call any method; no signal handler may.
    """

    def __init__(self, fd: int, *, capacity: int = 1 << 20, name: str = "longwatch-writer") -> None:
        self.name = name
        self.capacity = capacity
        self.dropped = 0
        """Lines that were given to `write` and will never be written."""
        self._pid = 0
        self._closed = False
        self._closed_clean = True
        self._torn = False
        self._fd = _duplicate(fd)
        self.broken = self._fd < 0
        """The descriptor is gone for good: everything is discarded."""
        self._reset()

    @property
    def pending(self) -> int:
        """Bytes that were accepted and are not written yet."""
        return self._pending

    @property
    def congested(self) -> bool:
        """More than half full, and not yet drained below a quarter: a producer that can wait
        should.
        """
        return self._congested

    def write(self, data: bytes) -> bool:
        """Hand over whole lines; False if some of them were dropped. Never blocks, never raises."""
        self._reset_after_fork()
        with self._changed:
            fitting = 0 if self.broken or self._closed else self._fitting(data)
            if fitting:
                self._accept(data[:fitting])
            self.dropped += _count_lines(data[fitting:])
        return fitting == len(data)

    def on_drained(self, callback: Callable[[], None]) -> None:
        """Call back once, from the writer thread, when the congestion is over; at once if there
        is none.
        """
        self._reset_after_fork()
        with self._changed:
            if self._congested:
                self._on_drained.append(callback)
                return
        _call(callback)

    def flush(self, timeout: float) -> bool:
        """Wait until everything accepted was written; False if it was not within the timeout, or
        cannot be.
        """
        self._reset_after_fork()
        with self._changed:
            return (
                self._changed.wait_for(lambda: not self._pending or self.broken, timeout)
                and not self.broken
            )

    def close(self, timeout: float = 1.0) -> bool:
        """Flush, then take nothing more and end the thread; what could not be written by then is
        dropped. Idempotent.
        """
        flushed = self.flush(timeout)
        with self._changed:
            if self._closed:
                return self._closed_clean
            self._closed, self._closed_clean = True, flushed
            drained = self._discard()
            self._changed.notify_all()
            if self._thread is None:
                self._close_descriptor()
        _call_all(drained)
        if (flushed or self.broken) and self._thread not in {None, threading.current_thread()}:
            self._thread.join(timeout)
        return flushed

    # --- the producer's side, under the lock ---

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def _reset(self) -> None:
        """The state that belongs to one process: a forked child inherits neither the thread nor
        what it was to write.
        """
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._chunks: deque[bytes] = deque()
        self._in_flight = b""
        self._pending = 0
        self._congested = False
        self._on_drained: list[Callable[[], None]] = []

    def _fitting(self, data: bytes) -> int:
        """How many bytes of `data` fit, cut at the end of a line."""
        room = self.capacity - self._pending
        return len(data) if len(data) <= room else data.rfind(b"\n", 0, max(room, 0)) + 1

    def _accept(self, data: bytes) -> None:
        self._chunks.append(data)
        self._pending += len(data)
        self._congested = self._congested or self._pending > self.capacity // 2
        self._changed.notify_all()
        if self._thread is None:
            self._start()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        with suppress(
            RuntimeError
        ):  # no thread to be had now: the lines stay in the buffer and the next write tries again
            thread.start()
            self._thread = thread

    # --- the writer thread ---

    def _run(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # so that SIGTTOU cannot stop us in the background
        while chunk := self._next_chunk():
            written, gone = self._write_chunk(chunk)
            self._finish_chunk(chunk, written=written, gone=gone)
        self._close_descriptor()

    def _next_chunk(self) -> bytes:
        """The next bytes to write; they count as pending until they are settled. Empty when it
        is time to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._closed or self.broken)
            taken = bytearray()
            while self._chunks and len(taken) < CHUNK_BYTES:
                taken += self._chunks.popleft()
            self._in_flight = bytes(taken)
            return self._in_flight

    def _write_chunk(self, chunk: bytes) -> tuple[int, bool]:
        """Write as much of the chunk as the descriptor takes: how many bytes, and whether it is
        gone for good.
        """
        written = 0
        try:
            if self._torn:
                os.write(self._fd, b"\n")
                self._torn = False
            while written < len(chunk) and self._in_flight:
                written += self._write_some(chunk[written : written + CHUNK_BYTES])
        except OSError as error:
            return written, error.errno in GONE_ERRNOS
        return written, False

    def _write_some(self, piece: bytes) -> int:
        try:
            return os.write(self._fd, piece)
        except BlockingIOError:  # someone who shares the description made it non-blocking
            poll = select.poll()
            poll.register(self._fd, select.POLLOUT)
            poll.poll(200)
            return 0

    def _finish_chunk(self, chunk: bytes, *, written: int, gone: bool) -> None:
        with self._changed:
            if 0 < written < len(chunk):
                self._torn = chunk[written - 1 : written] != b"\n"
            if self._in_flight:  # else close() has given it up
                self._pending -= len(chunk)
                self.dropped += _count_lines(chunk[written:])
                self._in_flight = b""
            self.broken = self.broken or gone
            drained = self._discard() if gone else self._end_congestion()
            self._changed.notify_all()
        _call_all(drained)

    def _end_congestion(self) -> list[Callable[[], None]]:
        """The callbacks that are due now that this much was written."""
        if self._pending > self.capacity // 4:
            return []
        self._congested = False
        due, self._on_drained = self._on_drained, []
        return due

    def _discard(self) -> list[Callable[[], None]]:
        """Give up what is pending."""
        self.dropped += _count_lines(self._in_flight) + sum(map(_count_lines, self._chunks))
        self._in_flight = b""
        self._chunks.clear()
        self._pending = 0
        return self._end_congestion()

    def _close_descriptor(self) -> None:
        """Only once nobody writes any more: a number closed under a blocked write could be
        somebody else's after it.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)


def flush_all(
    writers: Iterable[NonblockingWriter], stall_timeout: float
) -> list[NonblockingWriter]:
    """Flush them all at once, each for as long as somebody reads; those of which nothing was
    taken for `stall_timeout` seconds.
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


def _count_lines(data: bytes) -> int:
    """How many lines these are, an unfinished last one included."""
    return data.count(b"\n") + (data[-1:] not in {b"", b"\n"})


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        _call(callback)


def _call(callback: Callable[[], None]) -> None:
    with suppress(Exception):  # a producer that fails to resume must not end the writer
        callback()
