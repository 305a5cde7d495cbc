"""Ends a process whose stop does not end.

A stop may wait for a store, a disk or a thread that does not answer. `ForcedEnd` limits the time of
the whole stop, including the closing of the store and of the logs. At the limit, or at once with
`now`, it makes the last calls and ends the process with code 1.

Invariants
    1. The first thread makes the last calls, once. Other threads wait for the end.
    2. The process ends even if a last call raises. A call that does not return costs
       `LAST_SECONDS`.
    3. No thread is joined and no finaliser runs. Unstored work was never stored: its lease lapses,
       and the next process repeats it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.host.background_thread import BackgroundThread

EXIT_CODE = 1
"""The exit code of a stop that left something behind."""
LAST_SECONDS = 5.0
"""Seconds that each last call may take."""


class ForcedEnd:
    """Ends this process, now or after a time. Every method may be called from any thread."""

    def __init__(self, last_calls: Sequence[Callable[[], object]], *, clock: Clock) -> None:
        self._last_calls = last_calls
        self._clock = clock
        self._once = threading.Lock()

    def within(self, seconds: float) -> None:
        """End the process after so many seconds, unless it has ended by itself. Returns at once."""

        def wait() -> None:
            self._clock.wait(Wakeup(), seconds)
            self.now()

        BackgroundThread(wait, name="longwatch-forced-end").start()

    def now(self) -> NoReturn:
        """Make the last calls in turn, and end the process."""
        if not self._once.acquire(blocking=False):
            self._clock.wait(Wakeup())
        try:
            for call in self._last_calls:
                thread = BackgroundThread(call, name="longwatch-last-call")
                thread.start(inline_fallback=True)
                thread.wait(self._clock, Deadline.after(LAST_SECONDS, self._clock))
        finally:
            os._exit(EXIT_CODE)
