"""Telling others that something may be there, without hurting anybody.

NOTIFY takes a lock over the whole server when it commits, so a busy sender must not use it for
every message: a channel is told at once, and again at most every GAP seconds. The first hint leaves
with the commit itself, in a transaction of its own behind it: that waits for no disk, so nobody
else waits for the lock while one is written to. A hint that comes too soon is owed, and a thread
tells it when its time has come. Where no other process listens, nothing is told
(`postgres_presence`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from math import inf

import psycopg

from longwatch.errors import StoreError
from longwatch.host.errand import Errand

GAP = 0.01
"""Seconds between two hints about one channel; twice as many would be late for who sends fifty
messages a second.
"""
_MANY = 1000
_PATIENCE = 2.0


class Hints:
    """Decides which channels are told now. `tell(channels)` is called in a thread for those that
    were owed.

    Every method may be called from any thread.
    """

    def __init__(self, tell: Callable[[list[str]], None], *, gap: float = GAP) -> None:
        self._tell = tell
        self._gap = gap
        self._told: dict[str, float] = {}
        self._owed: dict[str, float] = {}
        self._changed = threading.Condition()
        self._errand: Errand | None = None
        self._closed = False

    def due(self, channels: Collection[str]) -> list[str]:
        """Those to be told now, with the commit that is about to be made; the others are to be
        owed once it is made.
        """
        if not channels:
            return []
        now = time.monotonic()
        with self._changed:
            ready = [
                channel for channel in channels if now - self._told.get(channel, -inf) >= self._gap
            ]
            self._note(ready, now)
            return ready

    def owe(self, channels: Collection[str]) -> None:
        """Have these told when their time has come."""
        if not channels:
            return
        with self._changed:
            for channel in set(channels).difference(self._owed):
                self._owe(channel)

    def close(self) -> None:
        """Tell what is owed and end the thread; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            errand = self._errand
        if errand is not None and not errand.inside:
            errand.over.block(_PATIENCE)

    def _owe(self, channel: str) -> None:
        """If there is no thread for it, the hint is lost; others look now and then."""
        self._owed[channel] = self._told.get(channel, -inf) + self._gap
        self._changed.notify()
        if self._errand is None and not self._closed:
            self._errand = Errand(self._work, name="longwatch-hints", loud=True)
            with suppress(RuntimeError):
                self._errand.start()

    def _note(self, channels: list[str], now: float) -> None:
        if len(self._told) > _MANY:
            self._told = {channel: at for channel, at in self._told.items() if now - at < self._gap}
        self._told.update(dict.fromkeys(channels, now))

    def _work(self) -> None:
        while channels := self._next():
            with suppress(StoreError, psycopg.Error):  # a hint may get lost
                self._tell(channels)

    def _next(self) -> list[str]:
        """What is owed, when it is due; empty when closed and paid."""
        with self._changed:
            while not self._closed and (wait := self._wait()) > 0:
                self._changed.wait(None if wait == inf else wait)
            channels = list(self._owed)
            self._owed.clear()
            self._note(channels, time.monotonic())
            return channels

    def _wait(self) -> float:
        return min(self._owed.values(), default=inf) - time.monotonic()
