"""The settings of an engine, and the context that its parts share, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isfinite

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.engine.event_logging import logged_events
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.host.parent_channel import ParentChannel
from longwatch.store.claims import RowSelection

MAX_SLOTS = 10_000
MAX_BATCH = 500
"""Rows settled or claimed in one exchange: no exchange holds the store for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicy:
    """The settings of an engine; durations in seconds.

    `slots`              rows that run at the same time
    `lease`              how long a lease lasts, when it is renewed, how long it is trusted
    `retry`              the waits between the tries of a row whose work raises
    `settle_delay`       finished rows are settled together, at the latest so long after the first
    `settle_batch`       or when so many are finished
    `sweep_interval`     how often it looks for dead owners and lapsed leases
    `poll_interval`      how often it looks for rows, should a notification be lost
    `stale_after`        the lease of a row whose code has given no beat for so long is not renewed
                         any more; None: it is, as long as the process lives
    `exclusive_timeout`  how long a row that has to run alone waits for the others to end, before it
                         is left to other workers for as long
    `cancel_grace`       how long before the deadline of a stop running rows are cancelled, at most
                         a tenth of the time left
    `max_prefetch`       rows that wait here beyond those that run, at most; None: as many as can be
                         begun soon
    `selection`          which rows it claims; under a parent, suspects have processes of their own
    `max_polls`          it claims rows so many times and no more; None: for ever
    `poll_wait`          how long one of those times may wait for a row
    """

    slots: int = 1
    lease: LeasePolicy = field(default_factory=lambda: LeasePolicy(300.0))
    retry: BackoffPolicy = field(
        default_factory=lambda: BackoffPolicy(initial=10.0, factor=2.0, cap=900.0, jitter=0.25)
    )
    settle_delay: float = 0.005
    settle_batch: int = 100
    sweep_interval: float = 0.5
    poll_interval: float = 1.0
    stale_after: float | None = None
    exclusive_timeout: float = 10.0
    cancel_grace: float = 1.0
    max_prefetch: int | None = None
    selection: RowSelection = RowSelection.ANY
    max_polls: int | None = None
    poll_wait: float = 0.0

    def __post_init__(self) -> None:
        _require("slots", self.slots, 1 <= self.slots <= MAX_SLOTS, f"in 1…{MAX_SLOTS}")
        _require("settle_batch", self.settle_batch, self.settle_batch >= 1, "at least 1")
        _require(
            "max_polls",
            self.max_polls or 0,
            self.max_polls is None or self.max_polls >= 0,
            "a whole number from 0 up, or None",
        )
        for name in ("settle_delay", "cancel_grace", "poll_wait"):
            value = getattr(self, name)
            _require(name, value, isfinite(value) and value >= 0, "a number of seconds from 0 up")
        for name in ("sweep_interval", "poll_interval", "exclusive_timeout"):
            value = getattr(self, name)
            _require(name, value, isfinite(value) and value > 0, "a number of seconds above 0")
        _require(
            "stale_after",
            self.stale_after or 0,
            self.stale_after is None or self.stale_after > 0,
            "above 0, or None",
        )


@dataclass(frozen=True, slots=True)
class EngineContext:
    """What every part of one engine is given."""

    name: str
    policy: EnginePolicy
    clock: Clock
    events: Events
    heartbeat: Heartbeat
    """The engine's own, beside those of its slots."""
    parent: ParentChannel | None = None
    """The parent process that renews the leases, if there is one."""
    failing_calls: list[str] = field(default_factory=list)
    """The calls to the source that fail at present; the first of them speaks for all."""


def _require(name: str, value: float, is_valid: bool, rule: str) -> None:  # noqa: FBT001 - the condition is the point of the call
    if not is_valid:
        raise ValueError(f"{name} must be {rule}, not {value}")


MAX_SUSPECT_PROCESSES = 4
"""Processes of their own in which a parent runs suspects at the same time, at most."""


def suspect_names(group: str) -> list[str]:
    """The names of the processes in which the suspects of a worker run."""
    return [f"{group}-suspect-{number}" for number in range(1, MAX_SUSPECT_PROCESSES + 1)]


PARENT_LEASE_SECONDS = 15.0
"""Seconds that leases last where a parent renews them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """What the surroundings of an engine share. `runs_suspects`: the process is there for suspects
    alone.
    """

    name: str
    events: Events = field(default_factory=logged_events)
    exclusive_lock: ExclusiveLock = field(default_factory=ExclusiveLock)
    parent: ParentChannel | None = None
    runs_suspects: bool = False
