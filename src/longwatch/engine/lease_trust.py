"""Whether an engine trusts its leases, by the clock of its process.

All leases of an engine are renewed together, so one `Lease` stands for all: that with the earliest
grant. The first claim sets it when the engine holds nothing, and renewals extend it. A row that was
claimed later lasts longer in the store than it is trusted here.

A parent that renews for the engine writes the end of trust on the engine's page. There it counts at
once, even if all threads of this process are held up. It is counted from the moment before the
parent sent the renewal, so it is right for every row that was held then.
"""

from __future__ import annotations

import threading
from math import inf

from longwatch.core.clock import Clock
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
        self.trusted_until = -inf
        self._lease = Lease(clock.monotonic(), policy)
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()

    @property
    def lease(self) -> Lease:
        return self._lease

    def record_grant(self, requested_at: float) -> None:
        """Every held row was claimed or renewed by a call that was about to be sent at this
        moment. Ends a lapse if that is recent enough.
        """
        with self._lock:
            self._lease = self._lease.renewed(requested_at)
            if self._lease.is_trusted(self._clock.monotonic()):
                self.is_lapsed = False
                self._trust_until(self._lease.trusted_until)

    def is_trusted(self, now: float) -> bool:
        """Whether rows may begin to run."""
        return now < self.trusted_until or (
            self.is_renewed_by_parent and now < self._page.trusted_until
        )

    def refresh(self) -> None:
        """Read from the page what the parent has renewed."""
        if self.is_renewed_by_parent and (until := self._page.trusted_until) > self.trusted_until:
            self.record_grant(until - self._lease.policy.trust_seconds)

    def is_expired(self, now: float) -> bool:
        """Whether trust has ended and is not marked as lapsed yet."""
        return not self.is_lapsed and now >= self.trusted_until

    def mark_lapsed(self) -> None:
        """Trust has ended: no row begins until the leases are granted again."""
        with self._lock:
            self.is_lapsed = True
            self._trust_until(-inf)

    def _trust_until(self, moment: float) -> None:
        self.trusted_until = moment
        if not self.is_renewed_by_parent or moment > self._page.trusted_until:
            self._page.trust_until(moment)
