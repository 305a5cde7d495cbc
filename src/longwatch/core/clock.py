"""Clocks: time and waiting behind one interface that is passed in.

Durations are measured on `monotonic()`, leases on `boottime()`, people are shown `wall()`. Code
waits through the clock: a thread with `wait(wakeup, timeout)`, a coroutine with `await
sleep(seconds)`. So a fake clock (`longwatch.testing.FakeClock`) can drive every loop, lease renewer
and watchdog of the product without real time passing.

While the machine is suspended, `monotonic()` and every wait stand still and `boottime()` continues.
So a suspend is no stall, but it does use up a lease. A wait for a moment of `boottime()` may last
longer than requested: code that acts on such a moment reads `boottime()` when it acts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

BOOTTIME_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The system clock that also counts suspend.

macOS has no CLOCK_BOOTTIME. Its CLOCK_MONOTONIC counts suspend, and is not the clock of
`time.monotonic()` there.
"""


class Wakeup:
    """A flag that one thread sets and others wait for through a Clock.

    Thread-safe. It stays set until `clear()`. Not for signal handlers, which must not take locks.
    """

    __slots__ = ("_event", "_listeners", "_lock")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Set the flag, wake every waiter, and call every listener in this thread, outside the
        lock.

        A listener that raises does not stop the others from being called; its error is raised at
        the end.
        """
        with self._lock:
            self._event.set()
            listeners = tuple(self._listeners)
        if listeners:
            _call_each(listeners)

    def hint(self) -> None:
        """Report that another process may have made work. Sets the flag; a subclass may ignore some
        of many hints, because other processes get them too.
        """
        self.set()

    def poll(self) -> None:
        """Report that a wake interval has passed. Sets the flag; a subclass that polls by itself
        may ignore it.
        """
        self.set()

    def clear(self) -> None:
        """Clear the flag; later waits block again."""
        self._event.clear()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on every `set()`, and at once if the flag is set; return a function that
        removes it.
        """
        with self._lock:
            self._listeners.append(listener)
            already = self._event.is_set()
        if already:
            listener()
        return lambda: self._unsubscribe(listener)

    def block(self, timeout: float | None) -> bool:
        """Wait in real time. Only for implementations of Clock; other code waits
        through a clock.
        """
        return self._event.wait(timeout)

    def _unsubscribe(self, listener: Callable[[], None]) -> None:
        with self._lock:
            if listener in self._listeners:
                self._listeners.remove(listener)


def _call_each(listeners: tuple[Callable[[], None], ...]) -> None:
    with ExitStack() as calls:
        for listener in reversed(listeners):
            calls.callback(listener)


class Clock(Protocol):
    """The source of time, and how to wait for it. Thread-safe."""

    def monotonic(self) -> float:
        """Return seconds that never decrease and stand still in suspend; differences
        are durations.
        """

    def boottime(self) -> float:
        """Return seconds that never decrease and also count suspend, for leases."""

    def wall(self) -> float:
        """Return seconds since 1970 UTC, to show to people; it may jump."""

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        """Block this thread until the wakeup is set (True) or the timeout has passed (False).

        None waits for ever.
        """

    async def sleep(self, seconds: float) -> None:
        """Suspend this coroutine for this time; cancelling the task ends it at once."""


class SystemClock:
    """The system's clocks, and waits in real time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(BOOTTIME_CLOCK)

    def wall(self) -> float:
        return time.time()

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        return wakeup.block(timeout if timeout is None else max(timeout, 0.0))

    async def sleep(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - takes 45 ms, needed only by code with a loop

        await asyncio.sleep(max(seconds, 0.0))
