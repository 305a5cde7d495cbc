"""The fetcher: decides how many rows to claim and when, and passes claimed rows to the slots.

The exchange loop makes the calls. Only the thread that runs the cycle changes the fetcher's state.
Other threads also read `capacity`, `needs_cycle` and `held`.

When the next claim is due
    the last claim was filled       at once
    it was filled in part           after `settle_delay`: usually the queue is empty, and the first
                                    of these rows may be finished by then. One exchange then settles
                                    it and claims.
    it found no row                 when the source notifies, or a delayed row is due

In a store that many machines share, an idle engine asks the store as rarely as it can. It learns
the time of the next delayed row only after it was woken or has claimed rows: a notification may be
about a row that is delayed. After a poll it asks for nothing more. The engine that has the sweep
turn of the queue frees every row in time (`store.sweep_turns`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf

from longwatch.core.backoff import Backoff, BackoffPolicy
from longwatch.core.jitter import random_fraction
from longwatch.engine.claim_source import ClaimedRow, ClaimSource, ExchangeResult
from longwatch.engine.drain import DrainMachine, DrainState
from longwatch.engine.exclusive import ExclusiveLockHandle, ExclusiveRows
from longwatch.engine.hint_gate import HintGate
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import MAX_BATCH, EngineContext
from longwatch.engine.poll_budget import PollBudget
from longwatch.engine.prefetch import PREFETCH_SECONDS, STUCK_AFTER, Prefetch
from longwatch.engine.row_life import FinishedRow
from longwatch.engine.settler import Settler
from longwatch.engine.slot_pool import SlotPool
from longwatch.engine.source_call import SourceCall
from longwatch.store.claims import Claim

StartRow = Callable[[ClaimedRow], None]
_POLL_JITTER = 0.2
"""Fraction by which a poll of a shared store may come sooner."""


class Fetcher:
    """Decides what one engine claims, and keeps its slots busy. `held` are the claims of the rows
    that wait or run here.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it connects the source and the slots
        self,
        source: ClaimSource,
        lease_trust: LeaseTrust,
        slot_pool: SlotPool,
        settler: Settler,
        drain: DrainMachine,
        lock_handle: ExclusiveLockHandle,
        hint_gate: HintGate,
        engine_context: EngineContext,
    ) -> None:
        policy, clock = engine_context.policy, engine_context.clock
        self.held: set[Claim] = set()
        self._source = source
        self._lease_trust = lease_trust
        self._slot_pool = slot_pool
        self._settler = settler
        self._drain = drain
        self._lock_handle = lock_handle
        self._hint_gate = hint_gate
        self._policy = policy
        self._clock = clock
        self._prefetch = Prefetch(policy.slots, maximum=policy.max_prefetch)
        self._poll_budget = (
            None
            if policy.max_polls is None
            else PollBudget(
                policy.max_polls, poll_wait=policy.poll_wait, slots=policy.slots, clock=clock
            )
        )
        self._exclusive_rows = ExclusiveRows(lock_handle, clock, timeout=policy.exclusive_timeout)
        self._claim_again_in: float | None = 0.0
        self._rests_without_capacity = False
        self._due_call = SourceCall("next_due", engine_context)
        self._may_skip_claim = False
        self._poll_at = -inf
        """In a shared store: when to claim without another reason."""
        self._is_due_unknown = True
        self._due_at = inf
        """In a shared store: when the next delayed row is due, as far as this engine has asked."""
        self._due_backoff = Backoff(
            BackoffPolicy(initial=min(0.001, policy.poll_interval), cap=policy.poll_interval)
        )

    # --- when to claim ---

    @property
    def is_poll_budget_spent(self) -> bool:
        return self._poll_budget is not None and self._poll_budget.is_spent

    @property
    def needs_cycle(self) -> bool:
        """Whether it has to claim, start or release rows without being woken."""
        return (
            self._claim_again_in is not None
            or self._exclusive_rows.has_waiting
            or len(self.held) > self._policy.slots
            or (self._rests_without_capacity and self.capacity() > 0)  # a delayed row may be due
        )

    def rest_seconds(self) -> float:
        """Return how long the exchange loop may rest if no row finishes and no notification
        comes.
        """
        if self._claim_again_in is not None and self.capacity():
            return self._claim_again_in
        timeouts = [self._poll_seconds()]
        if not self._slot_pool.waiting.empty():
            timeouts.append(PREFETCH_SECONDS)
        if self._exclusive_rows.has_waiting:
            timeouts.append(self._exclusive_rows.time_left())
        self._rests_without_capacity = not self.capacity()
        if not self._rests_without_capacity:
            timeouts.append(self._time_until_due())
            if self._poll_budget is not None:
                timeouts.append(self._poll_budget.time_left())
        return min(timeouts)

    def note_wake(self, *, has_news: bool) -> None:
        """Take into account why the next cycle runs: with news, a row may have become ready or
        delayed. Without news, an engine that holds no rows claims nothing from a shared store
        before its next poll: it was woken for an audit, or after another thread ran a cycle.
        """
        self._is_due_unknown = self._is_due_unknown or has_news
        self._may_skip_claim = (
            self._source.is_shared
            and not has_news
            and self._poll_budget is None
            and self._clock.monotonic() < min(self._poll_at, self._due_at)
        )

    def _poll_seconds(self) -> float:
        if not self._source.is_shared:
            return self._policy.poll_interval
        return max(self._poll_at - self._clock.monotonic(), 0.0)

    def _postpone_poll(self) -> None:
        jitter = 1 - _POLL_JITTER * random_fraction()
        self._poll_at = self._clock.monotonic() + self._policy.shared_poll_interval * jitter

    def _time_until_due(self) -> float:
        """Return the seconds until a delayed row is due. If a due row was not claimed (paused, or
        claimed by another worker), back off.
        """
        if self._source.is_shared:
            return self._time_until_due_if_known()
        due = self._due_call.run(self._source.next_due)
        if due is None or due > 0:
            self._due_backoff.succeeded()
            return self._policy.poll_interval if due is None else due
        return self._due_backoff.failed(lasted=0.0)

    def _time_until_due_if_known(self) -> float:
        """Return the seconds until a delayed row is due, infinity if this engine knows of none. A
        due row that was not claimed here is left to the next sweep.
        """
        now = self._clock.monotonic()
        if self._is_due_unknown or now >= self._due_at:
            due = self._due_call.run(self._source.next_due)
            self._is_due_unknown = bool(self._due_call.retry_in)
            self._due_at = inf if due is None or due <= 0 else now + due
        return self._due_at - now

    # --- how many to claim ---

    def capacity(self) -> int:
        """Return how many more rows may be held."""
        if (
            self._drain.state is not DrainState.RUNNING
            or self._lease_trust.is_lapsed
            or self._exclusive_rows.is_active
            or self._lock_handle.is_blocked
        ):
            return 0
        held = len(self.held)
        room = max(self._policy.slots + self._prefetch.limit - held, 0)
        return room if self._poll_budget is None else self._poll_budget.cap(room, held=held)

    def claim_limit(self) -> int:
        """Return how many rows to claim in this exchange."""
        may_skip, self._may_skip_claim = self._may_skip_claim, False
        if may_skip and self._claim_again_in is None and not self._holds_rows:
            return 0
        self._postpone_poll()
        limit = min(self.capacity(), MAX_BATCH)
        return limit if limit and self._lock_handle.acquire_shared() else 0

    def exchange_done(self, limit: int, result: ExchangeResult) -> None:
        """Decide when to claim again."""
        claimed = len(result.claimed)
        if limit and self._poll_budget is not None:
            self._poll_budget.record(claimed)
        if limit:
            self._hint_gate.record_claim(has_found=claimed > 0)
        self._is_due_unknown = self._is_due_unknown or claimed > 0
        if result.is_queue_empty or not claimed:
            self._claim_again_in = None
        else:
            self._claim_again_in = 0.0 if claimed >= limit else self._policy.settle_delay

    def claim_failed(self) -> None:
        """Claim again in the next cycle, also from a shared store: the reason for the claim still
        holds.
        """
        self._poll_at = -inf

    def claim_soon(self) -> None:
        """Claim again when the first of the new rows may be finished."""
        self._claim_again_in = self._policy.settle_delay

    # --- held rows ---

    def accept_reserved(
        self, claimed: Sequence[ClaimedRow], requested_at: float, start: StartRow
    ) -> None:
        """Dispatch rows that were leased without a claim. Releases them if another engine requests
        the process for an exclusive row.
        """
        if self._lock_handle.acquire_shared():
            self.dispatch(claimed, requested_at, start)
        else:
            self._settler.release(each.claim for each in claimed)

    def dispatch(self, claimed: Sequence[ClaimedRow], requested_at: float, start: StartRow) -> None:
        """Hold these rows and start them. An exclusive row waits until nothing else runs."""
        if claimed and not self._holds_rows:
            self._lease_trust.record_grant(requested_at)
        for each in claimed:
            self.held.add(each.claim)
            if each.is_exclusive:
                self._exclusive_rows.add(each)
            else:
                start(each)
        self.start_exclusive()

    @property
    def _holds_rows(self) -> bool:
        return bool(self.held or self._settler.unsettled)

    def forget(self, finished: Sequence[FinishedRow]) -> None:
        """Stop holding these rows, and record their durations."""
        for each in finished:
            self.held.discard(each.claimed.claim)
            if each.duration is not None:
                self._prefetch.record(each.duration)
            if each.claimed.is_exclusive:
                self._exclusive_rows.finish(each.claimed)
        if not self.held:
            self._lock_handle.release_shared()

    def release_unwanted(self) -> None:
        """Release waiting rows that another worker, or another engine of this process, should
        run.
        """
        pool = self._slot_pool
        if self._drain.state is not DrainState.RUNNING or self._lock_handle.is_blocked:
            pool.release_waiting()
            self._release_exclusive()
        elif pool.waiting.empty():
            return
        elif surplus := self._prefetch.surplus(len(self.held)):
            pool.release_waiting(keep=max(pool.waiting.qsize() - surplus, 0))
        elif pool.is_stuck(STUCK_AFTER):
            self._prefetch.reset()
            pool.release_waiting()

    # --- exclusive rows ---

    def start_exclusive(self) -> None:
        """Start the next exclusive row if nothing else runs in this process. Rows that have waited
        too long are released for other workers.
        """
        if not self._exclusive_rows.has_waiting:
            return
        if (claimed := self._exclusive_rows.start_next(len(self.held))) is not None:
            self._slot_pool.waiting.put(claimed)
        elif self._exclusive_rows.is_overdue:
            self._release_exclusive(delay=self._policy.exclusive_timeout)

    def leave_exclusive_lock(self) -> None:
        """Unregister from the exclusive lock at the end of this engine, so that it does not block
        others.
        """
        self._lock_handle.unregister()

    def _release_exclusive(self, *, delay: float = 0.0) -> None:
        claims = [each.claim for each in self._exclusive_rows.take_waiting()]
        self._settler.release(claims, delay=delay)
        self.held.difference_update(claims)
