"""The engine as a service: exchange loop, slots, lease renewer and sweeper over one source. The
docstring of the package describes its parts.
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

    `start` starts the slots and begins to claim. `drain` stops claiming and releases the waiting
    rows, and `resume` undoes that. `stop` drains, waits for running rows, and cancels them shortly
    before its deadline. At the deadline it returns False, and another `stop` tries again.

    `runner` is called in a thread of the slots. Engines of one process that share an
    `exclusive_lock` pause for each other when a row has to run alone. `starts_drained` is called at
    each start, and returns whether to start drained.
    """

    def __init__(  # noqa: PLR0913 - a source, a runner and their environment
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
        """The heartbeat of the exchange loop, independent of the slots."""
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
        """Whether the engine claims no rows: it drains, stops, or does not run."""
        run = self._current_run
        return run is None or run.state is not DrainState.RUNNING

    @property
    def held_count(self) -> int:
        """How many rows it holds: waiting, running, or finished and not yet settled."""
        run = self._current_run
        return 0 if run is None else run.exchange_loop.held_count()

    def slot_heartbeats(self) -> list[Heartbeat]:
        """Return the heartbeats of the busy slots."""
        run = self._current_run
        return (
            []
            if run is None
            else [
                slot.activity.heartbeat for slot in run.slot_pool.slots if slot.context is not None
            ]
        )

    def heartbeat_age(self) -> float:
        """Return the seconds since the oldest heartbeat of the exchange loop and the busy slots."""
        return max(beat.elapsed() for beat in (self.heartbeat, *self.slot_heartbeats()))

    def reserve(self, limit: int) -> Reservation | None:
        """Reserve capacity for up to `limit` rows, for code that inserts rows. Returns None if
        there is none. Thread-safe.
        """
        run = self._current_run
        return None if run is None else run.exchange_loop.reserve(limit)

    def check_revoked(self) -> None:
        """Compare the held rows with the store, because another process may have revoked some. Does
        nothing while the engine holds none and claims none.
        """
        run = self._current_run
        if run is not None and run.exchange_loop.may_hold_rows():
            run.exchange_loop.request_audit(revoked=True)

    def blame_only_stalled(self, threshold: float) -> None:
        """Exempt rows whose slot has sent a heartbeat in the last `threshold` seconds from blame,
        before the process is ended because it stalled.
        """
        run = self._current_run
        if run is not None:
            run.blame_only_stalled(threshold)

    def describe_tasks(self) -> str:
        """Return the stacks of the coroutines that run, for people; empty without any."""
        run = self._current_run
        return "" if run is None else run.slot_pool.coroutine_runner.describe_tasks()

    def on_polls_exhausted(self, wakeup: Wakeup) -> Callable[[], None]:
        """Set the wakeup when all `max_polls` are made and their rows are settled. Returns a
        function that ends this.
        """
        run = self._current_run
        assert run is not None
        return run.exchange_loop.polls_exhausted.subscribe(wakeup.set)

    def drain(self) -> None:
        """Claim nothing more and release the waiting rows. Running rows go on."""
        self._pass_on(DrainTransition.DRAIN)

    def resume(self) -> None:
        """Claim rows again after a drain. Does nothing once the engine is being stopped."""
        self._pass_on(DrainTransition.RESUME)

    @property
    def _current_run(self) -> EngineRun | None:
        """The run of this process, by pid: a forked child has none of its parent's threads."""
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
