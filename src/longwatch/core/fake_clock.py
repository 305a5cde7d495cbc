"""A clock whose time moves only when a test says so, for threads and coroutines alike."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from longwatch.core.clock import Wakeup

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class _Parked:
    """One waiter: when it is due, and how it is woken."""

    __slots__ = ("due", "wake")

    def __init__(self, due: float, wake: Callable[[], None]) -> None:
        self.due = due
        self.wake = wake


class FakeClock:
    """Time stands still until `advance` moves it.

    A waiter is *parked* while it is inside `wait` or `sleep`. `advance` walks from one due time to the next, and after each lets
    the woken ones run until as many are parked as are expected; so a loop that ticks every 10 s ticks ten times in
    `advance(100)`, and when `advance` returns it has done its work.
    """

    def __init__(self, *, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._parked: set[_Parked] = set()
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        """Park this thread until the wakeup is set or time was advanced past the timeout."""
        gate = threading.Event()
        waiter = self._park(timeout, gate.set)
        unlisten = wakeup.listen(lambda: self._release(waiter))
        gate.wait()
        unlisten()
        return wakeup.is_set()

    async def sleep(self, seconds: float) -> None:
        """Park this coroutine until time was advanced past `seconds`."""
        import asyncio  # noqa: PLC0415 - as in SystemClock

        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        waiter = self._park(seconds, lambda: _wake_on(loop, done.set))
        try:
            await done.wait()
        finally:
            self._release(waiter)

    @property
    def parked(self) -> int:
        """How many threads and coroutines wait on this clock now."""
        with self._changed:
            return len(self._parked)

    def await_parked(self, count: int, *, patience: float = 10.0) -> None:
        """Return when exactly `count` waiters are parked; AssertionError after `patience` real seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._parked) == count, patience):
                raise AssertionError(f"expected {count} parked waiters, there are {len(self._parked)}")

    def advance(self, seconds: float, *, parked: int | None = None) -> None:
        """Move time forward; returns when `parked` waiters (default: as many as before) are parked again."""
        expected = self.parked if parked is None else parked
        target = self._monotonic + seconds
        while (due := self._next_due()) <= target:
            self._move_to(due)
            self._wake_due()
            self.await_parked(expected)
        self._move_to(target)
        self.await_parked(expected)

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; durations are untouched."""
        self._wall += seconds

    def _park(self, timeout: float | None, wake: Callable[[], None]) -> _Parked:
        due = inf if timeout is None else self._monotonic + max(timeout, 0.0)
        waiter = _Parked(due, wake)
        if due <= self._monotonic:
            wake()
            return waiter
        with self._changed:
            self._parked.add(waiter)
            self._changed.notify_all()
        return waiter

    def _release(self, waiter: _Parked) -> None:
        with self._changed:
            self._parked.discard(waiter)
            self._changed.notify_all()
        waiter.wake()

    def _next_due(self) -> float:
        with self._changed:
            return min((waiter.due for waiter in self._parked), default=inf)

    def _move_to(self, moment: float) -> None:
        step = moment - self._monotonic
        self._monotonic += step
        self._wall += step

    def _wake_due(self) -> None:
        with self._changed:
            due = [waiter for waiter in self._parked if waiter.due <= self._monotonic]
            self._parked.difference_update(due)
        for waiter in due:
            waiter.wake()


def _wake_on(loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
    """Call `wake` on the loop's thread; a loop that is closed has no waiters left."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(wake)
