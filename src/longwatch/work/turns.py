"""The runs of one loop or group, one after another, and how one is told to end.

never ran ──shutdown──► told beforehand ──run──► (returns at once)
idle ──run──► running ──shutdown, or by itself──► idle
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.errors import ServiceStateError

_LOOK_UP = 0.5


def look_up() -> float | None:
    """How many seconds this thread may wait at a stretch; None: for ever.

    The main thread has to look up now and then: a signal that came to another thread, or to this
    one in the moment before it began to wait, is handled only then.
    """
    return _LOOK_UP if threading.current_thread() is threading.main_thread() else None


class Turn:
    """One run: `over` is set when it has to end, `ended` when it has."""

    def __init__(self, clock: Clock) -> None:
        self.over = Wakeup()
        self.ended = Wakeup()
        self.deadline = Deadline.never(clock)
        """Until when it has to have ended, once it was told to."""
        self._lock = threading.Lock()

    @property
    def told(self) -> bool:
        return self.over.is_set()

    def end(self, deadline: Deadline) -> None:
        """Have it end by then; of two who say so the earlier counts."""
        with self._lock:
            self.deadline = self.deadline.earlier(deadline)
        self.over.set()


class Turns:
    """The turns of what is called `name`. Thread-safe; by process, so one that was made before a
    fork runs in the child.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._present: Turn | None = None
        self._told_beforehand = False
        self._has_run = False

    @property
    def present(self) -> Turn | None:
        """The run that is under way."""
        return self._present if self._pid == os.getpid() else None

    @contextmanager
    def one(self) -> Iterator[Turn]:
        """A run, from its beginning to its end; ServiceStateError if there is one."""
        turn = self._begin()
        try:
            yield turn
        finally:
            with self._lock:
                self._present = None
            turn.ended.set()

    def tell(self, deadline: Deadline) -> Turn | None:
        """Have the present run end by then, or the first one return at once; that run, if there
        is one.
        """
        self._notice_fork()
        with self._lock:  # or a run that begins just now would hear nothing of it
            turn = self._present
            if turn is None:
                self._told_beforehand = not self._has_run
        if turn is not None:
            turn.end(deadline)
        return turn

    def _begin(self) -> Turn:
        self._notice_fork()
        with self._lock:
            if self._present is not None:
                raise ServiceStateError(
                    f"{self.name} is running already; shut it down first, or make another one"
                )
            turn = self._present = Turn(self._clock)
            told, self._told_beforehand, self._has_run = self._told_beforehand, False, True
        if told:
            turn.over.set()
        return turn

    def _notice_fork(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._lock, self._present = os.getpid(), threading.RLock(), None
