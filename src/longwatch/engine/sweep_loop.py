"""The sweeper of an engine: one thread that sweeps while the leases of the engine are trusted.

Each round calls the sweeper that the source has made for this engine. In a store that many machines
share most rounds make no call to the store, because the engines take turns (`store.sweep_turns`).

While the leases are not trusted, the engine leaves the sweeps to others. Its own rows would be the
first to be reclaimed, with finished work that could not be settled. The lease renewer renews them
as soon as the store replies.

Under a parent, the engine that sweeps its queue reports the free suspects. Others report rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.jitter import random_fraction
from longwatch.engine.claim_source import ClaimSource, EngineSweeper, SweepRound, emit_given_up
from longwatch.engine.drain import DrainMachine, DrainState
from longwatch.engine.policy import MAX_SUSPECT_PROCESSES, EngineContext
from longwatch.engine.source_call import SourceCall
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.parent_channel import ParentChannel
from longwatch.store.claims import RowSelection

_JITTER = 0.2
_SUSPECTS_INTERVAL = 0.9
"""Seconds between two counts of suspects by the engine that sweeps the queue."""
_FOLLOWER_SUSPECTS_INTERVAL = 30.0
"""The same for other engines, whose parents may have room for suspects too."""


class SweepLoop:
    """The sweeper thread of one engine run. `may_sweep` returns whether its leases
    are trusted.
    """

    def __init__(
        self,
        source: ClaimSource,
        sweeper: EngineSweeper,
        drain: DrainMachine,
        engine_context: EngineContext,
        *,
        may_sweep: Callable[[], bool],
    ) -> None:
        self._source = source
        self._sweeper = sweeper
        self._drain = drain
        self._context = engine_context
        self._may_sweep = may_sweep
        self._clock = engine_context.clock
        self._on_given_up = emit_given_up(engine_context.events)
        self._sweep_call = SourceCall("sweep", engine_context)
        self._suspects_call = SourceCall("count_suspects", engine_context)
        self._suspects_counted_at = -inf
        self._next_in: float | None = None
        self._wakeup = Wakeup()
        self._is_stopping = False
        self._thread = BackgroundThread(
            self._loop, name=f"{engine_context.name}-sweeper", report_errors=True
        )

    @property
    def in_own_thread(self) -> bool:
        return self._thread.in_own_thread

    def start(self) -> None:
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread, which gives its turns up. Returns False if the deadline passes first."""
        self._is_stopping = True
        self._wakeup.set()
        return self._thread.wait(self._clock, deadline)

    def _loop(self) -> None:
        while not self._is_stopping:
            self._next_in = None
            self._run_round()
            self._clock.wait(self._wakeup, self._delay())
        self._sweeper.close()

    def _delay(self) -> float:
        interval = self._context.policy.sweep_interval * (1 - _JITTER * random_fraction())
        return interval if self._next_in is None else min(interval, self._next_in)

    def _run_round(self) -> None:
        swept = SweepRound(leads=False)
        if self._may_sweep():
            swept = self._sweep_call.run(lambda: self._sweeper.sweep(self._on_given_up)) or swept
        else:
            self._sweeper.pause()
        self._next_in = swept.next_in
        if self._context.policy.selection is RowSelection.ORDINARY:
            self._report_suspects(swept)

    def _report_suspects(self, swept: SweepRound) -> None:
        """Report to the parent how many suspects are free, if any: after a sweep that changed rows,
        and from time to time. The next report replaces a lost one.
        """
        context = self._context
        now, parent = self._clock.monotonic(), context.parent
        interval = _SUSPECTS_INTERVAL if swept.leads else _FOLLOWER_SUSPECTS_INTERVAL
        is_due = swept.changed or now - self._suspects_counted_at >= interval
        if parent is None or not is_due or self._drain.state is not DrainState.RUNNING:
            return
        self._suspects_counted_at = now
        self._suspects_call.run(lambda: self._send_suspects(parent))

    def _send_suspects(self, parent: ParentChannel) -> None:
        if count := self._source.count_suspects(limit=MAX_SUSPECT_PROCESSES):
            parent.try_send(
                "suspects", engine=self._context.name, source=self._source.locator(), count=count
            )
