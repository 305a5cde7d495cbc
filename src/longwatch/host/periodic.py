"""The only timer loop of the product: something done every so often, in a thread or on the event
loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite

from longwatch.core.chance import fraction
from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events, PeriodicFailed
from longwatch.host.errand import Errand
from longwatch.host.service import Service

Spread = Callable[[], float]
"""Gives a number from 0 to 1, another one each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """When: every `interval` seconds, the first time at once or (`immediately=False`) after one
    delay.

    Jitter is a fraction and only ever shortens: 0.2 gives delays of 0.8 to 1.0 intervals, so that a
    promise of "every 5 s" holds.
    """

    interval: float
    jitter: float = 0.0
    immediately: bool = True

    def __post_init__(self) -> None:
        if not (isfinite(self.interval) and self.interval > 0):
            raise ValueError(f"interval must be a number of seconds above 0, not {self.interval}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be a fraction in 0…1, not {self.jitter}")

    def delay(self, *, spread: float) -> float:
        """From the beginning of one round to the beginning of the next; a spread of 0 is the
        whole interval, 1 the shortest.
        """
        return self.interval * (1 - self.jitter * spread)

    def first(self, *, spread: float) -> float:
        """What to wait before the first round."""
        return 0.0 if self.immediately else self.delay(spread=spread)

    def pause(self, *, spread: float, spent: float) -> float:
        """What is left to wait after a round that took `spent`: nothing if it overran; rounds
        that were missed are not made up.
        """
        return max(self.delay(spread=spread) - spent, 0.0)


class _Rounds:
    """One round after another: how long to wait before each, and what to do about one that
    raises.
    """

    def __init__(
        self, cadence: Cadence, *, name: str, clock: Clock, events: Events | None, spread: Spread
    ) -> None:
        self._cadence = cadence
        self._name = name
        self._clock = clock
        self._events = events or Events()
        self._spread = spread
        self._failures = 0
        self.pause = cadence.first(spread=spread())

    @contextmanager
    def one(self) -> Iterator[None]:
        """Around the work of one round: contains what it raises, and sets the pause that
        follows.
        """
        began = self._clock.monotonic()
        try:
            yield
            self._failures = 0
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a round that fails must not end the rounds; the event tells
            self._failures += 1
            self._events.emit(
                PeriodicFailed(
                    task=self._name,
                    error=f"{type(error).__name__}: {error}",
                    failures=self._failures,
                )
            )
        self.pause = self._cadence.pause(
            spread=self._spread(), spent=self._clock.monotonic() - began
        )


class Periodic(Service):
    """Does `work` every interval in a daemon thread.

    A round never overlaps itself. One that raises is told as PeriodicFailed (`failures`: how many
    in a row) and the next comes as usual. `stop` ends the wait at once; for a round that is running
    it waits as long as it has time.
    """

    def __init__(  # noqa: PLR0913 - one task and its surroundings, each optional
        self,
        work: Callable[[], object],
        cadence: Cadence,
        *,
        name: str,
        clock: Clock | None = None,
        events: Events | None = None,
        spread: Spread = fraction,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self._work = work
        self._cadence = cadence
        self._events = events
        self._spread = spread
        self._nudge = Wakeup()
        self._ending = False
        self._errand: Errand | None = None

    @property
    def inside(self) -> bool:
        return self._errand is not None and self._errand.inside

    def wake(self) -> None:
        """Have a round now instead of at its time; during a round: one more right after it.
        Nothing when it is not started.
        """
        self._nudge.set()

    def _start(self) -> None:
        self._nudge = Wakeup()
        self._ending = False
        self._errand = Errand(self._turn, name=self.name, loud=True)
        self._errand.start()

    def _stop(self, deadline: Deadline) -> bool:
        self._ending = True
        self._nudge.set()
        return self._errand is None or self._errand.wait(self._clock, deadline)

    def _turn(self) -> None:
        rounds = _Rounds(
            self._cadence,
            name=self.name,
            clock=self._clock,
            events=self._events,
            spread=self._spread,
        )
        while not self._rest(rounds.pause):
            with rounds.one():
                self._work()

    def _rest(self, pause: float) -> bool:
        """Wait for the next round; True when there is none."""
        self._clock.wait(self._nudge, pause)
        self._nudge.clear()
        return self._ending


async def every(  # noqa: PLR0913 - as for Periodic
    cadence: Cadence,
    work: Callable[[], Awaitable[object]],
    *,
    name: str,
    clock: Clock | None = None,
    events: Events | None = None,
    spread: Spread = fraction,
) -> None:
    """The same on the event loop: awaits `work()` every interval until it returns False, or its
    task is cancelled at any time.
    """
    clock = clock or SystemClock()
    rounds = _Rounds(cadence, name=name, clock=clock, events=events, spread=spread)
    while True:
        await clock.sleep(rounds.pause)
        with rounds.one():
            if await work() is False:
                return
