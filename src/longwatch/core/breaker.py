"""Decides when to stop trying, and when to try once more.

closed
──too many failures, or trip()──► open ──cool-down over──► half_open ──the trial succeeded──► closed
                                    ▲                          │
                                    └──────the trial failed────┘

A breaker that is open without a cool-down (`cooldown=None`, or `trip(trial=False)`) closes only by
`reset()`.
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
    is how long it stays open before one trial; None means until a person resets it.
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
                f"cooldown must be a number of seconds above 0, or None to reset it by hand only, "
                f"not {self.cooldown}"
            )


class Breaker:
    """Counts the failures of one operation and decides whether it may be started. Not thread-safe.

    `now` is from whatever clock its owner uses; wall time if the state outlives the process. A
    failure counts while it is younger than the window: at exactly `window` seconds it is forgotten.
    If the clock was set back, moments that are now in the future become *now*. So a cool-down may
    start anew, but never waits for the old time to return.
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
        """Why it is not closed; empty while it is closed."""
        return self._reason

    @property
    def failure_times(self) -> tuple[float, ...]:
        """The moments of the failures inside the window at the last call with `now`; at most the
        newest `tolerated` + 1.
        """
        return self._failure_times

    def failed(self, now: float) -> bool:
        """Record a failure; True if it trips the breaker or opens it again after a trial, else
        False.
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
        """Record a stable run: forget the failures, and close if it was the trial.

        While the breaker is open, a run that is not the trial changes nothing.
        """
        if self._opened_at is None or self._trial_running:
            self.reset()

    def trial_aborted(self) -> None:
        """Record that the trial ended without a result (cancelled, shut down).

        The next `allow_start` may grant another trial.
        """
        self._trial_running = False

    def allow_start(self, now: float) -> bool:
        """Whether a start is allowed now.

        Half-open, the first caller gets the trial, and no other caller is allowed until the trial
        has ended.
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
        """Return the seconds until it is no longer open: 0.0 if it is not open, None if only
        `reset` closes it.
        """
        self._expire(now)
        if self._opened_at is None:
            return 0.0
        if self.policy.cooldown is None or not self._trial_allowed:
            return None
        return max(self._opened_at + self.policy.cooldown - now, 0.0)

    def trip(self, now: float, reason: str, *, trial: bool = True) -> None:
        """Open it, whatever its state; `trial=False` if no trial can help, only a person."""
        self._opened_at, self._reason = now, reason
        self._trial_allowed, self._trial_running = trial, False

    def reset(self) -> None:
        """Close it and forget all failures."""
        self._failure_times, self._opened_at, self._reason = (), None, ""
        self._trial_allowed, self._trial_running = True, False

    def to_dict(self) -> dict[str, Any]:
        """Return its state in plain JSON types.

        A running trial is left out: its result does not reach the process that restores the state.
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
        """Forget failures that left the window; move moments in the future, after a clock set back,
        to now.
        """
        self._failure_times = tuple(
            min(event, now) for event in self._failure_times if now - event < self.policy.window
        )
        if self._opened_at is not None:
            self._opened_at = min(self._opened_at, now)

    def _trip_reason(self) -> str:
        span = "in a row" if self.policy.window == inf else f"in {self.policy.window:g} s"
        return f"{len(self._failure_times)} failures {span}"
