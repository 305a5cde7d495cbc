"""The settings of an engine, and the context that its parts share, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum, auto
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
"""The most rows settled or claimed in one exchange, so that no exchange holds the store for
long.
"""


class RowKind(StrEnum):
    """What the rows of an engine are, for its events."""

    MESSAGE = auto()
    COMPUTATION = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicy:
    """The settings of an engine; durations in seconds.

    `slots`              rows that run at the same time
    `lease`              how long a lease lasts, when it is renewed, how long it is trusted
    `retry`              the backoff of a row whose code raises
    `settle_delay`       finished rows are settled together, at most this long after the first
    `settle_batch`       the number of finished rows that are settled without that delay
    `sweep_interval`     time between two searches for dead owners and lapsed leases
    `poll_interval`      time between two searches for rows, in case a notification was lost
    `shared_poll_interval`
                         the same in a store that many machines share; up to a fifth shorter at
                         random, so that engines that started together do not poll together
    `stale_after`        after this long without a heartbeat of its code, the lease of a row is no
                         longer renewed; None: it is renewed as long as the process lives
    `exclusive_timeout`  how long a row that has to run alone waits for the others to end; then it
                         is released, with a delay as long
    `cancel_grace`       how long before the deadline of a stop running rows are cancelled, at most
                         a tenth of the time left
    `max_prefetch`       the most rows that wait here for a slot; None: as many as can begin soon
    `selection`          which rows it claims; under a parent, separate processes run suspects
    `max_polls`          how many times it claims rows; None: no limit
    `poll_wait`          how long each of those polls may wait for a row
    `row_kind`           what its rows are, for events
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
    shared_poll_interval: float = 10.0
    stale_after: float | None = None
    exclusive_timeout: float = 10.0
    cancel_grace: float = 1.0
    max_prefetch: int | None = None
    selection: RowSelection = RowSelection.ANY
    max_polls: int | None = None
    poll_wait: float = 0.0
    row_kind: RowKind = RowKind.MESSAGE

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
        for name in (
            "sweep_interval",
            "poll_interval",
            "shared_poll_interval",
            "exclusive_timeout",
        ):
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
    """The context that all parts of one engine share."""

    name: str
    policy: EnginePolicy
    clock: Clock
    events: Events
    heartbeat: Heartbeat
    """The heartbeat of the exchange loop, besides those of the slots."""
    parent: ParentChannel | None = None
    """The parent process that renews the leases, if there is one."""
    failing_calls: list[str] = field(default_factory=list)
    """The calls to the source that currently fail. Only the first of them emits the outage."""


def _require(name: str, value: float, is_valid: bool, rule: str) -> None:  # noqa: FBT001 - the call asserts this condition
    if not is_valid:
        raise ValueError(f"{name} must be {rule}, not {value}")


MAX_SUSPECT_PROCESSES = 4
"""The most separate processes in which a parent runs suspects at the same time."""


def suspect_names(group: str) -> list[str]:
    """Return the names of the processes in which the suspects of a worker run."""
    return [f"{group}-suspect-{number}" for number in range(1, MAX_SUSPECT_PROCESSES + 1)]


PARENT_LEASE_SECONDS = 15.0
"""The length of leases, in seconds, when a parent renews them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """What the engines of one process share. `runs_suspects`: the process runs only suspects."""

    name: str
    events: Events = field(default_factory=logged_events)
    exclusive_lock: ExclusiveLock = field(default_factory=ExclusiveLock)
    parent: ParentChannel | None = None
    runs_suspects: bool = False
