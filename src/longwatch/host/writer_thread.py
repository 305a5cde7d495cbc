"""The thread that writes for one or several `NonblockingWriter`s.

Writers that can block independently of each other (stdout, stderr) have a thread each. The log
files of a process share one: they are on one file system, and if that stalls, all of them stall.

The thread takes one chunk of each writer in turn. So a program with much output does not delay the
lines of others, and each writer's lines keep their order. It starts with the first line and ends
with its last writer. It is a daemon, so a write that blocks for ever does not delay the exit.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from contextlib import suppress
from typing import Protocol


class ServedWriter(Protocol):
    """The part of a writer that the thread uses."""

    def serve(self) -> bool:
        """Write one chunk; False once the writer needs no more calls. May block."""


class WriterThread:
    """A daemon thread, and the lock that it shares with its writers. Thread-safe.

    A forked child has none of its threads: `reset_after_fork` makes a new one there.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self.changed = threading.Condition()
        """Guards the writers' buffers; notified after each change of a buffer."""
        self._ready: deque[ServedWriter] = deque()
        self._served: set[ServedWriter] = set()
        self._thread: threading.Thread | None = None

    def reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def serves(self, writer: ServedWriter) -> bool:
        """Whether the thread may still be writing for it."""
        return writer in self._served

    def schedule(self, writer: ServedWriter) -> None:
        """Queue the writer for its turn. The caller holds the lock."""
        self._served.add(writer)
        if writer not in self._ready:
            self._ready.append(writer)
        self.changed.notify_all()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            with suppress(RuntimeError):  # no thread is available now: the next write tries again
                thread.start()
                self._thread = thread

    def wait_released(self, writer: ServedWriter, timeout: float) -> bool:
        """Wait until the thread is done with the writer; False on timeout. True at once in the
        thread itself.
        """
        if threading.current_thread() is self._thread:
            return True
        with self.changed:
            return self.changed.wait_for(lambda: writer not in self._served, timeout)

    def _run(self) -> None:
        signal.pthread_sigmask(
            signal.SIG_BLOCK, signal.valid_signals()
        )  # so that SIGTTOU cannot stop us in the background
        while (writer := self._next()) is not None:
            if not writer.serve():
                self._release(writer)

    def _next(self) -> ServedWriter | None:
        """Return the next writer; None when there is none left to serve."""
        with self.changed:
            self.changed.wait_for(lambda: self._ready or not self._served)
            if self._ready:
                return self._ready.popleft()
            self._thread = None
            return None

    def _release(self, writer: ServedWriter) -> None:
        with self.changed:
            if writer not in self._ready:
                self._served.discard(writer)
            self.changed.notify_all()
