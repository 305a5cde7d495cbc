"""The runs of one loop or group, one after another, and how one is told to end.

never ran ──shutdown──► told beforehand ──run──► (returns at once)
idle ──run──► running ──shutdown, or by itself──► idle

A run that gives up at its deadline ends, too, and leaves work behind. That is the moment in which
the wait of a shutdown times out, so the end alone does not say whether all work has ended.
`has_left_work` does. The run sets it before `ended`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import ServiceStateError

_MAIN_THREAD_WAIT = 0.5


def max_wait() -> float | None:
    """How many seconds this thread may wait at a stretch; None: for ever.

    The main thread has to look up now and then: a signal that came to another thread, or to this
    one in the moment before it began to wait, is handled only then.
    """
    return _MAIN_THREAD_WAIT if threading.current_thread() is threading.main_thread() else None


class RunHandle:
    """One run: `stop_requested` is set when it has to end, `ended` when it has."""

    def __init__(self, clock: Clock) -> None:
        self.stop_requested = Wakeup()
        self.ended = Wakeup()
        self.has_left_work = False
        """Whether it ended before its work did, or too late."""
        self._clock = clock
        self.deadline = Deadline.never(clock)
        """Until when it has to have ended, once it was told to."""
        self._lock = threading.Lock()

    @property
    def is_stopping(self) -> bool:
        return self.stop_requested.is_set()

    def request_stop(self, deadline: Deadline) -> None:
        """Have it end by then; of two who say so the earlier counts."""
        with self._lock:
            self.deadline = self.deadline.earlier(deadline)
        self.stop_requested.set()

    def wait_ended(self, timeout: float | None) -> bool:
        """Wait for its end; True only if that comes within the timeout and all work has ended."""
        return self._clock.wait(self.ended, timeout) and not self.has_left_work


class RunGuard:
    """One run at a time of the loop or group called `name`. Thread-safe. State is per
    process: a guard that was made before a fork can run in the child.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._current: RunHandle | None = None
        self._is_stopped_early = False
        self._has_run = False

    @property
    def current(self) -> RunHandle | None:
        """The run that is under way."""
        return self._current if self._pid == os.getpid() else None

    @contextmanager
    def run(self) -> Iterator[RunHandle]:
        """A run, from its beginning to its end; ServiceStateError if there is one."""
        run = self._begin()
        try:
            yield run
        finally:
            with self._lock:
                self._current = None
            run.ended.set()

    def request_stop(self, deadline: Deadline) -> RunHandle | None:
        """Have the present run end by then, or the first one return at once; that run, if there
        is one.
        """
        self._reset_after_fork()
        with self._lock:  # or a run that begins just now would hear nothing of it
            run = self._current
            if run is None:
                self._is_stopped_early = not self._has_run
        if run is not None:
            run.request_stop(deadline)
        return run

    def _begin(self) -> RunHandle:
        self._reset_after_fork()
        with self._lock:
            if self._current is not None:
                raise ServiceStateError(
                    f"{self.name} is running already; shut it down first, or make another one"
                )
            run = self._current = RunHandle(self._clock)
            is_stopped, self._is_stopped_early, self._has_run = self._is_stopped_early, False, True
        if is_stopped:
            run.stop_requested.set()
        return run

    def _reset_after_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock, self._current = os.getpid(), threading.RLock(), None
