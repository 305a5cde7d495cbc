"""Leases: when a holder renews one, when it retries, and until when it trusts one.

Two clocks run on one lease. The store starts counting when it *handles* the claim, and may give the
row to another owner `lease_seconds` later. The holder cannot read that clock. So it starts its own
when it is *about to send* the claim, which is never later. It stops trusting the lease after
`trust` × `lease_seconds`, which is always earlier. The time between is for stopping the work before
another owner can begin it. It also covers clocks that run at slightly different speeds. The store's
clock continues while the holder's machine is suspended, so the holder counts on `Clock.boottime()`.

    granted_at      renew        renew   trusted_until  expires_at
        |-------------|-------------|---------|-------------|
        0            1/3           2/3       0.8            1

With renewals a third of the lease apart, two come due while the lease is trusted. Both may fail or
come late, and the rest until 0.8 is for quick retries. A failed renewal proves nothing, because its
response may have been lost. So it does not change the lease: the renewal stays due, and is retried
after a backoff. Only a renewal that the store confirmed extends the lease, and only the end of
trust ends it.

Two loops renew, and both decide here: an engine renews its own leases (`engine.lease_renewer`), and
a parent renews those of its workers (`workers.lease_renewer`). A worker's engine renews shortly
before trust ends, if its parent has not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Self


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long a lease lasts in the store, and the fractions of that at which renewal is due and
    trust ends.

    `renew_at` is at most a third, and the second renewal comes due before trust ends: 2 ×
    `renew_at` < `trust` < 1.
    """

    lease_seconds: float
    renew_at: float = 1 / 3
    trust: float = 0.8

    def __post_init__(self) -> None:
        if not (isfinite(self.lease_seconds) and self.lease_seconds > 0):
            raise ValueError(
                f"lease_seconds must be a number of seconds above 0, not {self.lease_seconds}"
            )
        if not 0 < self.renew_at <= 1 / 3:
            raise ValueError(
                f"renew_at must be above 0 and at most 1/3, or one late renewal loses the "
                f"lease, not {self.renew_at}"
            )
        if not 2 * self.renew_at < self.trust < 1:
            raise ValueError(
                f"trust must be between 2 × renew_at ({2 * self.renew_at:.3f}) and 1, not "
                f"{self.trust}"
            )

    @property
    def renew_seconds(self) -> float:
        return self.lease_seconds * self.renew_at

    @property
    def trust_seconds(self) -> float:
        return self.lease_seconds * self.trust


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's view of one lease; times are on the holder's `boottime()`.

    `granted_at` is the moment just before the claim, or the last confirmed renewal, was sent.
    """

    granted_at: float
    policy: LeasePolicy

    @property
    def trusted_until(self) -> float:
        return self.granted_at + self.policy.trust_seconds

    @property
    def expires_at(self) -> float:
        """The earliest moment at which the store may give the row to another owner."""
        return self.granted_at + self.policy.lease_seconds

    def is_trusted(self, now: float) -> bool:
        """Whether work under this lease may continue; False from exactly `trusted_until` on."""
        return now < self.trusted_until

    def renewed(self, at: float) -> Self:
        """Return this lease after a confirmed renewal that was about to be sent `at`.

        A late response to an older renewal does not shorten it.
        """
        return replace(self, granted_at=max(self.granted_at, at))


class RenewalSchedule:
    """Decides when a loop renews leases and when it retries. Sends nothing and never waits.

    A renewal is due `renew_seconds` after the grant, by default those of the policy. A loop may
    renew up to the fraction `early` of that time sooner, never later. Loops need that if they wake
    up in rounds, or at random moments so that many loops do not renew together. `failed` makes the
    loop back off.
    """

    def __init__(
        self, policy: LeasePolicy, *, renew_seconds: float | None = None, early: float = 0.0
    ) -> None:
        self._latest = policy.renew_seconds if renew_seconds is None else renew_seconds
        self._earliest = self._latest * (1 - early)
        self._retry_at = -inf

    def interval(self, jitter: float = 1.0) -> float:
        """Return the seconds from a grant to its renewal: the fewest for a jitter of 0, the most
        for 1.
        """
        return self._earliest + (self._latest - self._earliest) * jitter

    def next_renewal(self, lease: Lease, jitter: float = 1.0) -> float:
        """Return when to wake up for the renewal or the retry of this lease."""
        return max(lease.granted_at + self.interval(jitter), self._retry_at)

    def is_due(self, lease: Lease, now: float) -> bool:
        """Whether a loop that is awake now should renew the lease."""
        return now >= lease.granted_at + self._earliest

    def is_backing_off(self, now: float) -> bool:
        """Whether the last renewal failed so recently that the loop must not retry yet."""
        return now < self._retry_at

    def failed(self, now: float, *, retry_in: float) -> None:
        self._retry_at = now + retry_in

    def succeeded(self) -> None:
        self._retry_at = -inf
