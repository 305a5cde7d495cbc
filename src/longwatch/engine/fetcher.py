"""The fetcher: settles finished rows and claims the next ones, in one exchange with the source.

It has a thread, which waits for a reason to run a cycle. Where there is little to do, waking
threads takes longer than anything else. So while the thread rests, a slot that has finished the
only running row runs the cycle in its place, and goes on with the row that it got. Code that
delivers reserved rows hands them to the slots. Only one thread runs a cycle at a time: the cycle
lock guards all state.
"""

from __future__ import annotations

import threading
from collections import deque

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.clock import Wakeup
from longwatch.core.events.engine import SettlementRefused
from longwatch.engine.claim_source import (
    ClaimedRow,
    ClaimSource,
    ExchangeResult,
    RowOutcome,
    Settlement,
)
from longwatch.engine.drain import ENDING_STATES, DrainMachine, DrainState
from longwatch.engine.exclusive import ExclusiveLockHandle, ExclusiveRows
from longwatch.engine.lease_audit import LeaseAudit
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import MAX_BATCH, EngineContext
from longwatch.engine.poll_budget import PollBudget
from longwatch.engine.prefetch import PREFETCH_SECONDS, STUCK_AFTER, Prefetch
from longwatch.engine.reservations import Reservation, Reservations
from longwatch.engine.settlement_stats import SettlementStats
from longwatch.engine.slot_pool import FinishedRow, SlotPool
from longwatch.engine.source_call import SourceCall
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.beatpage import BeatPage
from longwatch.store.claims import Claim

_MAX_INLINE_SLOTS = 64
"""Slots of an engine in which one that has finished looks whether any other runs."""


class Fetcher:
    """Fetches rows for the slots of one engine.

    `held` are the rows that wait or run here, `unsettled` what is to be told to the source.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it stands between the source, the slots and the engine
        self,
        source: ClaimSource,
        lease_trust: LeaseTrust,
        slot_pool: SlotPool,
        drain: DrainMachine,
        lock_handle: ExclusiveLockHandle,
        wakeup: Wakeup,
        page: BeatPage,
        engine_context: EngineContext,
    ) -> None:
        policy = engine_context.policy
        self.polls_exhausted = Wakeup()
        """Set when it has taken rows as often as it may, and all of them are settled."""
        self.held: set[Claim] = set()
        self.unsettled: list[Settlement] = []
        self.urgent_wakeup = Wakeup()
        self.thread = BackgroundThread(
            self._loop, name=f"{engine_context.name}-fetcher", report_errors=True
        )
        self._source = source
        self._lease_trust = lease_trust
        self._slot_pool = slot_pool
        self._drain = drain
        self._lock_handle = lock_handle
        self._wakeup = wakeup
        self._policy = policy
        self._name = engine_context.name
        self._clock = engine_context.clock
        self._events = engine_context.events
        self._prefetch = Prefetch(policy.slots, maximum=policy.max_prefetch)
        self._batch_ready = Wakeup()
        self._exclusive_rows = ExclusiveRows(
            lock_handle, engine_context.clock, timeout=policy.exclusive_timeout
        )
        self._claim_again_in: float | None = 0.0
        self._was_delivered = False
        self.reservations = Reservations(self._on_reservation_closed)
        self._audit = LeaseAudit(source, lease_trust, slot_pool, self.reservations, engine_context)
        self._cycle_lock = threading.Lock()
        self._inline_call = SourceCall("fetch", engine_context)
        self._inline_rows: deque[ClaimedRow] | None = None
        self._allows_inline = policy.max_polls is None and policy.slots <= _MAX_INLINE_SLOTS
        self._batch_limit = MAX_BATCH
        self._attempted: set[Claim] = set()
        self._had_failures = False
        self._cycle_call = SourceCall("fetch", engine_context)
        self._exchange_call = SourceCall("exchange", engine_context)
        self._heartbeat = engine_context.heartbeat
        self._page = page
        self._poll_budget = PollBudget(policy, engine_context.clock)
        self._stats = SettlementStats(engine_context)
        self._due_call = SourceCall("next_due", engine_context)
        self._due_backoff = Backoff(
            BackoffPolicy(initial=min(0.001, policy.poll_interval), cap=policy.poll_interval)
        )

    def held_count(self) -> int:
        """How many leases the engine has, as far as it knows."""
        return len(self.held) + len(self.unsettled)

    def request_audit(self, *, revoked: bool = False) -> None:
        """Have the leases compared with the store. `revoked`: another process has reclaimed
        some.
        """
        self._audit.request(revoked=revoked)
        self._wakeup.set()

    def reserve(self, limit: int) -> Reservation | None:
        """Room for up to so many rows; None if there is none. From any thread."""
        return self.reservations.reserve(
            lambda: 0 if self._policy.max_polls is not None else min(self._capacity(), limit),
            owner=self._lease_trust.owner,
        )

    def _on_reservation_closed(self, is_uncertain: bool) -> None:  # noqa: FBT001 - a callback
        if is_uncertain:
            self._audit.request()
        if (
            is_uncertain
            or self._drain.state is not DrainState.RUNNING
            or (self.reservations.delivered and not self._accept_inline())
        ):
            self._wakeup.set()

    def _loop(self) -> None:
        while not self._is_finished():
            self._cycle_call.run(self._run_once)
            if self._cycle_call.retry_in:
                self._clock.wait(self.urgent_wakeup, self._cycle_call.retry_in)
        self._lock_handle.unregister()

    def _run_once(self) -> None:
        self._wait_for_reason()
        with self._cycle_lock:
            self._cycle()

    def _cycle(self) -> None:
        self._beat()
        self._collect()
        self._settle_and_claim()
        if self._poll_budget.is_spent and not self.held_count():
            self.polls_exhausted.set()

    def _beat(self) -> None:
        self._heartbeat.beat()
        self._page.beat_engine(self._clock.monotonic())

    def _is_finished(self) -> bool:
        with (
            self._cycle_lock,
            self.reservations.lock,
        ):  # a reservation that is made now is made before this, or not at all
            is_empty = not (
                self.held
                or self.unsettled
                or self.reservations.delivered
                or self.reservations.open_count
            )
            return self._drain.state in ENDING_STATES and is_empty

    # --- cycles in other threads ---

    def _cycle_inline(self) -> ClaimedRow | None:
        """Run a cycle in a slot's thread while the fetcher's thread rests; the row that the slot
        runs next, if there is one.
        """
        if not self._cycle_lock.acquire(blocking=False):
            self._wakeup.set()
            return None
        rows: deque[ClaimedRow] = deque()
        self._inline_rows = rows
        try:
            self._inline_call.run(self._cycle)
        finally:
            self._inline_rows = None
            self._cycle_lock.release()
        if not self._is_idle():
            self._wakeup.set()
        return rows.popleft() if rows else None

    def _accept_inline(self) -> bool:
        """Hand reserved rows to the slots while the fetcher's thread rests; False if they are
        left to that thread.
        """
        if self._slot_pool.inline_cycle is None or not self._cycle_lock.acquire(blocking=False):
            return False
        try:
            while self.reservations.delivered:
                self._accept_reserved(*self.reservations.delivered.popleft())
            return self._is_idle()
        finally:
            self._cycle_lock.release()

    def _is_idle(self) -> bool:
        """Whether it may go on resting as it does: there is nothing that it has to do, or to do
        at another time.
        """
        is_waiting = (
            self._claim_again_in is not None
            or self._exchange_call.retry_in
            or self._inline_call.retry_in
        )
        has_work = (
            self.unsettled
            or self._exclusive_rows.has_waiting
            or self._audit.is_due
            or self._had_failures
        )
        is_crowded = len(self.held) > self._policy.slots
        return self._drain.state is DrainState.RUNNING and not (
            is_waiting or has_work or is_crowded
        )

    # --- resting ---

    def _wait_for_reason(self) -> None:
        """Wait for a reason to trade. Everything is looked at afterwards, so the news is old
        then.
        """
        if self._exchange_call.retry_in:
            self._clock.wait(self.urgent_wakeup, self._exchange_call.retry_in)
        elif not self._has_unsettled():
            self._wait_for_work()
        if self._has_unsettled() and not self._exchange_call.retry_in:
            self._gather_batch()
        self.urgent_wakeup.clear()
        self._wakeup.clear()

    def _wait_for_work(self) -> None:
        """Until something is done, or may be there to claim."""
        if self._claim_again_in is None or not self._capacity():
            self._wait(self._wait_timeout())
        elif self._claim_again_in:
            self._wait(self._claim_again_in)

    def _has_unsettled(self) -> bool:
        return bool(self._slot_pool.finished or self.unsettled or self.reservations.delivered)

    def _gather_batch(self) -> None:
        """Something is done: give more of it a moment to be settled with it, unless the slots
        have nothing left to do.
        """
        pool = self._slot_pool
        pool.wake_threshold, pool.fetcher_wakeup = (
            self._policy.settle_batch - len(self.unsettled),
            self._batch_ready,
        )
        if (
            len(pool.finished) < pool.wake_threshold
            and not pool.waiting.empty()
            and not self.reservations.delivered
        ):
            self._clock.wait(self._batch_ready, self._policy.settle_delay)
        pool.fetcher_wakeup = None
        self._batch_ready.clear()

    def _wait(self, timeout: float) -> None:
        """Wait for the first that is finished, or for other news."""
        pool = self._slot_pool
        pool.wake_threshold, pool.fetcher_wakeup = 1, self._wakeup
        pool.inline_cycle = self._cycle_inline if self._allows_inline else None
        if not pool.finished:
            self._clock.wait(self._wakeup, timeout)
        pool.fetcher_wakeup = pool.inline_cycle = None

    def _wait_timeout(self) -> float:
        timeouts = [self._policy.poll_interval]
        if not self._slot_pool.waiting.empty():
            timeouts.append(PREFETCH_SECONDS)
        if self._exclusive_rows.has_waiting:
            timeouts.append(self._exclusive_rows.time_left())
        if self._capacity():
            timeouts += [self._time_until_due(), self._poll_budget.time_left()]
        return min(timeouts)

    def _time_until_due(self) -> float:
        """Until a delayed row is ready. One that is and was not given to us (paused, taken) is
        looked for less and less often.
        """
        due = self._due_call.run(self._source.next_due)
        if due is None or due > 0:
            self._due_backoff.succeeded()
            return self._policy.poll_interval if due is None else due
        return self._due_backoff.failed(lasted=0.0)

    def _capacity(self) -> int:
        """How many rows may be claimed."""
        if (
            self._drain.state is not DrainState.RUNNING
            or self._lease_trust.is_lapsed
            or self._exclusive_rows.is_active
            or self._lock_handle.is_blocked
        ):
            return 0
        return self._poll_budget.cap(
            max(self._policy.slots + self._prefetch.limit - len(self.held), 0), held=len(self.held)
        )

    # --- collecting ---

    def _collect(self) -> None:
        """Take over what the slots finished, what others have leased for us, and what the slots
        should not hold any more.
        """
        while self.reservations.delivered:  # before what is finished: it may be among that
            self._accept_reserved(*self.reservations.delivered.popleft())
            self._was_delivered = True
        self._collect_finished()
        if self._drain.state is not DrainState.RUNNING or self._lock_handle.is_blocked:
            self._slot_pool.release_waiting()
            self._release_exclusive()
        elif not self._slot_pool.waiting.empty():
            self._release_surplus()
        self._collect_finished()
        if not self.held:
            self._lock_handle.release_shared()

    def _accept_reserved(self, claimed: list[ClaimedRow], requested_at: float) -> None:
        """Rows that are ours already; where another has to run alone, they go back."""
        if self._lock_handle.acquire_shared():
            self._dispatch(claimed, requested_at)
        else:
            self.unsettled += [Settlement(each.claim, RowOutcome.RELEASED) for each in claimed]

    def _collect_finished(self) -> None:
        finished = self._slot_pool.finished
        while finished:
            self._record_finished(finished.popleft())

    def _release_surplus(self) -> None:
        """Rows that wait behind work that takes long are given to whoever has time."""
        surplus = self._prefetch.surplus(len(self.held))
        if surplus:
            self._slot_pool.release_waiting(keep=max(self._slot_pool.waiting.qsize() - surplus, 0))
        elif self._slot_pool.is_stuck(STUCK_AFTER):
            self._prefetch.reset()
            self._slot_pool.release_waiting()

    def _record_finished(self, finished: FinishedRow) -> None:
        self.held.discard(finished.claimed.claim)
        if finished.duration is not None:
            self._prefetch.record(finished.duration)
            self._stats.record_duration(finished.duration)
        if isinstance(finished.result, Settlement):
            self.unsettled.append(finished.result)
        elif finished.result is not None:
            self._stats.record_settled(finished.result.outcome)
        self._exclusive_rows.finish(finished.claimed)

    # --- trading ---

    def _settle_and_claim(self) -> None:
        """Settle and claim, in one exchange."""
        if self._audit.is_due:
            known = self.held.union(settlement.claim for settlement in self.unsettled)
            self.unsettled += [
                Settlement(claim, RowOutcome.RELEASED)
                for claim in self._audit.run(known, self.held)
            ]
        self._start_exclusive()
        limit = min(self._capacity(), MAX_BATCH)
        was_delivered, self._was_delivered = self._was_delivered, False
        if was_delivered or (
            limit and not self._lock_handle.acquire_shared()
        ):  # the first of it may be done in a moment
            limit = 0
        batch = self.unsettled[: self._batch_limit]
        if batch or limit:
            self._send_exchange(batch, limit)
        else:
            self._stats.emit()
        if was_delivered:
            self._claim_again_in = self._policy.settle_delay

    def _send_exchange(self, batch: list[Settlement], limit: int) -> None:
        requested_at = self._clock.monotonic()
        owner, lease_seconds = self._lease_trust.owner, self._policy.lease.lease_seconds
        result = self._exchange_call.run(
            lambda: self._source.exchange(
                batch, owner=owner, limit=limit, lease_seconds=lease_seconds
            )
        )
        if result is None:
            self._on_exchange_failed(batch, limit)
            return
        self._batch_limit = MAX_BATCH
        del self.unsettled[: len(batch)]
        self._report_refusals(batch, result)
        self._had_failures = any(settlement.outcome is not RowOutcome.DONE for settlement in batch)
        self._claim_again_in = (
            None if result.is_queue_empty else self._next_claim_delay(limit, len(result.claimed))
        )
        if limit:
            self._poll_budget.record(len(result.claimed))
        self._dispatch(result.claimed, requested_at)
        self._stats.record_exchange(batch, result, held=len(self.held))

    def _next_claim_delay(self, limit: int, claimed: int) -> float | None:
        """At once where there was all we wanted. Where there was some of it, no more is left as a
        rule, and the first of it may be done in a moment: one exchange does for both. Where there
        was nothing, when somebody tells (None).
        """
        if limit and claimed >= limit:
            return 0.0
        return self._policy.settle_delay if claimed else None

    def _on_exchange_failed(self, batch: list[Settlement], limit: int) -> None:
        """Nobody knows what happened. The settlements stay in line; half as many next time, so that
        one that cannot be made does not keep the others for ever.
        """
        if limit:
            self._audit.request()
        self._attempted.update(settlement.claim for settlement in batch)
        if len(batch) == 1:
            self.unsettled.append(self.unsettled.pop(0))
        if batch:
            self._batch_limit = max(len(batch) // 2, 1)

    def _report_refusals(self, batch: list[Settlement], exchange: ExchangeResult) -> None:
        """Tell of those that were not ours any more. What was tried before may be gone because
        that try counted.
        """
        if not all(exchange.settled):
            for settlement, settled in zip(batch, exchange.settled, strict=True):
                if not settled and settlement.outcome is not RowOutcome.RELEASED:
                    self._emit_refused(settlement)
        if self._attempted:
            self._attempted.difference_update(settlement.claim for settlement in batch)

    def _emit_refused(self, settlement: Settlement) -> None:
        row, unknown = settlement.claim.seq, settlement.claim in self._attempted
        self._events.emit(
            SettlementRefused(
                engine=self._name, row=row, outcome=settlement.outcome, may_have_settled=unknown
            )
        )

    def _dispatch(self, claimed: list[ClaimedRow], requested_at: float) -> None:
        if claimed and not self.held_count():
            self._lease_trust.record_grant(requested_at)
        for each in claimed:
            self.held.add(each.claim)
            if each.is_exclusive:
                self._exclusive_rows.add(each)
            elif self._inline_rows is not None and not self._inline_rows:
                self._inline_rows.append(each)
            else:
                self._slot_pool.waiting.put(each)
        self._start_exclusive()

    # --- rows that run alone ---

    def _start_exclusive(self) -> None:
        """Start the next of them if nothing else runs, here or in another engine of this
        process.
        """
        if (claimed := self._exclusive_rows.start_next(len(self.held))) is not None:
            self._slot_pool.waiting.put(claimed)
        elif self._exclusive_rows.is_overdue:
            self._release_exclusive(delay=self._policy.exclusive_timeout)

    def _release_exclusive(self, *, delay: float = 0.0) -> None:
        for claimed in self._exclusive_rows.take_waiting():
            self.held.discard(claimed.claim)
            self.unsettled.append(Settlement(claimed.claim, RowOutcome.RELEASED, delay=delay))
