"""Repeats work at an interval, in a thread (`Periodic`) or on the event loop (`run_every`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.host import PeriodicTaskFailed
from longwatch.core.jitter import random_fraction
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.service import Service

RandomFraction = Callable[[], float]
"""Returns a random number from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When to run: every `interval` seconds, first at once or (`immediately=False`) after one
    delay.

    `jitter` is a fraction and only ever shortens the delay: 0.2 gives delays of 0.8 to 1.0
    intervals. So a promise of "every 5 s" holds.
    """

    interval: float
    jitter: float = 0.0
    immediately: bool = True

    def __post_init__(self) -> None:
        if not (isfinite(self.interval) and self.interval > 0):
            raise ValueError(f"interval must be a number of seconds above 0, not {self.interval}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be a fraction in 0…1, not {self.jitter}")

    def delay(self, *, fraction: float) -> float:
        """Return the time between the starts of two rounds; `fraction` 0 is the whole interval, 1
        the shortest.
        """
        return self.interval * (1 - self.jitter * fraction)

    def first_delay(self, *, fraction: float) -> float:
        """Return the delay before the first round."""
        return 0.0 if self.immediately else self.delay(fraction=fraction)

    def next_delay(self, *, fraction: float, spent: float) -> float:
        """Return the delay after a round that took `spent` seconds; 0 if it overran.

        Missed rounds are not made up.
        """
        return max(self.delay(fraction=fraction) - spent, 0.0)


class _Rounds:
    """Computes the delay before each round and handles rounds that raise."""

    def __init__(
        self,
        cadence: Cadence,
        *,
        name: str,
        clock: Clock,
        events: Events | None,
        fraction: RandomFraction,
    ) -> None:
        self._cadence = cadence
        self._name = name
        self._clock = clock
        self._events = events or Events()
        self._fraction = fraction
        self._failures = 0
        self.delay = cadence.first_delay(fraction=fraction())

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Run one round within the block: emits its error, and sets the next delay."""
        began = self._clock.monotonic()
        try:
            yield
            self._failures = 0
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a failed round must not end the loop; an event reports it
            self._failures += 1
            self._events.emit(
                PeriodicTaskFailed(
                    task=self._name,
                    error=describe_error(error),
                    failures=self._failures,
                )
            )
        self.delay = self._cadence.next_delay(
            fraction=self._fraction(), spent=self._clock.monotonic() - began
        )


class Periodic(Service):
    """Calls `work` every interval in a daemon thread.

    Rounds never overlap. A round that raises is emitted as PeriodicTaskFailed (`failures`: how many
    in a row), and the next one comes as usual. `stop` ends a delay at once, and waits for a running
    round until its deadline.
    """

    def __init__(  # noqa: PLR0913 - each is optional and has its own meaning
        self,
        work: Callable[[], object],
        cadence: Cadence,
        *,
        name: str,
        clock: Clock | None = None,
        events: Events | None = None,
        fraction: RandomFraction = random_fraction,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self._work = work
        self._cadence = cadence
        self._events = events
        self._fraction = fraction
        self._wakeup = Wakeup()
        self._stopping = False
        self._thread: BackgroundThread | None = None

    @property
    def in_own_thread(self) -> bool:
        return self._thread is not None and self._thread.in_own_thread

    def wake(self) -> None:
        """Start a round now, or one more right after a running one. Does nothing if not started."""
        self._wakeup.set()

    def _start(self) -> None:
        self._wakeup = Wakeup()
        self._stopping = False
        self._thread = BackgroundThread(self._run, name=self.name, report_errors=True)
        self._thread.start()

    def _stop(self, deadline: Deadline) -> bool:
        self._stopping = True
        self._wakeup.set()
        return self._thread is None or self._thread.wait(self._clock, deadline)

    def _run(self) -> None:
        rounds = _Rounds(
            self._cadence,
            name=self.name,
            clock=self._clock,
            events=self._events,
            fraction=self._fraction,
        )
        while not self._wait_for_round(rounds.delay):
            with rounds.one_round():
                self._work()

    def _wait_for_round(self, delay: float) -> bool:
        """Wait for the next round; True if it is stopped."""
        self._clock.wait(self._wakeup, delay)
        self._wakeup.clear()
        return self._stopping


async def run_every(  # noqa: PLR0913 - as for Periodic
    cadence: Cadence,
    work: Callable[[], Awaitable[object]],
    *,
    name: str,
    clock: Clock | None = None,
    events: Events | None = None,
    fraction: RandomFraction = random_fraction,
) -> None:
    """Await `work()` every interval on the event loop, until it returns False.

    Can be cancelled at any time.
    """
    clock = clock or SystemClock()
    rounds = _Rounds(cadence, name=name, clock=clock, events=events, fraction=fraction)
    while True:
        await clock.sleep(rounds.delay)
        with rounds.one_round():
            if await work() is False:
                return
