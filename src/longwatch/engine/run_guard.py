"""Allows one run at a time of a loop or group, and requests its stop.

never ran ──shutdown──► stopped early ──run──► (returns at once)
idle ──run──► running ──shutdown, or by itself──► idle

A run that gives up at its deadline also ends, and leaves work behind. The wait of a shutdown times
out at the same moment, so `ended` alone does not show whether all work has ended. `has_left_work`
does. The run sets it before `ended`.
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
    """Return how many seconds this thread may wait at a stretch; None: no limit.

    The main thread has to wake up regularly. Only then Python handles a signal that another thread
    received, or that arrived just before this wait began.
    """
    return _MAIN_THREAD_WAIT if threading.current_thread() is threading.main_thread() else None


class RunHandle:
    """One run. `stop_requested` is set when it has to end, `ended` when it has ended."""

    def __init__(self, clock: Clock) -> None:
        self.stop_requested = Wakeup()
        self.ended = Wakeup()
        self.has_left_work = False
        """Whether the run ended before its work did, or too late."""
        self._clock = clock
        self.deadline = Deadline.never(clock)
        """When the run has to have ended, once a stop was requested."""
        self._lock = threading.Lock()

    @property
    def is_stopping(self) -> bool:
        return self.stop_requested.is_set()

    def request_stop(self, deadline: Deadline) -> None:
        """Request that the run ends by the deadline. Of two deadlines the earlier counts."""
        with self._lock:
            self.deadline = self.deadline.earlier(deadline)
        self.stop_requested.set()

    def wait_ended(self, timeout: float | None) -> bool:
        """Wait for the end. Returns True only if it comes within the timeout and all work has
        ended.
        """
        return self._clock.wait(self.ended, timeout) and not self.has_left_work


class RunGuard:
    """Allows one run at a time of the loop or group called `name`. Thread-safe. State is per
    process: a guard made before a fork can run in the child.
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
        """The current run, if any."""
        return self._current if self._pid == os.getpid() else None

    @contextmanager
    def run(self) -> Iterator[RunHandle]:
        """Run from the beginning to the end of the context. Raises ServiceStateError if another run
        is under way.
        """
        run = self._begin()
        try:
            yield run
        finally:
            with self._lock:
                self._current = None
            run.ended.set()

    def request_stop(self, deadline: Deadline) -> RunHandle | None:
        """Request that the current run ends by the deadline, or that the first run returns at once.
        Returns the current run, if any.
        """
        self._reset_after_fork()
        with self._lock:  # otherwise a run that begins now would miss the request
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
