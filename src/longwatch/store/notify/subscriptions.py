"""The wakeups of one process that wait for notifications."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from longwatch.core.clock import Wakeup
from longwatch.store.database import Channels


class Subscriptions:
    """The wakeups to set for each channel. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._by_channel: dict[str, set[Wakeup]] = {}
        self._lock = threading.Lock()

    def add(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Subscribe; returns a function that unsubscribes."""
        names = (channels,) if isinstance(channels, str) else tuple(channels)
        with self._lock:
            for channel in names:
                self._by_channel.setdefault(channel, set()).add(wakeup)
        return lambda: self._remove(names, wakeup)

    def wake(self, channels: Iterable[str]) -> None:
        if not self._by_channel:
            return
        with self._lock:
            wakeups = [
                wakeup for channel in channels for wakeup in self._by_channel.get(channel, ())
            ]
        for wakeup in wakeups:
            wakeup.set()

    def wake_all(self) -> None:
        self.wake(tuple(self._by_channel))

    def __len__(self) -> int:
        """How many channels have subscribers."""
        return len(self._by_channel)

    def _remove(self, channels: Iterable[str], wakeup: Wakeup) -> None:
        with self._lock:
            for channel in channels:
                waiting = self._by_channel.get(channel, set())
                waiting.discard(wakeup)
                if not waiting:
                    self._by_channel.pop(channel, None)
