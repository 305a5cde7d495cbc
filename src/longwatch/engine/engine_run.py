"""One start of an engine: registers its owner and beat page, starts its threads, and stops them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from longwatch.core.deadline import Deadline
from longwatch.core.events.engine import DrainTimedOut
from longwatch.engine.async_slot_pool import AsyncSlotPool
from longwatch.engine.claim_source import ClaimSource, computations, message_ids
from longwatch.engine.coroutines import runs_coroutines
from longwatch.engine.drain import DrainAction, DrainMachine, DrainState, DrainTransition
from longwatch.engine.exchange_loop import ExchangeLoop
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.engine.fetcher import Fetcher
from longwatch.engine.hint_gate import HintGate
from longwatch.engine.lease_renewer import LeaseRenewer
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.row_life import RowRunner
from longwatch.engine.settler import Settler
from longwatch.engine.slot_pool import SlotPool, ThreadSlotPool
from longwatch.engine.sweep_loop import SweepLoop
from longwatch.errors import TryAgainError
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.host.runtime_dir import private_file_directory


class EngineRun:
    """Exchange loop, slots, lease renewer and sweeper of one incarnation. Starts once; `stop` may
    be called again after a timeout.
    """

    def __init__(
        self,
        source: ClaimSource,
        runner: RowRunner,
        exclusive_lock: ExclusiveLock,
        engine_context: EngineContext,
    ) -> None:
        self._source = source
        self._engine_context = engine_context
        self._drain = DrainMachine()
        self._wakeup = HintGate(is_shared=source.is_shared)
        incarnation = Incarnation.current()
        self._page, self._lease_trust = _register_owner(source, incarnation, engine_context)
        self._lock_handle = exclusive_lock.register(self._wakeup.set)
        pool_type = AsyncSlotPool if runs_coroutines(runner) else ThreadSlotPool
        self.slot_pool: SlotPool = pool_type(
            runner,
            self._lease_trust,
            self._page,
            engine_context,
            hand_in=lambda finished: self.exchange_loop.hand_in(finished),  # noqa: PLW0108 - exchange_loop is made below
        )
        self.settler = Settler(engine_context, mailbox=getattr(source, "name", ""))
        self.fetcher = Fetcher(
            source,
            self._lease_trust,
            self.slot_pool,
            self.settler,
            self._drain,
            self._lock_handle,
            self._wakeup,
            engine_context,
        )
        self.exchange_loop = ExchangeLoop(
            source,
            self._lease_trust,
            self.slot_pool,
            self.settler,
            self.fetcher,
            self._drain,
            self._wakeup,
            self._page,
            engine_context,
        )
        self._lease_renewer = LeaseRenewer(
            source, self._lease_trust, self.slot_pool, self.exchange_loop, engine_context
        )
        self._sweep_loop = SweepLoop(
            source,
            source.sweeper_for(incarnation, selection=engine_context.policy.selection),
            self._drain,
            engine_context,
            may_sweep=lambda: self._lease_trust.may_act(
                holds_rows=self.exchange_loop.held_count() > 0
            ),
        )
        self._unsubscribe: Callable[[], None] = lambda: None
        self._stop_calls: list[Callable[[Deadline], bool]] = []

    @property
    def state(self) -> DrainState:
        return self._drain.state

    @property
    def in_own_thread(self) -> bool:
        return (
            self.slot_pool.in_own_thread
            or self.exchange_loop.thread.in_own_thread
            or self._lease_renewer.in_own_thread
            or self._sweep_loop.in_own_thread
        )

    def start(self) -> None:
        """Start the threads. If one cannot start, stop the others and raise."""
        try:
            self._start_threads()
        except BaseException:
            self._drain.apply(DrainTransition.STOP)
            self._stop_threads(Deadline.after(_ROLLBACK_SECONDS, self._engine_context.clock))
            raise

    def apply(self, trigger: DrainTransition) -> None:
        """Apply a transition of the drain, and run the action that the table gives."""
        action = self._drain.apply(trigger)
        if action is DrainAction.RELEASE_WAITING:
            self.slot_pool.gate.close()
            self._page.start_draining()
            self.exchange_loop.report_draining(is_draining=True)
        elif action is DrainAction.FETCH:
            self._page.end_draining()
            self.exchange_loop.report_draining(is_draining=False)
            self.slot_pool.gate.open()
        elif action is DrainAction.CANCEL_RUNNING:
            for context in self.slot_pool.running():
                context.cancel.cancel("shutdown")
        self.exchange_loop.wake()

    def stop(self, deadline: Deadline) -> bool:
        """Release the waiting rows, let running rows finish, cancel the rest shortly before the
        deadline, and end the threads. Returns whether all of that was done in time.
        """
        self.apply(DrainTransition.STOP)
        if not self._wait_finished(deadline):
            rows = [context.claimed for context in self.slot_pool.running()]
            self._engine_context.events.emit(
                DrainTimedOut(
                    engine=self._engine_context.name,
                    message_ids=message_ids(rows),
                    computations=computations(rows),
                )
            )
            return False
        return self._stop_threads(deadline)

    # --- start ---

    def blame_only_stalled(self, threshold: float) -> None:
        """If the process ends, blame only rows whose slot has sent no heartbeat for `threshold`
        seconds.
        """
        self.slot_pool.blame_only_stalled(threshold)

    def _start_threads(self) -> None:
        self._unsubscribe = self._source.listen(self._wakeup)
        self._notify_parent("leases", page=str(self._page.path), source=self._source.locator())
        self._stop_calls.append(self.slot_pool.stop)
        self.slot_pool.start()
        self._lease_renewer.thread.start()
        self._stop_calls.append(self._lease_renewer.stop)
        self._sweep_loop.start()
        self._stop_calls.append(self._sweep_loop.stop)
        self.exchange_loop.thread.start()
        self._stop_calls.append(
            lambda deadline: self.exchange_loop.thread.wait(self._engine_context.clock, deadline)
        )

    # --- stop ---

    def _wait_finished(self, deadline: Deadline) -> bool:
        """Wait until the last row is settled. Shortly before the deadline cancel the running
        rows.
        """
        clock, thread = self._engine_context.clock, self.exchange_loop.thread
        remaining = deadline.remaining()
        if remaining is None:
            return thread.wait(clock, deadline)
        grace = min(self._engine_context.policy.cancel_grace, remaining / 10)
        if thread.wait(clock, Deadline(deadline.at - grace, clock)):
            return True
        self.apply(DrainTransition.CANCEL)
        return thread.wait(clock, deadline)

    def _stop_threads(self, deadline: Deadline) -> bool:
        """End the threads, the last started first. Threads that do not end in time are left to the
        next call.
        """
        self._stop_calls = [stop for stop in reversed(self._stop_calls) if not stop(deadline)][::-1]
        if self._stop_calls:
            return False
        if self._drain.state is not DrainState.STOPPED:
            self._drain.apply(DrainTransition.EMPTY)
        self._unsubscribe()
        self._lock_handle.unregister()
        with suppress(
            TryAgainError
        ):  # a parent that is gone or does not reply renews nothing any more
            self._notify_parent("leases_ended")
        self._page.close()
        return True

    def _notify_parent(self, about: str, **facts: object) -> None:
        if self._lease_trust.is_renewed_by_parent and self._engine_context.parent is not None:
            self._engine_context.parent.send(
                about, engine=self._engine_context.name, owner=self._lease_trust.owner, **facts
            )


_ROLLBACK_SECONDS = 5.0
"""Seconds that threads have to end after a failed start."""


def _register_owner(
    source: ClaimSource, incarnation: Incarnation, engine_context: EngineContext
) -> tuple[BeatPage, LeaseTrust]:
    """Make the beat page of a new incarnation, and register it as an owner of leases."""
    parent = engine_context.parent
    page = BeatPage(_page_path(incarnation), engine_context.policy.slots)
    try:
        owner = source.register_owner(
            incarnation,
            page=str(page.path),
            parent=None if parent is None else parent.incarnations,
            renew_seconds=engine_context.policy.lease.renew_seconds,
        )
    except BaseException:
        page.close()
        raise
    is_renewed_by_parent = parent is not None and source.locator() is not None
    return page, LeaseTrust(
        owner,
        engine_context.policy.lease,
        clock=engine_context.clock,
        page=page,
        is_renewed_by_parent=is_renewed_by_parent,
    )


def _page_path(incarnation: Incarnation) -> Path:
    return private_file_directory() / f"page-{incarnation.id}"
