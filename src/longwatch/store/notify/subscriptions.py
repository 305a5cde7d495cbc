"""The wakeups of one process, by channel."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from longwatch.core.clock import Wakeup


class Subscriptions:
    """Which wakeups to set for which channel. Every method may be called from any thread.

    A channel without wakeups is kept for `linger` seconds: a receiver in a loop subscribes again
    in a moment, and its connection should not unsubscribe meanwhile.
    """

    def __init__(self, *, linger: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._by_channel: dict[str, set[Wakeup]] = {}
        self._left_at: dict[str, float] = {}
        self._linger = linger
        self._now = now
        self._lock = threading.Lock()

    def add(self, channels: Iterable[str], wakeup: Wakeup) -> bool:
        """Subscribe a wakeup; whether a channel is new."""
        with self._lock:
            count = len(self._by_channel)
            for channel in channels:
                self._by_channel.setdefault(channel, set()).add(wakeup)
                self._left_at.pop(channel, None)
            return len(self._by_channel) > count

    def remove(self, channels: Iterable[str], wakeup: Wakeup) -> None:
        """Unsubscribe a wakeup; idempotent."""
        with self._lock:
            for channel in channels:
                wakeups = self._by_channel.get(channel)
                if wakeups is None:
                    continue
                wakeups.discard(wakeup)
                if not wakeups and self._linger:
                    self._left_at.setdefault(channel, self._now())
                elif not wakeups:
                    del self._by_channel[channel]

    def channels(self) -> set[str]:
        """The channels to receive; forgets those that have lingered long enough."""
        with self._lock:
            long_ago = self._now() - self._linger
            for channel in [each for each, left_at in self._left_at.items() if left_at < long_ago]:
                del self._left_at[channel], self._by_channel[channel]
            return set(self._by_channel)

    def wake(self, channels: Iterable[str]) -> None:
        """Set the wakeups of these channels."""
        if not self._by_channel:
            return
        with self._lock:
            wakeups = [
                wakeup for channel in channels for wakeup in self._by_channel.get(channel, ())
            ]
        for wakeup in wakeups:
            wakeup.set()

    def wake_all(self) -> None:
        """Set every wakeup."""
        self.wake(tuple(self._by_channel))

    def __len__(self) -> int:
        """How many channels are known."""
        return len(self._by_channel)
