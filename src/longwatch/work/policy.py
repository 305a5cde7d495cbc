"""How an engine works, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock
from longwatch.core.events import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.host.parent import ParentLine

MOST_SLOTS = 10_000
MOST_AT_ONCE = 500
"""Rows settled or claimed in one exchange: no exchange holds the store for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicy:
    """The settings of an engine; durations in seconds.

    `slots`           rows that run at the same time
    `lease`           how long a lease lasts, when it is renewed, how long it is trusted
    `retry`           the waits between the tries of a row whose work raises
    `settle_within`   what is done is settled together, at the latest so long after the first of it
                      …
    `settle_batch`    … or when so many are done
    `sweep_every`     how often it looks for dead owners and ended leases
    `poll`            how often it looks for rows, should a hint be lost
    `stale_after`     a row whose code has given no beat for so long is not kept any more: its lease
                      is left to run out; None: as long as the process lives
    `alone_within`    how long a row that has to run alone waits for the others to end, before it is
                      left to other workers for as long
    `cancel_grace`    how long before the deadline of a stop what still runs is cancelled, at most a
                      tenth of the time left
    `most_ahead`      rows that wait here beyond those that run, at the most; None: as many as can
                      be begun soon
    `polls`           it takes rows so many times and no more; None: for ever
    `poll_wait`       how long one of those times may wait for a row
    """

    slots: int = 1
    lease: LeasePolicy = field(default_factory=lambda: LeasePolicy(300.0))
    retry: BackoffPolicy = field(
        default_factory=lambda: BackoffPolicy(initial=10.0, factor=2.0, cap=900.0, jitter=0.25)
    )
    settle_within: float = 0.005
    settle_batch: int = 100
    sweep_every: float = 0.5
    poll: float = 1.0
    stale_after: float | None = None
    alone_within: float = 10.0
    cancel_grace: float = 1.0
    most_ahead: int | None = None
    polls: int | None = None
    poll_wait: float = 0.0

    def __post_init__(self) -> None:
        _require("slots", self.slots, 1 <= self.slots <= MOST_SLOTS, f"in 1…{MOST_SLOTS}")
        _require("settle_batch", self.settle_batch, self.settle_batch >= 1, "at least 1")
        _require(
            "polls",
            self.polls or 0,
            self.polls is None or self.polls >= 0,
            "a whole number from 0 up, or None",
        )
        for name in ("settle_within", "cancel_grace", "poll_wait"):
            value = getattr(self, name)
            _require(name, value, isfinite(value) and value >= 0, "a number of seconds from 0 up")
        for name in ("sweep_every", "poll", "alone_within"):
            value = getattr(self, name)
            _require(name, value, isfinite(value) and value > 0, "a number of seconds above 0")
        _require(
            "stale_after",
            self.stale_after or 0,
            self.stale_after is None or self.stale_after > 0,
            "above 0, or None",
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every part of one engine is given."""

    name: str
    policy: EnginePolicy
    clock: Clock
    events: Events
    heartbeat: Heartbeat
    """The engine's own, beside those of its slots."""
    parent: ParentLine | None = None
    """Who renews our leases, if somebody does."""
    failing: list[str] = field(default_factory=list)
    """The calls to the source that fail at present; the first of them speaks for all."""


def _require(name: str, value: float, holds: bool, rule: str) -> None:  # noqa: FBT001 - the condition is the point of the call
    if not holds:
        raise ValueError(f"{name} must be {rule}, not {value}")
