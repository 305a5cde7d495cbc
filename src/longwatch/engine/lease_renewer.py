"""Renews the leases of an engine, and cancels its rows when their leases are no longer trusted.

`core.lease` decides when; this loop waits and acts. A background thread makes the call to the
store, so that a store that does not reply cannot keep the loop from noticing that trust has ended.
One renewal is under way at a time. The loop computes each wait, so it is not a `host.periodic`,
which has one interval.

    renewal due       send it in a background thread; a failure is retried after a backoff
    silent row        a row without a heartbeat is not renewed; when its trust ends, it is lost as
                      `stale`
    trust ended       no row begins; waiting rows are released; each running row is lost as
                      `untrusted` when its own lease is no longer trusted
    renewal succeeds  trust is back; request an audit
    gap               the loop woke up much later than planned, and trust has ended meanwhile
                      (suspend, SIGSTOP, a frozen container). As above, but nothing is settled, and
                      the running rows go on, because the store was not asked yet. The renewal comes
                      first. Then the audit finds the rows that are lost. Without a renewal the rows
                      are lost as `untrusted` as if the lease had been granted at the end of the
                      gap. A row could not send a heartbeat during the gap, so none counts as silent
                      for the first `stale_after` seconds after it.

All moments are on `Clock.boottime()`. Waits do not count suspend, so the loop may wake up late. A
thread that finds trust ended wakes it (`LeaseTrust.recheck`).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TypeVar

from longwatch.core.deadline import Deadline
from longwatch.core.events.engine import LeaseLost, LeasesRenewed
from longwatch.core.jitter import random_fraction
from longwatch.core.lease import RenewalSchedule
from longwatch.engine.claim_source import ClaimedRow, ClaimSource, computations, message_ids
from longwatch.engine.context import RowContext
from longwatch.engine.exchange_loop import ExchangeLoop
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.slot_pool import SlotPool
from longwatch.engine.source_call import SourceCall
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.claims import Claim

T = TypeVar("T")
_PARENT_SHARE = 0.9
"""Fraction of the trusted time that the engine leaves to a parent before it renews itself."""
_EARLY = 0.2
"""Fraction of the interval over which renewals are spread, so that many engines do not renew
together.
"""
_GAP = 0.05
"""A wake-up late by more than this fraction of the lease counts as a gap. Trust can end only in a
larger gap, also under a parent; the usual delay of a thread is smaller.
"""


class RenewalCall:
    """Sends renewals to one store, and makes the schedule back off after a failure."""

    def __init__(self, schedule: RenewalSchedule, engine_context: EngineContext) -> None:
        self.schedule = schedule
        self._clock = engine_context.clock
        self._source_call = SourceCall("renew", engine_context)

    def run(self, renew: Callable[[], T]) -> T | None:
        """Return what the renewal returns, or None if the store did not confirm it."""
        rows = self._source_call.run(renew)
        if rows is None:
            self.schedule.failed(self._clock.boottime(), retry_in=self._source_call.retry_in)
        else:
            self.schedule.succeeded()
        return rows


class LeaseRenewer:
    """Renews the leases of one engine while it holds any.

    Each round also requests an audit, even without rows: a store that was restored from a backup
    may know leases that the engine does not hold.
    """

    def __init__(
        self,
        source: ClaimSource,
        lease_trust: LeaseTrust,
        slot_pool: SlotPool,
        exchange_loop: ExchangeLoop,
        engine_context: EngineContext,
    ) -> None:
        self._source = source
        self._lease_trust = lease_trust
        self._slot_pool = slot_pool
        self._held_count = exchange_loop.held_count
        self._request_audit = exchange_loop.request_audit
        self._wake_exchange_loop = exchange_loop.wake
        self._policy = engine_context.policy
        self._name = engine_context.name
        self._clock = engine_context.clock
        self._events = engine_context.events
        self._cycle_call = SourceCall("renew_leases", engine_context)
        lease = self._policy.lease
        self._schedule = RenewalSchedule(
            lease,
            renew_seconds=lease.trust_seconds * _PARENT_SHARE
            if lease_trust.is_renewed_by_parent
            else None,
            early=_EARLY,
        )
        self._renewal_call = RenewalCall(self._schedule, engine_context)
        self._renewal: BackgroundThread | None = None
        self._unrenewed: dict[Claim, float] = {}
        self._wakeup = lease_trust.recheck
        self._wake_by = inf
        """When the loop planned to wake up."""
        self._resumed_at = -inf
        """When the loop last woke up much later than planned."""
        self._spared_until = -inf
        """Until when running rows go on after a gap without a renewal."""
        self._is_stopping = False
        self.thread = BackgroundThread(
            self._loop, name=f"{engine_context.name}-lease-renewer", report_errors=True
        )

    @property
    def in_own_thread(self) -> bool:
        return self.thread.in_own_thread

    def stop(self, deadline: Deadline) -> bool:
        """Stop the loop and wait for a renewal under way. Returns False if the deadline passes
        first.
        """
        self._is_stopping = True
        self._wakeup.set()
        return self.thread.wait(self._clock, deadline) and self._wait_renewal(deadline)

    def _loop(self) -> None:
        while not self._is_stopping:
            self._cycle_call.run(self._run_once)
            if self._cycle_call.retry_in:
                self._clock.wait(self._wakeup, self._cycle_call.retry_in)

    def _run_once(self) -> None:
        now = self._clock.boottime()
        timeout = self._wait_timeout(now)
        self._wake_by = now + timeout
        self._clock.wait(self._wakeup, timeout)
        self._wakeup.clear()
        self._check(self._clock.boottime())

    def _wait_timeout(self, now: float) -> float:
        """Return the seconds until the next decision. Without rows one round is early enough for
        rows claimed meanwhile.
        """
        round_seconds = self._schedule.interval(random_fraction())
        if not self._held_count() and not self._lease_trust.is_lapsed:
            return round_seconds
        moments = [*self._unrenewed.values()]
        if not self._is_renewing():
            moments.append(self._schedule.next_renewal(self._lease_trust.lease, random_fraction()))
        if self._lease_trust.is_lapsed:
            moments += [
                max(self._trusted_until(context), self._spared_until)
                for context in self._trusted_contexts()
            ]
        else:
            moments.append(self._lease_trust.trusted_until)
        return max(min([*moments, now + round_seconds]) - now, 0.0)

    def _check(self, now: float) -> None:
        if self._is_stopping:
            return
        if now - self._wake_by > _GAP * self._policy.lease.lease_seconds:
            self._resumed_at = now
            if self._lease_trust.is_lapsed and self._lease_trust.is_after_gap:  # a gap after a gap
                self._spared_until = now + self._policy.lease.trust_seconds
        self._lease_trust.refresh()
        holds_rows = self._held_count() > 0
        if self._lease_trust.is_expired(now, holds_rows=holds_rows):
            self._end_trust(now)
        self._lease_trust.checked_at = now
        if not (holds_rows or self._lease_trust.is_lapsed):
            self._request_audit()
            return
        if self._lease_trust.is_lapsed and now >= self._spared_until:
            self._lose_untrusted(now)
        self._lose_stale(now)
        due = self._lease_trust.is_lapsed or self._schedule.is_due(self._lease_trust.lease, now)
        if due and not (self._schedule.is_backing_off(now) or self._is_renewing()):
            self._start_renewal(now)

    # --- renewals ---

    def _is_renewing(self) -> bool:
        return self._renewal is not None and not self._renewal.done.is_set()

    def _start_renewal(self, now: float) -> None:
        skip = self._stale_claims(now)
        renewal = BackgroundThread(
            lambda: self._renew(skip, now), name=f"{self._name}-renewal", report_errors=True
        )
        renewal.done.subscribe(self._wakeup.set)
        self._renewal = renewal
        renewal.start(inline_fallback=True)

    def _renew(self, skip: list[Claim], requested_at: float) -> None:
        lease_seconds = self._policy.lease.lease_seconds
        count = self._renewal_call.run(lambda: self._send_renewal(lease_seconds, skip))
        if count is not None:
            was_lapsed = self._lease_trust.is_lapsed
            self._lease_trust.record_grant(requested_at)
            self._request_audit()
            if was_lapsed:
                self._wake_exchange_loop()
            self._events.emit(LeasesRenewed(engine=self._name, rows=count))

    def _send_renewal(self, lease_seconds: float, skip: list[Claim]) -> int:
        if not skip:
            return self._source.renew(owner=self._lease_trust.owner, lease_seconds=lease_seconds)
        return self._source.renew(
            owner=self._lease_trust.owner, lease_seconds=lease_seconds, skip=skip
        )

    def _wait_renewal(self, deadline: Deadline) -> bool:
        return self._renewal is None or self._renewal.wait(self._clock, deadline)

    # --- lost leases ---

    def _end_trust(self, now: float) -> None:
        """End trust: no row begins, and waiting rows are released once the store replies. After a
        gap the running rows go on for a while.
        """
        lease = self._policy.lease
        is_after_gap = now == self._resumed_at
        if is_after_gap:
            self._spared_until = now + lease.trust_seconds
        self._lease_trust.mark_lapsed(is_after_gap=is_after_gap)
        self._slot_pool.release_waiting()

    def _lose_untrusted(self, now: float) -> None:
        """Cancel the running rows whose lease is no longer trusted. A row with a longer lease goes
        on until that ends.
        """
        lost = [
            context for context in self._trusted_contexts() if now >= self._trusted_until(context)
        ]
        for context in lost:
            self._slot_pool.lose_lease(context, is_blameless=True)
        if lost:
            self._emit_lost([context.claimed for context in lost], "untrusted")

    def _trusted_contexts(self) -> list[RowContext]:
        return [
            context
            for context in self._slot_pool.running()
            if not (context.settled or context.lease_lost)
        ]

    def _trusted_until(self, context: RowContext) -> float:
        lease = self._lease_trust.lease
        return (
            lease.granted_at
            + max(context.claimed.lease_seconds or 0.0, lease.policy.lease_seconds)
            * lease.policy.trust
        )

    def _stale_claims(self, now: float) -> list[Claim]:
        """Return the claims that are not renewed because their code sends no heartbeat. Their trust
        ends by itself.
        """
        stale_after = self._policy.stale_after
        if stale_after is None:
            return []
        stale = {context.claimed.claim for context in self._slot_pool.stale(stale_after)}
        if now - self._resumed_at <= stale_after:
            stale &= self._unrenewed.keys()
        until = self._lease_trust.trusted_until
        self._unrenewed = {claim: self._unrenewed.get(claim, until) for claim in stale}
        return list(stale)

    def _lose_stale(self, now: float) -> None:
        ended = {claim for claim, until in self._unrenewed.items() if now >= until}
        for context in self._slot_pool.running():
            if context.claimed.claim in ended and not context.lease_lost:
                self._slot_pool.lose_lease(context, is_blameless=False)
                self._emit_lost([context.claimed], "stale")
        for claim in ended:
            self._unrenewed[claim] = inf

    def _emit_lost(self, rows: list[ClaimedRow], reason: str) -> None:
        self._events.emit(
            LeaseLost(
                engine=self._name,
                message_ids=message_ids(rows),
                computations=computations(rows),
                reason=reason,
            )
        )
