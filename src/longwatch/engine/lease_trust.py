"""Decides whether an engine trusts its leases, by `Clock.boottime()` of its process.

All leases of an engine are renewed together, so one `Lease` stands for all: that with the earliest
grant. The first claim sets it when the engine holds no row, and renewals extend it. A row that was
claimed later is leased in the store for longer than it is trusted here.

A parent that renews for the engine writes the end of trust on the engine's page. There it takes
effect at once, even if all threads of this process are blocked. It is counted from the moment
before the parent sent the renewal, so it holds for every row that was held then.

A gap
    The process stands still while its leases run out: a suspended machine, SIGSTOP, a frozen
    container. Afterwards the lease renewer may still sleep, because waits do not count suspend. So
    each thread that is about to begin, settle, claim or sweep reads the clock itself: `may_begin`,
    `may_act`. The first thread that finds trust ended wakes the lease renewer (`recheck`) and does
    nothing else. After that the engine does nothing until one renewal has succeeded. A store that
    did not reply in time is another case. Then nothing begins and nothing is claimed either, but
    rows that have ended are settled as soon as the store accepts them.
    An engine that holds no row has no lease to decide by. It counts from the last check of its
    lease renewer, as if that had been a grant. Without that rule an idle engine would sweep the
    leases of other workers before they can renew them.
"""

from __future__ import annotations

import threading
from math import inf

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.lease import Lease, LeasePolicy
from longwatch.host.beatpage import BeatPage


class LeaseTrust:
    """The engine's view of its leases. Thread-safe; `trusted_until` may be read without the
    lock.
    """

    def __init__(
        self,
        owner: int,
        policy: LeasePolicy,
        *,
        clock: Clock,
        page: BeatPage,
        is_renewed_by_parent: bool = False,
    ) -> None:
        self.owner = owner
        self.is_renewed_by_parent = is_renewed_by_parent
        self.is_lapsed = False
        self.is_after_gap = False
        """Whether a gap caused the lapse."""
        self.trusted_until = -inf
        self.checked_at = clock.boottime()
        """When the lease renewer last checked. Only the lease renewer writes it."""
        self.recheck = Wakeup()
        """Wakes the lease renewer for a check."""
        self._lease = Lease(self.checked_at, policy)
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()

    @property
    def lease(self) -> Lease:
        return self._lease

    def record_grant(self, requested_at: float) -> None:
        """Record that every held row was claimed or renewed by a call sent no earlier than
        `requested_at`. Ends a lapse if that is recent enough.
        """
        with self._lock:
            self._lease = self._lease.renewed(requested_at)
            if self._lease.is_trusted(self._clock.boottime()):
                self.is_lapsed = self.is_after_gap = False
                self._trust_until(self._lease.trusted_until)

    def is_trusted(self, now: float) -> bool:
        """Return whether rows may begin to run."""
        return now < self.trusted_until or (
            self.is_renewed_by_parent and now < self._page.trusted_until
        )

    def may_begin(self, now: float) -> bool:
        """Return whether rows may begin to run. If not, wake the lease renewer."""
        is_trusted = self.is_trusted(now)
        if not (is_trusted or self.is_lapsed):
            self.recheck.set()
        return is_trusted

    def may_act(self, *, holds_rows: bool) -> bool:
        """Return whether rows may be claimed and swept now."""
        now = self._clock.boottime()
        if not holds_rows and not self.is_lapsed and now < self._idle_until:
            return True
        return self.may_begin(now)

    def may_settle(self, *, holds_rows: bool) -> bool:
        """Return whether rows may be settled now."""
        return (self.is_lapsed and not self.is_after_gap) or self.may_act(holds_rows=holds_rows)

    def refresh(self) -> None:
        """Read the parent's renewals from the page."""
        if self.is_renewed_by_parent and (until := self._page.trusted_until) > self.trusted_until:
            self.record_grant(until - self._lease.policy.trust_seconds)

    def is_expired(self, now: float, *, holds_rows: bool = True) -> bool:
        """Return whether trust has ended and is not yet marked as lapsed."""
        until = self.trusted_until if holds_rows else max(self.trusted_until, self._idle_until)
        return not self.is_lapsed and now >= until

    def mark_lapsed(self, *, is_after_gap: bool = False) -> None:
        """Record that trust has ended: no row begins until the leases are granted again."""
        with self._lock:
            self.is_lapsed, self.is_after_gap = True, is_after_gap
            self._trust_until(-inf)

    @property
    def _idle_until(self) -> float:
        """Until when an engine that holds no row may act without another check."""
        return self.checked_at + self._lease.policy.trust_seconds

    def _trust_until(self, moment: float) -> None:
        self.trusted_until = moment
        if not self.is_renewed_by_parent or moment > self._page.trusted_until:
            self._page.trust_until(moment)
