"""Where user code runs: N threads, each with its heartbeat and its place on the beat page."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple, Protocol

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events.engine import WorkFailed
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext, SlotActivity
from longwatch.engine.coroutines import AlreadySettled, CoroutineRunner, PendingResult, RowResult
from longwatch.engine.error_policy import settlement_for
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.beatpage import BeatPage


class RowRunner(Protocol):
    """Runs one row: decodes it, calls the user's code, says what to do with it; or that it is
    settled, None if nobody knows how.

    What can be awaited instead of an answer is awaited on the engine's loop thread, while the slot
    waits; if it has a `close` and cannot be, that is called. `PendingResult` says what is done with
    its result. A raise counts as a failure.
    """

    def __call__(
        self, claimed: ClaimedRow, context: RowContext, /
    ) -> PendingResult | Awaitable[RowResult] | RowResult: ...


class FinishedRow(NamedTuple):
    """A row that is over with: without a settlement nothing is to be said about it; without a
    duration it was never begun.
    """

    claimed: ClaimedRow
    result: RowResult
    duration: float | None


class Slot:
    """One thread that runs one row at a time."""

    def __init__(self, number: int, pool: SlotPool) -> None:
        self.activity = SlotActivity(pool.clock, pool.page, number)
        self.context: RowContext | None = None
        self._pool = pool
        self.thread = BackgroundThread(
            self._loop, name=f"{pool.name}-slot-{number}", report_errors=True
        )

    def _loop(self) -> None:
        take = self._pool.waiting.get
        while (claimed := take()) is not None:
            current: ClaimedRow | None = claimed
            while current is not None:
                current = self._live(current)

    def _live(self, claimed: ClaimedRow) -> ClaimedRow | None:
        """The life of a row in its slot; the row to go on with, if it got one for it."""
        context = self._begin(claimed)
        if context is None:
            self._pool.finish(_released(claimed))
            return None
        return self._pool.finish_inline(self._end(context, self._run(context)))

    def _begin(self, claimed: ClaimedRow) -> RowContext | None:
        """Its context, or None if it may not begin any more. The context is shown first: whoever
        then forbids it either finds the context or is heeded here.
        """
        now = self._pool.clock.monotonic()
        # before it counts as busy: nobody is to take its rest for a stall
        self.activity.heartbeat.beat()
        context = self.context = RowContext(
            claimed, self.activity, self._pool.no_deadline, started_at=now
        )
        if not self._pool.may_begin(now):
            self.context = None
            return None
        self.activity.begin(claimed.claim.seq, now)
        self._pool.last_begin_at = now
        return context

    def _run(self, context: RowContext) -> RowResult:
        try:
            result = self._pool.runner(context.claimed, context)
            if result is None or type(result) is Settlement or type(result) is AlreadySettled:
                return result
            if not isinstance(result, PendingResult):
                result = PendingResult(result, _identity)  # type: ignore[arg-type] # an awaitable
            return result.resolve(self._pool.coroutine_runner, context)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, exits too; it is a failure of this row
            return self._pool.settlement_after_error(context, error)

    def _end(self, context: RowContext, result: RowResult) -> FinishedRow:
        duration = self._pool.clock.monotonic() - context.started_at
        context.close()
        self.activity.end()
        self.context = None
        if context.forced_settlement is not None:
            result = (
                AlreadySettled(context.forced_settlement.outcome)
                if context.settled
                else context.forced_settlement
            )
        elif context.lease_lost and type(result) is Settlement:
            result = Settlement(result.claim, RowOutcome.RELEASED)
        return FinishedRow(context.claimed, result, duration)


class SlotPool:
    """The slots of one engine, the queue of rows that wait for a slot, and the finished rows.

    `fetcher_wakeup` is set when `wake_threshold` rows are finished, or no row waits any more: the
    fetcher waits for it while it rests. `inline_cycle` does the fetcher's work meanwhile, in the
    thread of a slot; then no thread has to be woken.
    """

    def __init__(
        self,
        runner: RowRunner,
        lease_trust: LeaseTrust,
        page: BeatPage,
        engine_context: EngineContext,
    ) -> None:
        self.runner = runner
        self.name = engine_context.name
        self.clock = engine_context.clock
        self.page = page
        self.no_deadline = Deadline.never(engine_context.clock)
        self.coroutine_runner = CoroutineRunner(
            name=f"{engine_context.name}-async", clock=engine_context.clock
        )
        self.waiting: queue.SimpleQueue[ClaimedRow | None] = queue.SimpleQueue()
        self.finished: deque[FinishedRow] = deque()
        self.is_accepting = True
        self.last_begin_at = -inf
        self.fetcher_wakeup: Wakeup | None = None
        self.wake_threshold = 1
        self.inline_cycle: Callable[[], ClaimedRow | None] | None = None
        self.slots = [Slot(number, self) for number in range(engine_context.policy.slots)]
        self._started_slots: list[Slot] = []
        self._lease_trust = lease_trust
        self._retry = engine_context.policy.retry
        self._events = engine_context.events

    @property
    def in_own_thread(self) -> bool:
        return self.coroutine_runner.in_own_thread or any(
            slot.thread.in_own_thread for slot in self.slots
        )

    def start(self) -> None:
        for slot in self.slots:
            slot.thread.start()
            self._started_slots.append(slot)

    def stop(self, deadline: Deadline) -> bool:
        """End the threads that were started; False if one did not come back in time."""
        for _ in self._started_slots:
            self.waiting.put(None)
        ended = [slot.thread.wait(self.clock, deadline) for slot in self._started_slots]
        return self.coroutine_runner.stop(deadline) and all(ended)

    # --- for the slots ---

    def may_begin(self, now: float) -> bool:
        return self.is_accepting and self._lease_trust.is_trusted(now)

    def finish_inline(self, finished: FinishedRow) -> ClaimedRow | None:
        """The same by a slot that has time now: if nothing else runs or waits, it settles the
        row itself, and may get another.
        """
        inline_cycle = self.inline_cycle
        if (
            inline_cycle is None
            or not self.waiting.empty()
            or any(slot.context is not None for slot in self.slots)
        ):
            self.finish(finished)
            return None
        self.finished.append(finished)
        return inline_cycle()

    def finish(self, finished: FinishedRow) -> None:
        """Hand a row over to be settled, and wake the fetcher when it has a reason to come."""
        self.finished.append(finished)
        wakeup = self.fetcher_wakeup
        if wakeup is not None and (
            len(self.finished) >= self.wake_threshold or self.waiting.empty()
        ):
            wakeup.set()

    def settlement_after_error(
        self, context: RowContext, error: BaseException
    ) -> Settlement | AlreadySettled:
        """How it is settled; or was, if its runner did so before it raised."""
        settlement = settlement_for(context, error, self._retry)
        if settlement.outcome is not RowOutcome.RELEASED or settlement.delay:
            self._events.emit(
                WorkFailed(
                    engine=self.name,
                    row=settlement.claim.seq,
                    attempt=context.attempt,
                    error=settlement.error or "",
                    retry_in=None if settlement.outcome is RowOutcome.DEAD else settlement.delay,
                )
            )
        return AlreadySettled(settlement.outcome) if context.settled else settlement

    # --- for the fetcher and the lease renewer ---

    def running(self) -> list[RowContext]:
        """The contexts of what runs just now."""
        return [context for slot in self.slots if (context := slot.context) is not None]

    def is_stuck(self, seconds: float) -> bool:
        """Whether every slot is busy and none has begun anything for so long."""
        return self.clock.monotonic() - self.last_begin_at >= seconds and len(
            self.running()
        ) == len(self.slots)

    def stale(self, older_than: float) -> list[RowContext]:
        """What runs and has given no beat for so long."""
        return [
            context
            for slot in self.slots
            if (context := slot.context) and slot.activity.heartbeat.elapsed() > older_than
        ]

    def release_waiting(self, *, keep: int = 0) -> None:
        """Finish what was not begun, but for the first `keep`, by handing it back."""
        waiting = self._take_waiting()
        for claimed in waiting[:keep]:
            self.waiting.put(claimed)
        for claimed in waiting[keep:]:
            self.finish(_released(claimed))

    def blame_only_stalled(self, threshold: float) -> None:
        """The process is about to be ended because slots have given no beat for so long: nobody
        else is to blame for that.
        """
        for slot in self.slots:
            if slot.context is not None and slot.activity.heartbeat.elapsed() <= threshold:
                slot.activity.end()

    def lose_lease(self, context: RowContext, *, is_blameless: bool) -> None:
        """The lease of what this slot runs is lost; without blame its end is nobody's fault from
        here on.
        """
        context.lose_lease()
        for slot in self.slots:
            if is_blameless and slot.context is context:
                slot.activity.end()

    def _take_waiting(self) -> list[ClaimedRow]:
        waiting: list[ClaimedRow] = []
        while True:
            try:
                claimed = self.waiting.get_nowait()
            except queue.Empty:
                return waiting
            if claimed is not None:
                waiting.append(claimed)


def _identity(result: RowResult) -> RowResult:
    return result


def _released(claimed: ClaimedRow) -> FinishedRow:
    return FinishedRow(claimed, Settlement(claimed.claim, RowOutcome.RELEASED), None)
