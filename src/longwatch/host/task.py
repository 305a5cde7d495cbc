"""Runs a command under a deadline: spawns it, watches it, ends its whole tree, says why it ended.

`Task` is one run of one command under a guardian, on the event loop. Its states:

    waiting   made, not spawned. If cancelled here, the command never starts.
    running   spawned. It ends by itself, or the task stops it, for the first of these reasons:
              the timeout has passed, no progress for too long, `cancel`.
    stopping  the stop signal to its process group, the grace of its StopPolicy, SIGKILL to the
              whole tree. A later cancel can shorten the grace and changes nothing else.
    ended     no process of the tree is left, and its pipes are read and closed.

Invariants
    1. `run` returns only when no process of the tree is left (`ProcessEnd.survivors` counts
       processes that SIGKILL did not end). If its coroutine is cancelled, it kills the tree and
       does not wait.
    2. The reason is decided once, while the leader still runs. A leader that ended by itself before
       the decision is ENDED, whatever follows.
    3. Deadlines count from the moment the program runs. Bytes that the command writes to a captured
       stream are progress, even without the end of a line.
    4. A process that has left the tree and holds a pipe open delays nothing: the pipe is read until
       it is empty, and closed (`host/capture.py`).

Failure cases: `run` raises SpawnError and GuardianLostError unchanged. A program that does not
start within 30 s is given up with SpawnError (ETIMEDOUT): its file system may not respond.

`OutputTail` and `OutputFile` are sinks for the output of a command.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from math import inf
from pathlib import Path
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.core.end_cause import EndCause, EndKind
from longwatch.errors import GuardianLostError, SpawnError
from longwatch.host.capture import MAX_LINE
from longwatch.host.loop import wait_until_done
from longwatch.host.nonblocking_writer import NonblockingWriter, PutResult
from longwatch.host.process import KILL_NOW, Child, ProcessEnd, ProcessSpec, StopPolicy
from longwatch.host.writer_thread import WriterThread

TAIL_BYTES = 8192
"""Bytes of output kept in memory, for each of the two streams."""
SPAWN_TIMEOUT = 30.0
"""Seconds a program has to start. Real seconds, because the task waits for another process."""
_BUFFER_BYTES = 3 << 20
"""Buffer between the loop and the disk.

Above half of it the command has to wait. The other half has room for the rest of a pipe after the
command has ended.
"""
_NOTICE_BYTES = 128
"""Room for the line that says how many bytes are not kept."""
_COPY_BYTES = 1 << 20


class ChildSpawner(Protocol):
    """The part of a guardian client that a task uses."""

    async def spawn(self, spec: ProcessSpec) -> Child: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """A command to run and its time limits in seconds; None means no limit.

    A command that writes nothing to a captured stream for `progress_timeout` seconds has stalled.
    """

    process: ProcessSpec
    timeout: float | None
    progress_timeout: float | None = None
    stop: StopPolicy


class TaskEndReason(StrEnum):
    """Why a task ended: by itself (ENDED), or the reason it was stopped."""

    ENDED = auto()
    TIMEOUT = auto()
    STALLED = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEnd:
    """How a task ended. `process` has no pid if the task was cancelled before it was spawned."""

    reason: TaskEndReason
    process: ProcessEnd
    cancel_reason: str = ""
    """The reason of the first `cancel`, if that ended it."""


class Task:
    """One run of a TaskSpec. Call `run` once, on the loop; the other methods are thread-safe.

    `on_spawned` is called on the loop once the program runs, and must not block. If it raises, the
    tree is killed and `run` raises the error.
    """

    def __init__(
        self, spec: TaskSpec, *, clock: Clock, on_spawned: Callable[[Child], None] = lambda _: None
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._on_spawned = on_spawned
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._child: Child | None = None
        self._reason: TaskEndReason | None = None
        self._cancel_reason: str | None = None
        self._cancel_grace: float | None = None
        self._started_at = self._progress_at = clock.monotonic()

    async def run(self, guardian: ChildSpawner) -> TaskEnd:
        """Run the command; return when no process of its tree is left."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            is_cancelled = self._cancel_reason is not None
        if is_cancelled:
            return self._never_started()
        child = self._child = await self._spawn(guardian)
        try:
            await self._announce(child)
            self._stop_if_cancelled()
            return self._end(await self._watch(child))
        except asyncio.CancelledError:
            with suppress(GuardianLostError):
                child.kill()
            raise
        finally:
            self._child = None

    def cancel(self, reason: str, *, grace: float | None = None) -> None:
        """Stop the command, or do not start it. Does not wait. Thread-safe.

        `grace` None: that of the StopPolicy. The first reason counts. A second call can only bring
        the end of the grace forward.
        """
        with self._lock:
            if self._cancel_reason is None:
                self._cancel_reason = reason
                self._cancel_grace = self.spec.stop.grace if grace is None else grace
            elif grace is not None:
                assert self._cancel_grace is not None
                self._cancel_grace = min(self._cancel_grace, grace)
            loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop is closed: the task is over
                loop.call_soon_threadsafe(self._stop_if_cancelled)

    def report_progress(self) -> None:
        """Restart the progress deadline. Thread-safe."""
        self._progress_at = self._clock.monotonic()

    # --- on the loop ---

    async def _spawn(self, guardian: ChildSpawner) -> Child:
        process = replace(self.spec.process, on_output=self._take_output)
        spawning = asyncio.ensure_future(guardian.spawn(process))
        try:
            await asyncio.wait({spawning}, timeout=SPAWN_TIMEOUT)
            if spawning.done():
                return spawning.result()
        finally:
            spawning.cancel()  # kills a child that may have started
        raise SpawnError(
            f"the program did not start within {SPAWN_TIMEOUT:g} s; is its file system or the "
            f"machine overloaded?",
            errno=errno.ETIMEDOUT,
        )

    def _take_output(self) -> None:
        self.report_progress()
        if self.spec.process.on_output is not None:
            self.spec.process.on_output()

    async def _announce(self, child: Child) -> None:
        self._started_at = self._progress_at = self._clock.monotonic()
        try:
            self._on_spawned(child)
        except BaseException:
            with suppress(GuardianLostError):
                await child.stop(KILL_NOW)
            raise

    async def _watch(self, child: Child) -> ProcessEnd:
        """Wait for the end of the tree; at a deadline, begin to stop it."""
        ended = asyncio.ensure_future(child.wait())
        try:
            while self._reason is None and (due := self._next_deadline()) < inf:
                if await wait_until_done(ended, due - self._clock.monotonic(), self._clock):
                    break
                self._stop_if_expired(child)
            return await ended
        finally:
            ended.cancel()

    def _next_deadline(self) -> float:
        return min(self._timeout_at(), self._stalled_at())

    def _timeout_at(self) -> float:
        return inf if self.spec.timeout is None else self._started_at + self.spec.timeout

    def _stalled_at(self) -> float:
        limit = self.spec.progress_timeout
        return inf if limit is None else self._progress_at + limit

    def _stop_if_expired(self, child: Child) -> None:
        now = self._clock.monotonic()
        if now >= self._timeout_at():
            self._stop(child, TaskEndReason.TIMEOUT, self.spec.stop)
        elif now >= self._stalled_at():
            self._stop(child, TaskEndReason.STALLED, self.spec.stop)

    def _stop_if_cancelled(self) -> None:
        with self._lock:
            grace = self._cancel_grace
        if self._child is not None and grace is not None:
            policy = replace(self.spec.stop, grace=grace)
            self._stop(self._child, TaskEndReason.CANCELLED, policy)

    def _stop(self, child: Child, reason: TaskEndReason, policy: StopPolicy) -> None:
        if self._reason is None:
            self._reason = reason if child.is_leader_running else TaskEndReason.ENDED
        child.begin_stop(policy)

    def _end(self, process: ProcessEnd) -> TaskEnd:
        reason = self._reason or TaskEndReason.ENDED
        is_cancelled = reason is TaskEndReason.CANCELLED
        return TaskEnd(
            reason=reason,
            process=process,
            cancel_reason=(self._cancel_reason or "") if is_cancelled else "",
        )

    def _never_started(self) -> TaskEnd:
        self._reason = TaskEndReason.CANCELLED
        return self._end(
            ProcessEnd(
                cause=EndCause(EndKind.SPAWN_ERROR),
                lasted=0.0,
                detail="it was cancelled before it was started",
            )
        )


class OutputTail:
    """A LineSink that keeps the last bytes written. Used on the loop."""

    congested = False

    def __init__(self, limit: int = TAIL_BYTES) -> None:
        self.data = b""
        self.received = asyncio.Event()
        """Set by each write; the reader clears it."""
        self._limit = limit

    def write(self, data: bytes) -> bool:
        self.received.set()
        self.data = (self.data + data[-self._limit :])[-self._limit :]
        return True

    def on_drained(self, callback: Callable[[], None]) -> None:
        callback()

    def give_up(self) -> None:
        """Does nothing: it is never congested."""


class OutputFile:
    """A LineSink that keeps the last output in a file of at most `max_bytes`.

    A writer thread writes the file, so that the loop never waits for a disk. Several files may
    share one `thread`. The file is created anew with mode 0600; raises OSError if that fails.
    Afterwards nothing raises: lines that the disk refuses are counted in `dropped`.

    When the file is full, its older half is removed, and its first line says how many bytes are
    missing.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        tail_bytes: int = TAIL_BYTES,
        thread: WriterThread | None = None,
    ) -> None:
        self.total_bytes = 0
        """Bytes received, kept or not."""
        self._tail = OutputTail(tail_bytes)
        self._writer = NonblockingWriter(
            _BoundedFile(path, max_bytes),
            capacity=_BUFFER_BYTES,
            name="longwatch-output",
            thread=thread,
        )

    @property
    def tail(self) -> bytes:
        """The last `tail_bytes` bytes received."""
        return self._tail.data

    @property
    def dropped(self) -> int:
        """Lines that could not be written. Lines removed to make room are not counted."""
        return self._writer.dropped

    @property
    def congested(self) -> bool:
        return self._writer.congested

    def write(self, data: bytes) -> bool:
        self.total_bytes += len(data)
        self._tail.write(data)
        return self._writer.write(data)

    def on_drained(self, callback: Callable[[], None]) -> None:
        self._writer.on_drained(callback)

    def give_up(self) -> None:
        self._writer.give_up()

    def close(self, timeout: float = 1.0) -> bool:
        """Write the buffered lines and close the file; False if the disk did not take all of them
        in time.

        Blocks for up to `timeout` seconds, so do not call it on the loop's thread. Idempotent.
        """
        return self._writer.close(timeout)


class _BoundedFile:
    """The LineTarget of an OutputFile. Used by the writer thread, so it may block."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        if max_bytes < 4 * _NOTICE_BYTES:
            raise ValueError(
                f"expected max_bytes of at least {4 * _NOTICE_BYTES}, got {max_bytes}; "
                f"a smaller file has no room for lines"
            )
        self._max_bytes = max_bytes
        self._size = 0
        self._forgotten = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._fd = os.open(path, flags, 0o600)
        os.fchmod(self._fd, 0o600)

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    def put(self, chunk: bytes, *, skipped: int, is_wanted: Callable[[], bool]) -> PutResult:  # noqa: ARG002 - one write cannot stop midway
        """Append whole lines. A write that fails leaves no part of them."""
        data = b"[%d lines are missing here]\n" % skipped + chunk if skipped else chunk
        try:
            if self._size + len(data) > self._max_bytes:
                data = self._make_room(data)
            self._write(data, self._size)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            return PutResult(0)
        self._size += len(data)
        return PutResult(len(chunk))

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _make_room(self, data: bytes) -> bytes:
        """Remove the older half of the file, or more for a large block.

        Returns the part of the block that fits, at least its end.
        """
        excess = len(data) - (self._max_bytes - _NOTICE_BYTES)
        if excess <= 0:
            self._keep_end(min(self._max_bytes // 2, -excess))
            return data
        cut = data.find(b"\n", excess, -1) + 1 or excess
        self._forgotten += cut
        self._keep_end(0)
        return data[cut:]

    def _keep_end(self, size: int) -> None:
        """Move the last whole lines, up to `size` bytes, to the beginning, below a notice."""
        start = self._line_start(min(max(self._size - size, _NOTICE_BYTES), self._size))
        self._forgotten += start
        notice = b"[the first %d bytes are not kept]\n" % self._forgotten
        end = len(notice)
        for offset in range(start, self._size, _COPY_BYTES):
            block = os.pread(self._fd, min(_COPY_BYTES, self._size - offset), offset)
            self._write(block, end)
            end += len(block)
        self._write(notice, 0)
        os.ftruncate(self._fd, end)
        self._forgotten -= len(notice)  # the notice is no output, and goes with the next half
        self._size = end

    def _line_start(self, offset: int) -> int:
        """Return where the first line at or after this offset begins; the offset if there is no
        line.
        """
        found = os.pread(self._fd, 2 * MAX_LINE, offset - 1).find(b"\n") if offset else -1
        return offset + found if found >= 0 else offset

    def _write(self, data: bytes, offset: int) -> None:
        while data:
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written
