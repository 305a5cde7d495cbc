"""The slots of one engine: N threads, and the queue of rows that wait for them."""

from __future__ import annotations

import queue
from collections.abc import Callable
from functools import partial

from longwatch.core.deadline import Deadline
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import CoroutineRunner
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.row_life import BeginGate, FinishedRow, RowRunner, Slot, released
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.beatpage import BeatPage

HandIn = Callable[[FinishedRow], ClaimedRow | None]


class SlotPool:
    """Runs the rows that are put into `waiting`, in that order. Thread-safe.

    Every row leaves through `hand_in`, called in the thread that finished or released the row. It
    may return a claimed row, which that slot runs next, ahead of the queue.
    """

    def __init__(
        self,
        runner: RowRunner,
        lease_trust: LeaseTrust,
        page: BeatPage,
        engine_context: EngineContext,
        *,
        hand_in: HandIn,
    ) -> None:
        name, count = engine_context.name, engine_context.policy.slots
        self.gate = BeginGate(lease_trust)
        self.coroutine_runner = CoroutineRunner(name=f"{name}-async", clock=engine_context.clock)
        self.waiting: queue.SimpleQueue[ClaimedRow | None] = queue.SimpleQueue()
        self.slots = [
            Slot(number, runner, self.coroutine_runner, self.gate, page, engine_context)
            for number in range(count)
        ]
        self._threads = [
            BackgroundThread(
                partial(self._loop, slot), name=f"{name}-slot-{number}", report_errors=True
            )
            for number, slot in enumerate(self.slots)
        ]
        self._started_threads: list[BackgroundThread] = []
        self._hand_in = hand_in
        self._clock = engine_context.clock

    @property
    def in_own_thread(self) -> bool:
        return self.coroutine_runner.in_own_thread or any(
            thread.in_own_thread for thread in self._threads
        )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
            self._started_threads.append(thread)

    def stop(self, deadline: Deadline) -> bool:
        """End the threads that were started. Returns False if one did not end in time."""
        for _ in self._started_threads:
            self.waiting.put(None)
        ended = [thread.wait(self._clock, deadline) for thread in self._started_threads]
        return self.coroutine_runner.stop(deadline) and all(ended)

    def _loop(self, slot: Slot) -> None:
        live, hand_in, take = slot.live, self._hand_in, self.waiting.get
        while (claimed := take()) is not None:
            current: ClaimedRow | None = claimed
            while current is not None:
                current = hand_in(live(current))

    # --- for the exchange loop, the fetcher and the lease renewer ---

    @property
    def is_idle(self) -> bool:
        """Whether no row waits or runs."""
        return self.waiting.empty() and not any(slot.context is not None for slot in self.slots)

    def running(self) -> list[RowContext]:
        """Return the contexts of the rows that run now."""
        return [context for slot in self.slots if (context := slot.context) is not None]

    def is_stuck(self, seconds: float) -> bool:
        """Return whether every slot is busy and no row has begun for that many seconds."""
        last_begin_at = max(slot.last_begin_at for slot in self.slots)
        return self._clock.monotonic() - last_begin_at >= seconds and len(self.running()) == len(
            self.slots
        )

    def stale(self, older_than: float) -> list[RowContext]:
        """Return the contexts of running rows whose code has sent no heartbeat for `older_than`
        seconds.
        """
        return [
            context
            for slot in self.slots
            if (context := slot.context) and slot.activity.heartbeat.elapsed() > older_than
        ]

    def release_waiting(self, *, keep: int = 0) -> None:
        """Hand in the waiting rows as released. The first `keep` stay in the queue."""
        waiting = self._take_waiting()
        for claimed in waiting[:keep]:
            self.waiting.put(claimed)
        for claimed in waiting[keep:]:
            self._hand_in(released(claimed))

    def blame_only_stalled(self, threshold: float) -> None:
        """Exempt rows whose slot has sent a heartbeat in the last `threshold` seconds from blame:
        the process is about to be ended because other slots stalled.
        """
        for slot in self.slots:
            if slot.context is not None and slot.activity.heartbeat.elapsed() <= threshold:
                slot.activity.end()

    def lose_lease(self, context: RowContext, *, is_blameless: bool) -> None:
        """Mark the lease of a running row as lost.

        `is_blameless`: the row is not to blame if the process dies from now on. Otherwise its lease
        lapses because it sends no heartbeat, and the beat page says so.
        """
        context.lose_lease()
        for slot in self.slots:
            if slot.context is context:
                if is_blameless:
                    slot.activity.end()
                else:
                    slot.activity.mark_silent(context.claimed.claim.seq)

    def _take_waiting(self) -> list[ClaimedRow]:
        waiting: list[ClaimedRow] = []
        while True:
            try:
                claimed = self.waiting.get_nowait()
            except queue.Empty:
                return waiting
            if claimed is not None:
                waiting.append(claimed)
