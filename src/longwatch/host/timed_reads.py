"""Makes blocking reads, such as those of a metrics page from its stores, within a limited time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Generic, TypeVar

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.errors import LongwatchError
from longwatch.host.background_thread import BackgroundThread

T = TypeVar("T")
SCRAPE_READ_SECONDS = 5.0
"""Seconds that the reads of a scrape may take. Prometheus gives up a scrape after 10 s."""


class TimedReads(Generic[T]):
    """Makes the reads side by side, each in a thread of its own, and returns the results that are
    there within `timeout` seconds.

    A read that is late, or raises a LongwatchError, is left out. A late one is not made again
    before it has ended, and no caller waits for it a second time. For one thread at a time.
    """

    def __init__(self, *, name: str, timeout: float, clock: Clock) -> None:
        self._name = name
        self._timeout = timeout
        self._clock = clock
        self._late: dict[Hashable, BackgroundThread] = {}

    def results(self, reads: Mapping[Hashable, Callable[[], T]]) -> list[T]:
        """The results in the order of `reads`. Blocks for up to the timeout."""
        self._late = {key: each for key, each in self._late.items() if not each.done.is_set()}
        found: dict[Hashable, T] = {}
        threads = {
            key: self._start(key, read, found)
            for key, read in reads.items()
            if key not in self._late
        }
        deadline = Deadline.after(self._timeout, self._clock)
        for key, thread in threads.items():
            if not thread.wait(self._clock, deadline):
                self._late[key] = thread
        return [found[key] for key in reads if key in found and key not in self._late]

    def _start(
        self, key: Hashable, read: Callable[[], T], found: dict[Hashable, T]
    ) -> BackgroundThread:
        def work() -> None:
            with suppress(LongwatchError):  # the store does not answer
                found[key] = read()

        thread = BackgroundThread(work, name=self._name, report_errors=True)
        with suppress(RuntimeError):  # no thread left: it is done, without a result
            thread.start()
        return thread
