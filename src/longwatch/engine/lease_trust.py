"""Whether the leases of an engine are trusted, on this side's clock.

All of them are renewed together, so one moment stands for all: the earliest of their grants. It is
set by the first claim when nothing is held, and moved by renewals; a row that was claimed later
lasts longer in the store than is believed here.

A parent that renews for us writes the moment on our page, where it counts at once, whatever holds
up the threads of this process. It counts from the moment the parent was about to ask, so it holds
for every row that was ours then; one that was claimed after that has a later lease.
"""

from __future__ import annotations

import threading
from math import inf

from longwatch.core.clock import Clock
from longwatch.core.lease import Lease, LeasePolicy
from longwatch.host.beatpage import BeatPage


class LeaseTrust:
    """The engine's view of its leases. Thread-safe; `trusted_until` may be read without the
    lock. `is_renewed_by_parent`: the parent renews them.
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
        self._lease = Lease(str(owner), owner, clock.monotonic(), policy)
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()

    @property
    def lease(self) -> Lease:
        return self._lease

    def record_grant(self, requested_at: float) -> None:
        """All that is held was claimed or renewed by a call that was about to be made at this
        moment; mends what was broken.
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
        """Take over what a parent has renewed."""
        if self.is_renewed_by_parent and (until := self._page.trusted_until) > self.trusted_until:
            self.record_grant(until - self._lease.policy.lease_seconds * self._lease.policy.trust)

    def is_expired(self, now: float) -> bool:
        """Whether trust has ended and nobody has said so yet."""
        return not self.is_lapsed and now >= self.trusted_until

    def mark_lapsed(self) -> None:
        """Trust has ended: nothing is begun until the leases are granted again."""
        with self._lock:
            self.is_lapsed = True
            self._trust_until(-inf)

    def _trust_until(self, moment: float) -> None:
        self.trusted_until = moment
        if not self.is_renewed_by_parent or moment > self._page.trusted_until:
            self._page.trust_until(moment)
