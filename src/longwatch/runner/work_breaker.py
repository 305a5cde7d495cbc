"""The work breaker: after N failed agent runs in a row, no run starts for a while.

closed ──N failures in a row──► open ──cool-down over──► trial ──the trial succeeded──► closed
                                 ▲                        │
                                 └───the trial failed─────┘

`core.breaker` decides. This module adds the needs of dispatch: one trial at a time although rows
are claimed before they start, runs that began before the breaker opened, events, thread-safety.

Invariants
    1. While it is open, it admits no run. Then it admits one, and no other until that one has
       ended. A run that it admitted before it opened may still start.
    2. Only the trial closes it, or opens it again. A run that was admitted before it opened changes
       nothing then.
    3. A run that was cancelled says nothing about the agent: it counts as neither. A cancelled
       trial makes room for another one.
"""

from __future__ import annotations

import threading
from math import inf

from longwatch.core.breaker import Breaker, BreakerPolicy, BreakerState
from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.runner import (
    WorkBreakerClosed,
    WorkBreakerOpened,
    WorkBreakerTrialStarted,
)


class WorkBreaker:
    """Counts the failures of agent runs in a row and decides whether a run may start. Thread-safe.
    Does not block. Its state is lost with the process.
    """

    def __init__(self, *, failures: int, cooldown: float, clock: Clock, events: Events) -> None:
        policy = BreakerPolicy(tolerated=failures - 1, window=inf, cooldown=cooldown)
        self._breaker = Breaker(policy)
        self._cooldown = cooldown
        self._clock = clock
        self._events = events
        self._lock = threading.Lock()
        self._failures = 0
        self._opened_at: float | None = None
        self._trial: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open or waits for its trial."""
        return self._opened_at is not None

    def admit(self, limit: int) -> int:
        """Return how many of `limit` events may be claimed now: none while it is open or a trial
        runs, one for the trial.
        """
        with self._lock:
            match self._breaker.state(self._clock.monotonic()):
                case BreakerState.CLOSED:
                    return limit
                case BreakerState.HALF_OPEN if self._trial is None:
                    return min(limit, 1)
        return 0

    def try_start(self, run_id: str) -> bool:
        """Return whether a run may start. If so, the caller must `record` its end."""
        with self._lock:
            if not self._breaker.allow_start(self._clock.monotonic()):
                return False
            if self._opened_at is None:
                return True
            self._trial = run_id
        self._events.emit(WorkBreakerTrialStarted())
        return True

    def record(self, run_id: str, *, success: bool | None) -> None:
        """Record how a run ended. None: it was cancelled, which counts as neither."""
        with self._lock:
            event = self._record(success=success, is_trial=run_id == self._trial)
        if event is not None:
            self._events.emit(event)

    def _record(
        self, *, success: bool | None, is_trial: bool
    ) -> WorkBreakerOpened | WorkBreakerClosed | None:
        if is_trial:
            self._trial = None
        elif self._opened_at is not None:
            return None
        if success is None:
            if is_trial:
                self._breaker.trial_aborted()
            return None
        return self._succeed() if success else self._fail()

    def _succeed(self) -> WorkBreakerClosed | None:
        self._breaker.succeeded()
        opened_at, self._opened_at, self._failures = self._opened_at, None, 0
        if opened_at is None:
            return None
        return WorkBreakerClosed(open_for=self._clock.monotonic() - opened_at)

    def _fail(self) -> WorkBreakerOpened | None:
        self._failures += 1
        now = self._clock.monotonic()
        if not self._breaker.failed(now):
            return None
        self._opened_at = now if self._opened_at is None else self._opened_at
        return WorkBreakerOpened(failures=self._failures, cooldown=self._cooldown)
