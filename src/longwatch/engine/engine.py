"""The engine as a service: exchange loop, slots, lease renewer and sweeper over one source. The
package's docstring says who does what.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.claim_source import ClaimSource
from longwatch.engine.drain import DrainState, DrainTransition
from longwatch.engine.engine_run import EngineRun
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.engine.reservations import Reservation
from longwatch.engine.row_life import RowRunner
from longwatch.host.parent_channel import ParentChannel
from longwatch.host.service import Service

__all__ = ["Engine", "EnginePolicy"]


class Engine(Service):
    """Runs the rows of one source.

    `start` opens the slots and begins to claim, `drain` stops taking and hands back what was not
    begun, `resume` undoes that, `stop` drains, waits for what runs, shortly before its deadline
    cancels it, and at the deadline gives it up: then it is False, and another `stop` tries again.
    `runner` is called in a slot's thread. Engines of one process that share an `exclusive_lock`
    leave the process to each other when a row has to run alone. `starts_drained` is called at each
    start: whether to start as after a `drain`.
    """

    def __init__(  # noqa: PLR0913 - a source, a runner, and what they need
        self,
        source: ClaimSource,
        runner: RowRunner,
        *,
        policy: EnginePolicy | None = None,
        name: str = "engine",
        clock: Clock | None = None,
        events: Events | None = None,
        exclusive_lock: ExclusiveLock | None = None,
        parent: ParentChannel | None = None,
        starts_drained: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(name=name, clock=clock)
        self.source = source
        self.policy = policy or EnginePolicy()
        self.events = events or Events()
        self._runner = runner
        self.heartbeat = Heartbeat(clock)
        """Its own: it turns, whatever its slots do."""
        self._exclusive_lock = exclusive_lock or ExclusiveLock()
        self._parent = parent
        self._starts_drained = starts_drained
        self._runs: dict[int, EngineRun] = {}

    @property
    def in_own_thread(self) -> bool:
        run = self._current_run
        return run is not None and run.in_own_thread

    @property
    def draining(self) -> bool:
        """Whether it takes nothing any more, for a while or for good; also when it does not run."""
        run = self._current_run
        return run is None or run.state is not DrainState.RUNNING

    @property
    def held_count(self) -> int:
        """How many rows it has: waiting, running, or done and not settled yet."""
        run = self._current_run
        return 0 if run is None else run.exchange_loop.held_count()

    def slot_heartbeats(self) -> list[Heartbeat]:
        """Those of the slots that work on something: it is as fresh as the stalest of them."""
        run = self._current_run
        return (
            []
            if run is None
            else [
                slot.activity.heartbeat for slot in run.slot_pool.slots if slot.context is not None
            ]
        )

    def heartbeat_age(self) -> float:
        """Seconds since the stalest of them, and of its own, has beaten."""
        return max(beat.elapsed() for beat in (self.heartbeat, *self.slot_heartbeats()))

    def reserve(self, limit: int) -> Reservation | None:
        """Room for up to so many rows, for whoever makes some; None if there is none. From any
        thread.
        """
        run = self._current_run
        return None if run is None else run.exchange_loop.reserve(limit)

    def check_revoked(self) -> None:
        """Rows that it has may be called off: have it compare with the store."""
        run = self._current_run
        if run is not None:
            run.exchange_loop.request_audit(revoked=True)

    def blame_only_stalled(self, threshold: float) -> None:
        """Before the process is ended because of silence: rows whose slot has beaten within so
        long are not to blame for it.
        """
        run = self._current_run
        if run is not None:
            run.blame_only_stalled(threshold)

    def on_polls_exhausted(self, wakeup: Wakeup) -> Callable[[], None]:
        """Have the wakeup set when it has made its `max_polls` and settled what came of them;
        returns what ends that.
        """
        run = self._current_run
        assert run is not None
        return run.exchange_loop.polls_exhausted.subscribe(wakeup.set)

    def drain(self) -> None:
        """Take nothing more, hand back what was not begun; what runs goes on."""
        self._pass_on(DrainTransition.DRAIN)

    def resume(self) -> None:
        """Take rows again after a drain; nothing once it is being stopped."""
        self._pass_on(DrainTransition.RESUME)

    @property
    def _current_run(self) -> EngineRun | None:
        """By pid: a forked child has none of its parent's threads."""
        return self._runs.get(os.getpid())

    def _pass_on(self, trigger: DrainTransition) -> None:
        run = self._current_run
        if run is not None:
            run.apply(trigger)

    def _start(self) -> None:
        self.heartbeat.beat()
        engine_context = EngineContext(
            self.name, self.policy, self._clock, self.events, self.heartbeat, self._parent
        )
        run = self._runs[os.getpid()] = EngineRun(
            self.source, self._runner, self._exclusive_lock, engine_context
        )
        if self._starts_drained():
            run.apply(DrainTransition.DRAIN)
        run.start()

    def _stop(self, deadline: Deadline) -> bool:
        run = self._current_run
        return run is None or run.stop(deadline)
