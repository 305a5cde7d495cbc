"""The right to work on a row until a time: when to renew it, and when to stop believing in it.

Two clocks run on one lease. The store starts counting when it *handles* the claim, and may give the
row to someone else `duration` seconds later. The holder cannot read that clock, so it starts its
own when it is *about to send* the claim, which is never later, and stops believing after `trust` ×
`duration`, which is always earlier. What lies between is the time to stop the work before anyone
else can begin it; it also covers clocks that run at slightly different speeds.

    granted_at      renew        renew   trusted_until  expires_at
        |-------------|-------------|---------|-------------|
        0            1/3           2/3       0.8            1

With renewals a third of the lease apart, two come due while the lease is trusted; both may fail or
come late, and what is left until 0.8 is for quick retries. A failed renewal proves nothing (its
answer may have been lost), so it changes nothing here: the lease stays due. Only a renewal that the
store confirmed moves it, only the end of trust ends it. The *term* is the fencing number of the
claim: a renewal keeps it, a new claim by anyone raises it, and the store refuses writes with an
older one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum, auto
from math import isfinite
from typing import Self


class LeaseAction(StrEnum):
    """What the holder of a lease has to do now."""

    HOLD = auto()
    RENEW = auto()
    STEP_DOWN = auto()


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """How long a lease lasts in the store, and at which fractions of that it is renewed and no
    longer trusted.

    `renew_at` is at most a third, and the second renewal comes due before trust ends: 2 ×
    `renew_at` < `trust` < 1.
    """

    lease_seconds: float
    renew_at: float = 1 / 3
    trust: float = 0.8

    def __post_init__(self) -> None:
        if not (isfinite(self.lease_seconds) and self.lease_seconds > 0):
            raise ValueError(
                f"duration must be a number of seconds above 0, not {self.lease_seconds}"
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


@dataclass(frozen=True, slots=True)
class Lease:
    """One holder's view of one lease; times are on the holder's monotonic clock.

    `granted_at` is the moment just before the claim, or the last confirmed renewal, was sent.
    """

    owner: str
    term: int
    granted_at: float
    policy: LeasePolicy

    @property
    def trusted_until(self) -> float:
        return self.granted_at + self.policy.lease_seconds * self.policy.trust

    @property
    def expires_at(self) -> float:
        """The earliest moment at which the store may give the row to someone else."""
        return self.granted_at + self.policy.lease_seconds

    def next_renewal(self) -> float:
        """When the renewal comes due."""
        return self.granted_at + self.policy.lease_seconds * self.policy.renew_at

    def is_renewal_due(self, now: float) -> bool:
        return now >= self.next_renewal()

    def is_trusted(self, now: float) -> bool:
        """Whether work under this lease may go on; no longer at exactly `trusted_until`."""
        return now < self.trusted_until

    def action(self, now: float) -> LeaseAction:
        if not self.is_trusted(now):
            return LeaseAction.STEP_DOWN
        return LeaseAction.RENEW if self.is_renewal_due(now) else LeaseAction.HOLD

    def renewed(self, at: float) -> Self:
        """This lease after a confirmed renewal that was about to be sent `at`; a late answer to
        an older one shortens nothing.
        """
        return replace(self, granted_at=max(self.granted_at, at))
