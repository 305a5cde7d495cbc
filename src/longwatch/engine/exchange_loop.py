"""The exchange loop: wait for a reason → collect → audit → exchange → dispatch.

One exchange with the source settles the rows that are finished and claims the next ones, in one
transaction. The settler decides what to settle. The fetcher decides how many rows to claim and
which slots get them. This module owns the thread, the lock and the calls.

Threads
    A cycle is one pass from collect to dispatch. Any thread may run one, under the cycle lock, so
    there is one at a time. Other threads pass rows in only through `hand_in` and reservations.

    resting     The loop's thread waits for the first finished row, a notification, or its timeout.
    gathering   A row is finished. The thread waits up to `settle_delay` for others, to settle them
                together, unless the slots have nothing left to do.
    cycling     The thread holds the cycle lock.

    Waking a thread costs more than settling one row. So while the thread rests, a slot that has
    finished the only row of the engine runs the cycle itself (`hand_in`) and goes on with the first
    row it claims. It wakes the resting thread only if that has work left, or must rest for another
    time.

Invariants
    1. A slot adds its row to the settler before it reads the flags. The thread sets the flags
       before it reads the settler. So the thread either sees the row or is woken.
    2. A cycle that cannot run now is not lost: its caller wakes the thread.
    3. The thread ends when the engine stops, nothing is held, and no reservation is open.
    4. An exception in a cycle is emitted and retried with backoff. It never ends the thread.
    5. Nothing is claimed or reserved unless the leases are trusted in that moment; after a gap
       nothing is settled either (`lease_trust.py`).
    6. Only the loop's thread reports to the source that the engine drains. It does so after the
       exchange that releases the waiting rows, once a cycle until the source has confirmed it. An
       engine that holds no rows ends without that report.

Reserved rows
    Code of this process that inserts rows may lease them to the engine at once (`reservations.py`).
    `reserve` opens a reservation, and `_on_reservation_closed` handles its end.
"""

from __future__ import annotations

import threading

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, ClaimSource
from longwatch.engine.drain import ENDING_STATES, DrainMachine, DrainState
from longwatch.engine.fetcher import Fetcher, StartRow
from longwatch.engine.hint_gate import HintGate
from longwatch.engine.lease_audit import LeaseAudit
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.reservations import Reservation, Reservations
from longwatch.engine.row_life import FinishedRow
from longwatch.engine.settler import Settler
from longwatch.engine.slot_pool import SlotPool
from longwatch.engine.source_call import SourceCall
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.beatpage import BeatPage
from longwatch.store.claims import RowSelection

_MAX_INLINE_SLOTS = 64
"""The most slots of an engine whose slots run cycles themselves. With more, checking that all are
idle costs too much.
"""


class DrainReport:
    """Reports to the source whether the engine drains. Any thread may set `wanted`; only the loop's
    thread calls `send`.
    """

    def __init__(self, source: ClaimSource, owner: int, engine_context: EngineContext) -> None:
        self.wanted = False
        self._reported = False
        self._source = source
        self._owner = owner
        self._call = SourceCall("report_draining", engine_context)

    def send(self, held_count: int) -> None:
        """Report a change that the source has not confirmed yet, in one call. Skipped for an engine
        that drains and holds no row, because no row can be blamed.
        """
        wanted = self.wanted
        if wanted is self._reported or (wanted and not held_count):
            return
        if self._call.run(lambda: self._send(wanted)):
            self._reported = wanted

    def _send(self, is_draining: bool) -> bool:  # noqa: FBT001 - passed through
        self._source.report_draining(owner=self._owner, is_draining=is_draining)
        return True


class ExchangeLoop:
    """Makes the exchanges of one engine, in its own thread or in that of its only busy slot.

    `hand_in`, `reserve`, `held_count`, `may_hold_rows`, `request_audit` and `wake` are thread-safe.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - it connects the parts of an engine
        self,
        source: ClaimSource,
        lease_trust: LeaseTrust,
        slot_pool: SlotPool,
        settler: Settler,
        fetcher: Fetcher,
        drain: DrainMachine,
        wakeup: HintGate,
        page: BeatPage,
        engine_context: EngineContext,
    ) -> None:
        policy = engine_context.policy
        self.polls_exhausted = Wakeup()
        """Set when all polls are used and every row is settled."""
        self.thread = BackgroundThread(
            self._loop, name=f"{engine_context.name}-fetcher", report_errors=True
        )
        self._source = source
        self._lease_trust = lease_trust
        self._slot_pool = slot_pool
        self._settler = settler
        self._fetcher = fetcher
        self._drain = drain
        self._page = page
        self._policy = policy
        self._clock = engine_context.clock
        self._heartbeat = engine_context.heartbeat
        self._reservations = Reservations(self._on_reservation_closed)
        self._audit = LeaseAudit(source, lease_trust, slot_pool, self._reservations, engine_context)
        self._cycle_lock = threading.Lock()
        self._wakeup = wakeup
        self._urgent_wakeup = Wakeup()
        self._batch_ready = Wakeup()
        self._is_resting = False
        self._is_gathering = False
        self._allows_inline = policy.max_polls is None and policy.slots <= _MAX_INLINE_SLOTS
        self._cycle_call = SourceCall("fetch", engine_context)
        self._inline_call = SourceCall("fetch", engine_context)
        self._exchange_call = SourceCall("exchange", engine_context)
        self._drain_report = DrainReport(source, lease_trust.owner, engine_context)

    def held_count(self) -> int:
        """Return how many leases the engine holds, as far as it knows."""
        return len(self._fetcher.held) + len(self._settler.unsettled)

    def may_hold_rows(self) -> bool:
        """Return whether the engine holds leases, or may get some in the cycle that runs now."""
        return self._cycle_lock.locked() or self.held_count() > 0

    def request_audit(self, *, revoked: bool = False) -> None:
        """Request a comparison of the leases with the store. `revoked`: another process has
        reclaimed some.
        """
        self._audit.request(revoked=revoked)
        self._wakeup.wake_for_audit()

    def report_draining(self, *, is_draining: bool) -> None:
        """Have the loop's thread report to the source whether the engine drains."""
        self._drain_report.wanted = is_draining

    def wake(self) -> None:
        """Run a cycle now, also while a failed exchange waits for its retry."""
        self._wakeup.set()
        self._urgent_wakeup.set()

    # --- the loop ---

    def _loop(self) -> None:
        while not self._is_finished():
            self._cycle_call.run(self._run_once)
            if self._cycle_call.retry_in:
                self._clock.wait(self._urgent_wakeup, self._cycle_call.retry_in)
        self._fetcher.leave_exclusive_lock()

    def _run_once(self) -> None:
        self._wait_for_reason()
        with self._cycle_lock:
            self._cycle(self._slot_pool.waiting.put)
        self._drain_report.send(self.held_count())
        if self._fetcher.is_poll_budget_spent and not self.held_count():
            self.polls_exhausted.set()

    def _cycle(self, start: StartRow) -> None:
        """Collect, audit, exchange, dispatch. Calls `start` with each row that may run."""
        self._heartbeat.beat()
        self._page.beat_engine(self._clock.monotonic())
        has_reserved = self._accept_reserved(start)
        self._collect()
        self._release_unknown()
        self._fetcher.start_exclusive()
        if not self._may_exchange():
            self._settler.stats.emit()
        elif (
            has_reserved
        ):  # the first of them may finish soon: claim in the exchange that settles it
            self._exchange(0, start)
            self._fetcher.claim_soon()
        else:
            self._exchange(self._fetcher.claim_limit(), start)
        self._page.record_completed(self._settler.completed)

    def _may_exchange(self) -> bool:
        """Return whether the store may be asked to settle. Until then the settler keeps the
        settlements.
        """
        return self._lease_trust.may_settle(holds_rows=self.held_count() > 0)

    def _is_finished(self) -> bool:
        with self._cycle_lock, self._reservations.lock:  # no reservation can begin after this check
            return self._drain.state in ENDING_STATES and not (
                self.held_count() or self._reservations.are_pending
            )

    # --- waiting ---

    def _wait_for_reason(self) -> None:
        """Wait until a cycle has work. The wakeups are cleared last, because the cycle checks for
        all kinds of work.
        """
        if self._exchange_call.retry_in:
            self._clock.wait(self._urgent_wakeup, self._exchange_call.retry_in)
        elif not self._may_exchange():  # `wake` is called when trust is back
            self._clock.wait(self._urgent_wakeup, self._policy.poll_interval)
        else:
            if not self._has_work() and (seconds := self._fetcher.rest_seconds()):
                self._rest(seconds)
            if self._has_work():
                self._gather_batch()
        self._urgent_wakeup.clear()
        self._wakeup.clear()
        self._fetcher.note_wake(has_news=self._wakeup.take_news())

    def _has_work(self) -> bool:
        return self._settler.has_work or bool(self._reservations.delivered)

    def _rest(self, seconds: float) -> None:
        self._is_resting = True
        if not self._settler.has_work:
            self._clock.wait(self._wakeup, seconds)
        self._is_resting = False

    def _gather_batch(self) -> None:
        self._is_gathering = True
        if not (
            self._settler.is_batch_full
            or self._slot_pool.waiting.empty()
            or self._reservations.delivered
        ):
            self._clock.wait(self._batch_ready, self._policy.settle_delay)
        self._is_gathering = False
        self._batch_ready.clear()

    # --- one cycle ---

    def _collect(self) -> None:
        """Collect the rows that the slots have finished, and those that should not wait here."""
        self._fetcher.forget(self._settler.collect())
        self._fetcher.release_unwanted()
        self._fetcher.forget(self._settler.collect())

    def _release_unknown(self) -> None:
        """Run an audit if one is due, and release the leases that this engine does not know."""
        if self._audit.is_due:
            held = self._fetcher.held
            known = held.union(each.claim for each in self._settler.unsettled)
            self._settler.release(self._audit.run(known, held))

    def _exchange(self, limit: int, start: StartRow) -> None:
        """Settle finished rows and claim up to `limit` others, in one call."""
        batch = self._settler.next_batch()
        if not (batch or limit):
            self._settler.stats.emit()
            return
        requested_at = self._clock.boottime()
        owner, lease_seconds = self._lease_trust.owner, self._policy.lease.lease_seconds
        result = self._exchange_call.run(
            lambda: self._source.exchange(
                batch,
                owner=owner,
                limit=limit,
                lease_seconds=lease_seconds,
                selection=self._policy.selection,
            )
        )
        if result is None:
            self._settler.exchange_failed(batch)
            if limit:  # rows may have been claimed nevertheless
                self._audit.request()
                self._fetcher.claim_failed()
            return
        self._settler.exchange_done(batch, result.settled, result.given_up)
        self._fetcher.exchange_done(limit, result)
        self._fetcher.dispatch(result.claimed, requested_at, start)
        self._settler.stats.record_exchange(batch, result, held=len(self._fetcher.held))

    # --- rows from the slots ---

    def hand_in(self, finished: FinishedRow) -> ClaimedRow | None:
        """Accept a finished row. If no other row runs or waits, settle it in this thread, and
        return the row that the slot runs next, if one was claimed.
        """
        is_inline = (
            self._is_resting
            and self._allows_inline
            and finished.duration is not None
            and self._slot_pool.is_idle
        )
        self._settler.add(finished)
        if is_inline:
            return self._cycle_inline()
        if self._is_resting:
            self._wakeup.set()
        elif self._is_gathering and (
            self._settler.is_batch_full or self._slot_pool.waiting.empty()
        ):
            self._batch_ready.set()
        return None

    def _cycle_inline(self) -> ClaimedRow | None:
        """Run a cycle in a slot's thread, and return the first row it claimed."""
        if not self._cycle_lock.acquire(blocking=False):
            self._wakeup.set()
            return None
        first: list[ClaimedRow] = []

        def start(row: ClaimedRow) -> None:
            if first:
                self._slot_pool.waiting.put(row)
            else:
                first.append(row)

        try:
            self._inline_call.run(lambda: self._cycle(start))
        finally:
            self._cycle_lock.release()
        if not self._may_rest_on():
            self._wakeup.set()
        return first[0] if first else None

    def _may_rest_on(self) -> bool:
        """Return whether the loop's thread may keep resting after a cycle in another thread: it has
        no work now or before its timeout.
        """
        return self._drain.state is DrainState.RUNNING and not (
            self._exchange_call.retry_in
            or self._inline_call.retry_in
            or self._audit.is_due
            or self._settler.needs_cycle
            or self._fetcher.needs_cycle
        )

    # --- reserved rows ---

    def reserve(self, limit: int) -> Reservation | None:
        """Reserve capacity for up to `limit` rows. Returns None if there is none.

        An engine that runs suspects reserves none, because new rows are not suspects.
        """
        may_reserve = (
            self._policy.max_polls is None
            and self._policy.selection is not RowSelection.SUSPECTS
            and self._lease_trust.may_act(holds_rows=self.held_count() > 0)
        )
        return self._reservations.reserve(
            lambda: min(self._fetcher.capacity(), limit) if may_reserve else 0,
            owner=self._lease_trust.owner,
        )

    def _on_reservation_closed(self, is_uncertain: bool) -> None:  # noqa: FBT001 - a callback
        """Dispatch the delivered rows if the thread rests. Otherwise wake the thread."""
        if is_uncertain:
            self._audit.request()
        if (
            is_uncertain
            or self._drain.state is not DrainState.RUNNING
            or (self._reservations.delivered and not self._accept_inline())
        ):
            self._wakeup.set()

    def _accept_inline(self) -> bool:
        """Dispatch delivered rows in the thread that closed the reservation. Returns False if the
        loop's thread has to run a cycle.
        """
        if not (self._is_resting and self._allows_inline) or not self._cycle_lock.acquire(
            blocking=False
        ):
            return False
        try:
            self._accept_reserved(self._slot_pool.waiting.put)
            return self._may_rest_on()
        finally:
            self._cycle_lock.release()

    def _accept_reserved(self, start: StartRow) -> bool:
        """Dispatch delivered rows. Returns whether there were any."""
        has_reserved = bool(self._reservations.delivered)
        while self._reservations.delivered:
            claimed, requested_at = self._reservations.delivered.popleft()
            self._fetcher.accept_reserved(claimed, requested_at, start)
            self._settler.stats.emit_claimed(len(claimed), held=len(self._fetcher.held))
        return has_reserved
