"""The engine as a service: feeder, slots, keeper and sweeper over one source. The package's
prose says who does what.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.host.parent import ParentLine
from longwatch.host.service import Service
from longwatch.work.drain import Drain, Told
from longwatch.work.offers import Offer
from longwatch.work.policy import EnginePolicy, Surroundings
from longwatch.work.shift import Shift
from longwatch.work.slots import Runner
from longwatch.work.solitude import Solitude
from longwatch.work.source import Source

__all__ = ["Engine", "EnginePolicy"]


class Engine(Service):
    """Runs the rows of one source.

    `start` opens the slots and begins to claim, `drain` stops taking and hands back what was not
    begun, `resume` undoes that, `stop` drains, waits for what runs, shortly before its deadline
    cancels it, and at the deadline gives it up: then it is False, and another `stop` tries again.
    `runner` is called in a slot's thread. Engines of one process that share a `solitude` leave the
    process to each other when a row has to run alone. `drained` is asked at each start: whether to
    start as after a `drain`.
    """

    def __init__(  # noqa: PLR0913 - a source, a runner, and what they need
        self,
        source: Source,
        runner: Runner,
        *,
        policy: EnginePolicy | None = None,
        name: str = "engine",
        clock: Clock | None = None,
        events: Events | None = None,
        solitude: Solitude | None = None,
        parent: ParentLine | None = None,
        drained: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self.source = source
        self.policy = policy or EnginePolicy()
        self.events = events or Events()
        self._runner = runner
        self.heartbeat = Heartbeat(clock)
        """Its own: it turns, whatever its slots do."""
        self._solitude = solitude or Solitude()
        self._parent = parent
        self._drained = drained
        self._shifts: dict[int, Shift] = {}

    @property
    def inside(self) -> bool:
        shift = self._shift
        return shift is not None and shift.inside

    @property
    def draining(self) -> bool:
        """Whether it takes nothing any more, for a while or for good; also when it does not run."""
        shift = self._shift
        return shift is None or shift.state is not Drain.RUNNING

    @property
    def holding(self) -> int:
        """How many rows it has: waiting, running, or done and not settled yet."""
        shift = self._shift
        return 0 if shift is None else shift.feeder.holding()

    def heartbeats(self) -> list[Heartbeat]:
        """Those of the slots that work on something: it is as fresh as the stalest of them."""
        shift = self._shift
        return (
            []
            if shift is None
            else [slot.pulse.heartbeat for slot in shift.crew.slots if slot.context is not None]
        )

    def freshness(self) -> float:
        """Seconds since the stalest of them, and of its own, has beaten."""
        return max(beat.elapsed() for beat in (self.heartbeat, *self.heartbeats()))

    def offer(self, most: int) -> Offer | None:
        """Room for up to so many rows, for whoever makes some; None if there is none. From any
        thread.
        """
        shift = self._shift
        return None if shift is None else shift.feeder.offer(most)

    def doubt(self) -> None:
        """Rows that it has may be called off: have it compare with the store."""
        shift = self._shift
        if shift is not None:
            shift.feeder.doubt(called_off=True)

    def excuse_the_fresh(self, after: float) -> None:
        """Before the process is ended because of silence: rows whose slot has beaten within so
        long are not to blame for it.
        """
        shift = self._shift
        if shift is not None:
            shift.excuse_the_fresh(after)

    def wait_exhausted(self, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set when it has made its `polls` and settled what came of them;
        returns what ends that.
        """
        shift = self._shift
        assert shift is not None
        return shift.feeder.exhausted.listen(wakeup.set)

    def drain(self) -> None:
        """Take nothing more, hand back what was not begun; what runs goes on."""
        self._pass_on(Told.DRAIN)

    def resume(self) -> None:
        """Take rows again after a drain; nothing once it is being stopped."""
        self._pass_on(Told.RESUME)

    @property
    def _shift(self) -> Shift | None:
        """By pid: a forked child has none of its parent's threads."""
        return self._shifts.get(os.getpid())

    def _pass_on(self, told: Told) -> None:
        shift = self._shift
        if shift is not None:
            shift.tell(told)

    def _start(self) -> None:
        self.heartbeat.beat()
        around = Surroundings(
            self.name, self.policy, self._clock, self.events, self.heartbeat, self._parent
        )
        shift = self._shifts[os.getpid()] = Shift(self.source, self._runner, self._solitude, around)
        if self._drained():
            shift.tell(Told.DRAIN)
        shift.begin()

    def _stop(self, deadline: Deadline) -> bool:
        shift = self._shift
        return shift is None or shift.end(deadline)
