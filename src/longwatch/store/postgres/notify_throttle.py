"""Rate-limited NOTIFY: at most one per channel every 10 ms.

NOTIFY takes a lock over the whole server when it commits, so a busy sender must not use it for
every message. The first notification is sent right behind the commit, in its own transaction. That
transaction does not wait for the disk, so it holds the lock only briefly. A notification that comes
too soon is deferred, and a thread sends it later. While no other process listens, none is sent
(`presence`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

import psycopg

from longwatch.errors import StoreError
from longwatch.host.background_thread import BackgroundThread

MIN_INTERVAL = 0.01
"""Seconds between two notifications of one channel. Twice as long would be too late for a sender of
fifty messages a second.
"""
_MAX_REMEMBERED = 1000
_CLOSE_TIMEOUT = 2.0


class NotifyThrottle:
    """Decides which channels are notified now. A thread calls `notify(channels)` for deferred ones.
    Every method is thread-safe.
    """

    def __init__(
        self, notify: Callable[[list[str]], None], *, min_interval: float = MIN_INTERVAL
    ) -> None:
        self._notify = notify
        self._min_interval = min_interval
        self._notified_at: dict[str, float] = {}
        self._deferred: dict[str, float] = {}
        self._changed = threading.Condition()
        self._thread: BackgroundThread | None = None
        self._closed = False

    def take_due(self, channels: Collection[str]) -> list[str]:
        """Return the channels to notify with the commit that is about to be made. The caller defers
        the others after it.
        """
        if not channels:
            return []
        now = time.monotonic()
        with self._changed:
            ready = [
                channel
                for channel in channels
                if now - self._notified_at.get(channel, -inf) >= self._min_interval
            ]
            self._mark_notified(ready, now)
            return ready

    def defer(self, channels: Collection[str]) -> None:
        """Notify these channels later, when they are due."""
        if not channels:
            return
        with self._changed:
            for channel in set(channels).difference(self._deferred):
                self._defer_one(channel)

    def close(self) -> None:
        """Send the deferred notifications and end the thread. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and not thread.in_own_thread:
            thread.done.block(_CLOSE_TIMEOUT)

    def _defer_one(self, channel: str) -> None:
        """If no thread can start, the notification is lost. Listeners also poll."""
        self._deferred[channel] = self._notified_at.get(channel, -inf) + self._min_interval
        self._changed.notify()
        if self._thread is None and not self._closed:
            self._thread = BackgroundThread(
                self._run, name="longwatch-postgres-notify", report_errors=True
            )
            with suppress(RuntimeError):
                self._thread.start()

    def _mark_notified(self, channels: list[str], now: float) -> None:
        if len(self._notified_at) > _MAX_REMEMBERED:
            self._notified_at = {
                channel: at
                for channel, at in self._notified_at.items()
                if now - at < self._min_interval
            }
        self._notified_at.update(dict.fromkeys(channels, now))

    def _run(self) -> None:
        while channels := self._next_channels():
            with suppress(StoreError, psycopg.Error):  # a notification may get lost
                self._notify(channels)

    def _next_channels(self) -> list[str]:
        """Wait until a deferred channel is due, and return all deferred ones. Empty when closed and
        all are sent.
        """
        with self._changed:
            while not self._closed and (wait := self._seconds_until_due()) > 0:
                self._changed.wait(None if wait == inf else wait)
            channels = list(self._deferred)
            self._deferred.clear()
            self._mark_notified(channels, time.monotonic())
            return channels

    def _seconds_until_due(self) -> float:
        return min(self._deferred.values(), default=inf) - time.monotonic()
