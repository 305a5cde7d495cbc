"""The slots of one engine, and the queue of rows that wait for them.

`ThreadSlotPool` has a thread for each slot. `async_slot_pool.py` has the pool of engines whose user
code is `async def`.
"""

from __future__ import annotations

import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

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


class WaitingRows(Protocol):
    """The rows that wait for a slot, in order. What a pool uses of a `queue.SimpleQueue`. None is
    no row, but ends a thread.
    """

    def put(self, item: ClaimedRow | None, /) -> None: ...

    def get_nowait(self) -> ClaimedRow | None: ...

    def empty(self) -> bool: ...

    def qsize(self) -> int: ...


class SlotPool(ABC):
    """Runs the rows that are put into `waiting`, in that order. Thread-safe.

    Every row leaves through `hand_in`, called in the thread that finished or released the row. It
    may return a claimed row, which that slot runs next, ahead of the queue.
    """

    waiting: WaitingRows
    _slot_type: type[Slot] = Slot

    def __init__(
        self,
        runner: RowRunner,
        lease_trust: LeaseTrust,
        page: BeatPage,
        engine_context: EngineContext,
        *,
        hand_in: HandIn,
    ) -> None:
        self.gate = BeginGate(lease_trust)
        self.coroutine_runner = CoroutineRunner(
            name=f"{engine_context.name}-async", clock=engine_context.clock
        )
        self.slots: Sequence[Slot] = [
            self._slot_type(number, runner, self.coroutine_runner, self.gate, page, engine_context)
            for number in range(engine_context.policy.slots)
        ]
        self._threads: list[BackgroundThread] = []
        self._name = engine_context.name
        self._clock = engine_context.clock
        self._hand_in = hand_in

    @abstractmethod
    def start(self) -> None:
        """Start the threads. Raises if one cannot start; `stop` then ends the others."""

    @abstractmethod
    def _request_thread_end(self) -> None:
        """Make one of the threads end after the work that was queued before."""

    @property
    def in_own_thread(self) -> bool:
        return self.coroutine_runner.in_own_thread or any(
            thread.in_own_thread for thread in tuple(self._threads)
        )

    def stop(self, deadline: Deadline) -> bool:
        """End the threads that were started. Returns False if one did not end in time."""
        for _ in self._threads:
            self._request_thread_end()
        ended = [thread.wait(self._clock, deadline) for thread in self._threads]
        return self.coroutine_runner.stop(deadline) and all(ended)

    def _start_thread(self, loop: Callable[[], None]) -> None:
        name = f"{self._name}-slot-{len(self._threads)}"
        thread = BackgroundThread(loop, name=name, report_errors=True)
        thread.start()
        self._threads.append(thread)

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


class ThreadSlotPool(SlotPool):
    """A pool with a thread for each slot, for code that blocks its thread."""

    def __init__(
        self,
        runner: RowRunner,
        lease_trust: LeaseTrust,
        page: BeatPage,
        engine_context: EngineContext,
        *,
        hand_in: HandIn,
    ) -> None:
        super().__init__(runner, lease_trust, page, engine_context, hand_in=hand_in)
        self.waiting = self._queue = queue.SimpleQueue[ClaimedRow | None]()

    def start(self) -> None:
        for slot in self.slots:
            self._start_thread(partial(self._loop, slot))

    def _request_thread_end(self) -> None:
        self._queue.put(None)

    def _loop(self, slot: Slot) -> None:
        live, hand_in, take = slot.live, self._hand_in, self._queue.get
        while (claimed := take()) is not None:
            current: ClaimedRow | None = claimed
            while current is not None:
                current = hand_in(live(current))
