"""Samples the gauges that need a store, for a reporter that must not wait for one.

A sample is taken in a thread of its own, while the reporter reports the one before. The next one
waits for at least `SAMPLE_SECONDS`, and longer after a slow one, so that sampling takes at most a
twentieth of the time of one connection, however long a backlog is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain
from math import inf

from longwatch.core.clock import Clock
from longwatch.engine.engine_loop import EngineLoop, Gauge
from longwatch.errors import LongwatchError, MailboxConnectionError, StoreUnreachableError
from longwatch.host.background_thread import BackgroundThread

SAMPLE_SECONDS = 5.0
_REST_FACTOR = 20
"""How many times as long as a sample took the next one waits."""


class StoreGauges:
    """The gauges of the stores of some loops: of each kind of loop and each store, one loop reads
    them. `loops` returns the loops that run. `latest` is for one thread at a time.
    """

    def __init__(self, loops: Callable[[], Iterable[EngineLoop]], clock: Clock) -> None:
        self._loops = loops
        self._clock = clock
        self._latest: list[Gauge] = []
        self._next_at = -inf
        self._sampling: BackgroundThread | None = None

    def latest(self) -> list[Gauge]:
        """The last sample; empty before the first, and after one that failed. Starts the next
        sample if it is due. Never blocks.
        """
        is_sampling = self._sampling is not None and not self._sampling.done.is_set()
        if not is_sampling and self._clock.monotonic() >= self._next_at:
            loops = self.loops_to_ask()
            if loops:
                self._sampling = BackgroundThread(
                    lambda: self._sample(loops), name="store-gauges", report_errors=True
                )
                with suppress(RuntimeError):  # no thread left: the next call tries again
                    self._sampling.start()
            else:
                self._latest = []
        return self._latest

    def _sample(self, loops: Iterable[EngineLoop]) -> None:
        started = self._clock.monotonic()
        try:
            self._latest = _read(loops)
        finally:
            took = self._clock.monotonic() - started
            self._next_at = started + took + max(SAMPLE_SECONDS, _REST_FACTOR * took)

    def loops_to_ask(self) -> list[EngineLoop]:
        """One loop of each kind and store."""
        found = {
            (type(loop), loop.store_identity): loop
            for loop in self._loops()
            if type(loop).store_gauges is not EngineLoop.store_gauges
        }
        return list(found.values())


def _read(loops: Iterable[EngineLoop]) -> list[Gauge]:
    return list(chain.from_iterable(read_gauges([loop.store_gauges]) for loop in loops))


def read_gauges(reads: Iterable[Callable[[], Iterable[Gauge]]]) -> list[Gauge]:
    """Make the reads of one store. Those that it refuses are left out; once it cannot be reached,
    the rest is not tried.
    """
    found: list[Gauge] = []
    for read in reads:
        try:
            found += read()
        except (StoreUnreachableError, MailboxConnectionError):
            break
        except LongwatchError:
            continue
    return found
