"""Rate-limited NOTIFY: at most one in 10 ms from this process, for all channels together.

NOTIFY takes a lock over the whole server when it commits, and wakes every listener of the database.
So a busy process must not use it for every commit. The first notification is sent right behind the
commit, in its own transaction. That transaction does not wait for the disk, so it holds the lock
only briefly. Notifications of the next 10 ms are collected. They are sent together with the first
commit after that time, or a little later by a thread, which would take a busy process several times
as much as the commit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from contextlib import suppress
from math import inf

import psycopg

from longwatch.errors import StoreError
from longwatch.host.background_thread import BackgroundThread

MIN_INTERVAL = 0.01
"""Seconds between two notifications of this process. Twice as long would be too late for a sender
of fifty messages a second.
"""
_GRACE = 0.003
"""Seconds that the thread leaves to the next commit to send what is deferred."""
_CLOSE_TIMEOUT = 2.0


class NotifyThrottle:
    """Decides which channels are notified now. A thread calls `notify(channels)` for deferred ones.
    Every method is thread-safe.
    """

    def __init__(
        self, notify: Callable[[AbstractSet[str]], None], *, min_interval: float = MIN_INTERVAL
    ) -> None:
        self._notify = notify
        self._min_interval = min_interval
        self._notified_at = -inf
        self._deferred: set[str] = set()
        self._changed = threading.Condition()
        self._thread: BackgroundThread | None = None
        self._thread_is_idle = False
        self._closed = False

    def take_due(self, channels: Collection[str]) -> set[str]:
        """Return the channels to notify with the commit that is about to be made, also deferred
        ones; empty if it is too soon. The caller defers again what it could not notify.
        """
        if not channels:
            return set()
        now = time.monotonic()
        with self._changed:
            if now - self._notified_at < self._min_interval:
                return set()
            due = self._deferred.union(channels)
            self._deferred.clear()
            self._notified_at = now
            return due

    def defer(self, channels: Collection[str]) -> None:
        """Notify these channels later, when it is not too soon."""
        if not channels:
            return
        with self._changed:
            self._deferred.update(channels)
            if self._thread_is_idle:
                self._thread_is_idle = False
                self._changed.notify()
            if self._thread is None and not self._closed:
                self._start_thread()

    def close(self) -> None:
        """Send the deferred notifications and end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and not thread.in_own_thread:
            thread.done.block(_CLOSE_TIMEOUT)

    def _start_thread(self) -> None:
        """If no thread can start, notifications are lost. Listeners also poll."""
        self._thread = BackgroundThread(
            self._run, name="longwatch-postgres-notify", report_errors=True
        )
        with suppress(RuntimeError):
            self._thread.start()

    def _run(self) -> None:
        while channels := self._next_channels():
            with suppress(StoreError, psycopg.Error):  # a notification may get lost
                self._notify(channels)

    def _next_channels(self) -> set[str]:
        """Wait until deferred channels are due, and return them. Empty when closed and all are
        sent.
        """
        with self._changed:
            while not self._closed and (wait := self._seconds_until_due()) > 0:
                self._thread_is_idle = wait == inf
                self._changed.wait(None if wait == inf else wait)
            channels, self._deferred = self._deferred, set()
            self._notified_at = time.monotonic()
            return channels

    def _seconds_until_due(self) -> float:
        if not self._deferred:
            return inf
        return self._notified_at + self._min_interval + _GRACE - time.monotonic()
