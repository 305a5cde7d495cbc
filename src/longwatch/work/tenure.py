"""Whether the leases of an engine are trusted, on this side's clock.

All of them are renewed together, so one moment stands for all: the earliest of their grants. It is set by the first claim when
nothing is held, and moved by renewals; a row that was claimed later lasts longer in the store than is believed here.
"""

from __future__ import annotations

import threading
from math import inf

from longwatch.core.clock import Clock
from longwatch.core.lease import Lease, LeasePolicy
from longwatch.host.beatpage import BeatPage


class Tenure:
    """The engine's view of its leases. Thread-safe; `trusted_until` may be read without the lock."""

    def __init__(self, owner: int, policy: LeasePolicy, *, clock: Clock, page: BeatPage) -> None:
        self.owner = owner
        self.broken = False
        self.trusted_until = -inf
        self._lease = Lease(str(owner), owner, clock.monotonic(), policy)
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()

    @property
    def lease(self) -> Lease:
        return self._lease

    def granted(self, asked: float) -> None:
        """All that is held was claimed or renewed by a call that was about to be made at this moment; mends what was broken."""
        with self._lock:
            self._lease = self._lease.renewed(asked)
            if self._lease.trusted(self._clock.monotonic()):
                self.broken = False
                self._trust_until(self._lease.trusted_until)

    def has_ended(self, now: float) -> bool:
        """Whether trust has ended and nobody has said so yet."""
        return not self.broken and now >= self.trusted_until

    def end(self) -> None:
        """Trust has ended: nothing is begun until the leases are granted again."""
        with self._lock:
            self.broken = True
            self._trust_until(-inf)

    def _trust_until(self, moment: float) -> None:
        self.trusted_until = moment
        self._page.trust_until(moment)
