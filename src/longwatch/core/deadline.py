"""Deadlines: the time until which a call has to be done."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isnan
from typing import Self

from longwatch.core.clock import Clock


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment `at` on `clock.monotonic()`; infinity means never.

    Made once by the outermost caller and passed down, so that every step counts from the same
    start. It has expired from its moment on: at exactly `at` nothing remains. Compare only
    deadlines of the same clock.
    """

    at: float
    clock: Clock

    def __post_init__(self) -> None:
        if isnan(self.at):
            raise ValueError("a deadline's moment must be a number, not nan")

    @classmethod
    def after(cls, seconds: float | None, clock: Clock) -> Self:
        """Return a deadline this many seconds from now; None is never, 0 and less have already
        expired.
        """
        return cls(inf if seconds is None else clock.monotonic() + seconds, clock)

    @classmethod
    def never(cls, clock: Clock) -> Self:
        return cls(inf, clock)

    @property
    def expired(self) -> bool:
        return self.clock.monotonic() >= self.at

    def remaining(self) -> float | None:
        """Return the seconds left, 0.0 once it has expired, None for never: the timeout
        of a wait.
        """
        return None if self.at == inf else max(self.at - self.clock.monotonic(), 0.0)

    def capped(self, seconds: float | None) -> Self:
        """Return the earlier of this deadline and one `seconds` from now; None changes nothing."""
        return self.earlier(self.after(seconds, self.clock))

    def earlier(self, other: Self) -> Self:
        return self if self.at <= other.at else other
