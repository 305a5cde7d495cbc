"""A clock for tests whose time moves only by `advance`, for threads and coroutines alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING

from longwatch.core.clock import Wakeup

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class _Waiter:
    """One waiter: when it is due, how to wake it, and how to see that it has run since."""

    __slots__ = ("due", "has_run", "thread", "wake")

    def __init__(self, wake: Callable[[], None], has_run: Callable[[], bool] | None = None) -> None:
        self.due = inf
        self.wake = wake
        self.has_run = has_run
        self.thread = threading.current_thread()


class FakeClock:
    """A clock whose time stands still until `advance` moves it.

    A waiter is *parked* while it is inside `wait` or `sleep`. `advance` goes from one due time to
    the next. After each, it lets the woken waiters run until the expected number is parked. So a
    loop that ticks every 10 s ticks ten times in `advance(100)`, and has done its work when
    `advance` returns. Do not call it on the thread of an event loop whose coroutines it should
    wake: they could not run.
    """

    def __init__(self, *, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._suspended = 0.0
        self._parked: list[_Waiter] = []
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        return self._monotonic

    def boottime(self) -> float:
        return self.monotonic() + self._suspended

    def wall(self) -> float:
        return self._wall

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        """Park this thread until the wakeup is set or time is advanced past the timeout."""
        gate, was_set = threading.Event(), threading.Event()
        waiter = _Waiter(gate.set)

        def on_set() -> None:
            was_set.set()
            self._unpark(waiter)
            gate.set()

        unsubscribe = wakeup.subscribe(on_set)
        self._park(waiter, timeout, unless=was_set.is_set)
        gate.wait()
        unsubscribe()
        return was_set.is_set()

    async def sleep(self, seconds: float) -> None:
        """Park this coroutine until time is advanced past `seconds`."""
        import asyncio  # noqa: PLC0415 - as in SystemClock

        loop = asyncio.get_running_loop()
        done, turned = asyncio.Event(), threading.Event()
        waiter = _Waiter(
            lambda: _wake_on_loop(loop, done.set, turned.set),
            lambda: turned.is_set() or not loop.is_running(),
        )
        self._park(waiter, seconds)
        try:
            await done.wait()
        finally:
            self._unpark(waiter)

    @property
    def parked(self) -> int:
        """The number of threads and coroutines that wait on this clock now."""
        with self._changed:
            return len(self._parked)

    def await_parked(self, count: int, *, timeout: float = 10.0) -> None:
        """Wait until exactly `count` waiters are parked; raises AssertionError after `timeout` real
        seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._parked) == count, timeout):
                raise AssertionError(
                    f"expected {count} parked waiters, there are {len(self._parked)}"
                )

    def advance(self, seconds: float, *, parked: int | None = None) -> None:
        """Move time forward; return when `parked` waiters are parked again.

        By default that is the number from before, at every step. A given number must be reached at
        the end only: in between, waiters may end or begin. Each step lets the woken waiters run
        until they wait again or have ended.
        """
        if seconds < 0:
            raise ValueError(f"time only moves forward, not by {seconds} s")
        before, target = self.parked, self._monotonic + seconds
        while (due := self._next_due()) <= target:
            woken = self._wake_due(due)
            if parked is None:
                self.await_parked(before)
            else:
                self._let_run(woken)
        self._move_to(target)
        self.await_parked(before if parked is None else parked)

    def suspend(self, seconds: float) -> None:
        """Simulate a suspend: boottime and wall advance, monotonic does not, and no waiter is
        woken.
        """
        if seconds < 0:
            raise ValueError(f"time only moves forward, not by {seconds} s")
        with self._changed:
            self._suspended += seconds
            self._wall += seconds

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an operator or NTP would; durations do
        not change.
        """
        self._wall += seconds

    def _park(
        self, waiter: _Waiter, timeout: float | None, *, unless: Callable[[], bool] = lambda: False
    ) -> None:
        with self._changed:
            waiter.due = inf if timeout is None else self._monotonic + max(timeout, 0.0)
            if waiter.due <= self._monotonic or unless():
                waiter.wake()
            else:
                self._parked.append(waiter)
                self._changed.notify_all()

    def _unpark(self, waiter: _Waiter) -> None:
        with self._changed:
            if waiter in self._parked:
                self._parked.remove(waiter)
                self._changed.notify_all()

    def _next_due(self) -> float:
        with self._changed:
            return min((waiter.due for waiter in self._parked), default=inf)

    def _move_to(self, moment: float) -> None:
        with self._changed:
            self._wall += moment - self._monotonic
            self._monotonic = moment

    def _wake_due(self, moment: float) -> list[_Waiter]:
        with self._changed:
            self._move_to(moment)
            woken = [waiter for waiter in self._parked if waiter.due <= moment]
            self._parked = [waiter for waiter in self._parked if waiter.due > moment]
        for waiter in woken:
            waiter.wake()
        return woken

    def _let_run(self, woken: list[_Waiter], *, timeout: float = 1.0) -> None:
        """Let the woken waiters do their work; after `timeout` real seconds, do not wait for
        blocked ones.
        """
        until = time.monotonic() + timeout
        with self._changed:
            while not all(map(self._has_run, woken)) and time.monotonic() < until:
                self._changed.wait(0.001)  # the end of a thread notifies nothing

    def _has_run(self, waiter: _Waiter) -> bool:
        if waiter.has_run is not None:
            return waiter.has_run()
        return not waiter.thread.is_alive() or any(
            waiter.thread is other.thread for other in self._parked
        )


def _wake_on_loop(
    loop: AbstractEventLoop,
    wake: Callable[[], None],
    turned: Callable[[], None],
    *,
    turns: int = 20,
) -> None:
    """Call `wake` on the loop, then `turned` after so many loop turns that the woken code has run.

    Does nothing on a closed loop, which has no waiters left.
    """

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        else:
            turned()

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(wake)
        loop.call_soon_threadsafe(turn, turns)
