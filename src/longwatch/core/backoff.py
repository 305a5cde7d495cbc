"""Decides how long to wait before the next try.

A Backoff never sleeps. The caller reports how each try ended, gets the delay, and waits by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import isfinite

from longwatch.core.jitter import random_fraction


def random_spread() -> float:
    """Return a random position inside the jitter, a number in -1…1."""
    return 2 * random_fraction() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffPolicy:
    """The length of the delays: `initial` × `factor`ⁿ, never above `cap`.

    `jitter` is a fraction: 0.25 spreads a delay over ±25 %. The cap holds after the spread. At the
    cap the spread still goes downwards, so that many waiters do not retry at the same moment. After
    a try that lasted longer than `stable_after` seconds, the next failure counts as the first.
    """

    initial: float = 1.0
    factor: float = 2.0
    cap: float = 30.0
    jitter: float = 0.0
    stable_after: float = 60.0

    def __post_init__(self) -> None:
        _require(
            isfinite(self.initial) and self.initial >= 0,
            "initial",
            "a number of seconds from 0 up",
            self.initial,
        )
        _require(
            isfinite(self.factor) and self.factor >= 1, "factor", "a number from 1 up", self.factor
        )
        _require(
            isfinite(self.cap) and self.cap >= self.initial,
            "cap",
            f"at least initial ({self.initial})",
            self.cap,
        )
        _require(0 <= self.jitter <= 1, "jitter", "a fraction in 0…1", self.jitter)
        _require(
            self.stable_after >= 0,
            "stable_after",
            "a number of seconds from 0 up",
            self.stable_after,
        )

    def delay(self, failures: int, *, spread: float = 0.0) -> float:
        """Return the delay after `failures` failures in a row (0 for none).

        `spread` in -1…1 is the position inside the jitter.
        """
        _require(-1 <= spread <= 1, "spread", "a number in -1…1", spread)
        return min(self._base_delay(failures) * (1 + self.jitter * spread), self.cap)

    def _base_delay(self, failures: int) -> float:
        if failures < 1 or not self.initial:
            return 0.0
        try:
            return min(
                self.initial * float(self.factor) ** (failures - 1), self.cap
            )  # an int would grow without bound
        except OverflowError:
            return self.cap


@dataclass(slots=True)
class Backoff:
    """Counts the failures in a row of one repeated operation.

    `spread` returns the position inside the jitter; it is called only if the policy has jitter. Not
    thread-safe.
    """

    policy: BackoffPolicy
    spread: Callable[[], float] = field(default=random_spread, kw_only=True)
    failures: int = field(default=0, kw_only=True)

    def failed(self, *, lasted: float) -> float:
        """Record a failed try that lasted this many seconds; return how long to wait."""
        if lasted > self.policy.stable_after:
            self.failures = 0
        self.failures += 1
        return self.policy.delay(self.failures, spread=self.spread() if self.policy.jitter else 0.0)

    def succeeded(self) -> None:
        """Forget the failures."""
        self.failures = 0


def _require(condition: bool, name: str, rule: str, value: float) -> None:  # noqa: FBT001 - it reads like an assert
    if not condition:
        raise ValueError(f"{name} must be {rule}, not {value}")
