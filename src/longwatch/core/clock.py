"""Time and waiting, as one thing that is passed in.

Durations are measured on `monotonic()`, leases on `boottime()`, people are shown `wall()`. Code
waits through the clock: a thread with `wait(wakeup, timeout)`, a coroutine with
`await sleep(seconds)`. A fake clock (`longwatch.testing.FakeClock`) can then drive every loop,
lease renewer and watchdog of the product without real time passing.

While the machine is suspended, `monotonic()` and every wait stand still and `boottime()` goes on.
So a suspend is no stall, but it does use up a lease. A wait for a moment of `boottime()` may last
longer than asked: code that acts on such a moment reads `boottime()` when it acts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, Protocol

BOOTTIME_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The system clock that also counts suspend. macOS has no CLOCK_BOOTTIME, but counts it in
CLOCK_MONOTONIC, which is not the clock of `time.monotonic()` there.
"""


class Wakeup:
    """A flag that one side sets and others wait for through a Clock.

    Thread-safe. It stays set until `clear()`. Not for signal handlers, which may not take locks.
    """

    __slots__ = ("_event", "_listeners", "_lock")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Raise the flag, wake every waiter, call every listener (in this thread, outside the
        lock).

        A listener that raises does not keep the others from being called; its error comes out at
        the end.
        """
        with self._lock:
            self._event.set()
            listeners = tuple(self._listeners)
        if listeners:
            _call_each(listeners)

    def clear(self) -> None:
        """Lower the flag; later waits block again."""
        self._event.clear()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have `listener` called on every `set()`, and at once if the flag is up; returns what
        takes it off again.
        """
        with self._lock:
            self._listeners.append(listener)
            already = self._event.is_set()
        if already:
            listener()
        return lambda: self._unsubscribe(listener)

    def block(self, timeout: float | None) -> bool:
        """Wait in real time; for clocks only, everyone else waits through one."""
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
    """Where time comes from and how it is waited for. Every method may be called from any
    thread.
    """

    def monotonic(self) -> float:
        """Seconds that only ever grow and stand still in suspend; differences are durations."""

    def boottime(self) -> float:
        """Seconds that only ever grow and also count suspend, for leases."""

    def wall(self) -> float:
        """Seconds since 1970 UTC, to show to people; it may jump."""

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        """Block this thread until the wakeup is set (True) or the timeout has passed (False);
        None waits for ever.
        """

    async def sleep(self, seconds: float) -> None:
        """Suspend this coroutine for so long; cancelling the task ends it at once."""


class SystemClock:
    """Real time."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(BOOTTIME_CLOCK)

    def wall(self) -> float:
        return time.time()

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        return wakeup.block(timeout if timeout is None else max(timeout, 0.0))

    async def sleep(self, seconds: float) -> None:
        import asyncio  # noqa: PLC0415 - 45 ms that code without a loop need not pay

        await asyncio.sleep(max(seconds, 0.0))
