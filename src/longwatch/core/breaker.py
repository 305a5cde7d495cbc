"""When to stop trying, and when to try once more.

closed
──too many failures, or trip()──► open ──cool-down over──► half_open ──the trial succeeded──► closed
                                    ▲                          │
                                    └──────the trial failed────┘

Open without a cool-down (`cooldown=None`, or `trip(trial=False)`) only `reset()` leads out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from math import inf
from typing import Any, Self


class BreakerState(StrEnum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """How many failures are tolerated in any `window` seconds; one more trips the breaker.

    A window of infinity counts failures in a row: the N-th trips with `tolerated=N - 1`. `cooldown`
    is how long it stays open before one trial; None: until a person resets it.
    """

    tolerated: int = 5
    window: float = 60.0
    cooldown: float | None = 300.0

    def __post_init__(self) -> None:
        if self.tolerated < 0:
            raise ValueError(f"tolerated must be a count from 0 up, not {self.tolerated}")
        if not self.window > 0:
            raise ValueError(f"window must be a number of seconds above 0, not {self.window}")
        if self.cooldown is not None and not 0 < self.cooldown < inf:
            raise ValueError(
                f"cooldown must be a number of seconds above 0, or None for by hand only, not "
                f"{self.cooldown}"
            )


class Breaker:
    """Counts the failures of one thing and says whether it may be started.

    `now` is whatever clock its owner keeps; wall time if the state outlives the process. A failure
    counts while it is younger than the window: at exactly `window` seconds it is forgotten. If the
    clock was set back, moments that now lie in the future become *now*: a cool-down may start anew,
    but never waits for the old time to return. One owner; not thread-safe.
    """

    __slots__ = (
        "_failure_times",
        "_opened_at",
        "_reason",
        "_trial_allowed",
        "_trial_running",
        "policy",
    )

    _failure_times: tuple[float, ...]
    _opened_at: float | None
    _reason: str
    _trial_allowed: bool
    _trial_running: bool

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.reset()

    @property
    def reason(self) -> str:
        """Why it is not closed; empty while it is."""
        return self._reason

    @property
    def failure_times(self) -> tuple[float, ...]:
        """The moments of the failures inside the window, as of the last call that was told the
        time; the newest `tolerated` + 1.
        """
        return self._failure_times

    def failed(self, now: float) -> bool:
        """Record a failure; True if it trips the breaker, or opens it again after a trial. While
        it is open: False.
        """
        state = self.state(now)
        self._failure_times = (*self._failure_times, now)[-(self.policy.tolerated + 1) :]
        too_many = len(self._failure_times) > self.policy.tolerated
        trips = state is BreakerState.HALF_OPEN or (state is BreakerState.CLOSED and too_many)
        if trips:
            self.trip(
                now, self._trip_reason() if state is BreakerState.CLOSED else "the trial failed"
            )
        return trips

    def succeeded(self) -> None:
        """A stable run: forget the failures, and close if it was the trial. A run that merely
        outlived the trip changes nothing.
        """
        if self._opened_at is None or self._trial_running:
            self.reset()

    def trial_aborted(self) -> None:
        """The trial ended without a verdict (cancelled, shut down): the next `allow_start` may
        grant another.
        """
        self._trial_running = False

    def allow_start(self, now: float) -> bool:
        """Ask for a start. Half-open, the first to ask gets the trial, and no one else until it
        has ended one way or another.
        """
        state = self.state(now)
        if state is not BreakerState.HALF_OPEN:
            return state is BreakerState.CLOSED
        granted, self._trial_running = not self._trial_running, True
        return granted

    def state(self, now: float) -> BreakerState:
        left = self.cooldown_remaining(now)
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if left == 0 else BreakerState.OPEN

    def cooldown_remaining(self, now: float) -> float | None:
        """Seconds until it is no longer open: 0.0 if it is not, None if only `reset` leads out."""
        self._expire(now)
        if self._opened_at is None:
            return 0.0
        if self.policy.cooldown is None or not self._trial_allowed:
            return None
        return max(self._opened_at + self.policy.cooldown - now, 0.0)

    def trip(self, now: float, reason: str, *, trial: bool = True) -> None:
        """Open it, whatever it was; `trial=False`: no trial will help, only a person."""
        self._opened_at, self._reason = now, reason
        self._trial_allowed, self._trial_running = trial, False

    def reset(self) -> None:
        """Close it and forget everything."""
        self._failure_times, self._opened_at, self._reason = (), None, ""
        self._trial_allowed, self._trial_running = True, False

    def to_dict(self) -> dict[str, Any]:
        """Its state in plain JSON types. A running trial is left out: whoever restores the state
        will not hear how it ended.
        """
        state = {"opened_at": self._opened_at, "reason": self._reason, "trial": self._trial_allowed}
        return {"events": list(self._failure_times), **state}

    @classmethod
    def from_dict(cls, policy: BreakerPolicy, data: Mapping[str, Any]) -> Self:
        breaker = cls(policy)
        if data["opened_at"] is not None:
            breaker.trip(data["opened_at"], data["reason"], trial=data["trial"])
        breaker._failure_times = tuple(data["events"])[-(policy.tolerated + 1) :]
        return breaker

    def _expire(self, now: float) -> None:
        """Forget what left the window; pull what a clock set back has put into the future to
        now.
        """
        self._failure_times = tuple(
            min(event, now) for event in self._failure_times if now - event < self.policy.window
        )
        if self._opened_at is not None:
            self._opened_at = min(self._opened_at, now)

    def _trip_reason(self) -> str:
        span = "in a row" if self.policy.window == inf else f"in {self.policy.window:g} s"
        return f"{len(self._failure_times)} failures {span}"
