"""Those of one process who wait for a hint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from longwatch.core.clock import Wakeup
from longwatch.store.database import Channels


class Listeners:
    """Who is to be woken for which channel. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._wakeups: dict[str, set[Wakeup]] = {}
        self._lock = threading.Lock()

    def add(self, channels: Channels, wakeup: Wakeup) -> Callable[[], None]:
        """Returns what takes it off again."""
        names = (channels,) if isinstance(channels, str) else tuple(channels)
        with self._lock:
            for channel in names:
                self._wakeups.setdefault(channel, set()).add(wakeup)
        return lambda: self._remove(names, wakeup)

    def wake(self, channels: Iterable[str]) -> None:
        if not self._wakeups:
            return
        with self._lock:
            found = [wakeup for channel in channels for wakeup in self._wakeups.get(channel, ())]
        for wakeup in found:
            wakeup.set()

    def wake_all(self) -> None:
        self.wake(tuple(self._wakeups))

    def __len__(self) -> int:
        """How many channels somebody listens to."""
        return len(self._wakeups)

    def _remove(self, channels: Iterable[str], wakeup: Wakeup) -> None:
        with self._lock:
            for channel in channels:
                waiting = self._wakeups.get(channel, set())
                waiting.discard(wakeup)
                if not waiting:
                    self._wakeups.pop(channel, None)
