"""Events of the engine: claims, leases, settlements.

An event about a message has its `message_id`. An event about an attempt to compute a node has
`computation`, as EXECUTION/NODE. Log lines leave out the one that is empty.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFailed(Event):
    """A handler, or the function of a node, raised."""

    default_level: ClassVar[Level] = Level.WARNING

    engine: str
    message_id: str = ""
    computation: str = ""
    attempt: int
    error: str
    retry_in: float | None
    """Seconds until it is retried; None if it is dead-lettered."""
    traceback: str = field(default="", repr=False)
    """The traceback, masked and of bounded length; lines are separated by newlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReleased(Event):
    """A handler released its message with `raise Release(…)`; that does not count as a failure."""

    engine: str
    message_id: str = ""
    computation: str = ""
    attempt: int
    delay: float
    """Seconds until it can be claimed again."""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """The leases of running work were lost; its results do not count."""

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    message_ids: tuple[str, ...] = ()
    computations: tuple[str, ...] = ()
    reason: str
    """`untrusted`: it could not be renewed in time. `stale`: no beat, so it was not renewed.
    `taken`: the store gave it to another owner. `revoked`: an input changed, or an operator
    abandoned or cancelled it.
    """

    @property
    def level(self) -> Level:
        """Info for `revoked`."""
        return Level.INFO if self.reason == "revoked" else self.default_level


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRefused(Event):
    """The store refused the result of finished work: the engine no longer had the lease."""

    default_level: ClassVar[Level] = Level.WARNING

    engine: str
    message_id: str = ""
    computation: str = ""
    outcome: str
    may_have_settled: bool
    """Whether an earlier attempt of the same settlement may have succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSourceFailed(Event):
    """A call to the store raised and is retried; emitted once for all calls of an outage, and in a
    long outage at the 16th failure, the 32nd, …
    """

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    call: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSourceRecovered(Event):
    """A call to the claim source works again."""

    engine: str
    call: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTimedOut(Event):
    """The deadline of a stop passed while work still ran; no message is blamed if the process ends
    now.
    """

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    message_ids: tuple[str, ...] = ()
    computations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsClaimed(Event):
    """Rows were leased, in one round trip to the store."""

    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int
    """How many."""
    held: int
    """Rows that the engine has claimed now."""
    row_kind: str = "message"
    """`message` or `computation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettled(Event):
    """Rows were settled, in one round trip to the store."""

    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    done: int
    failed: int
    released: int
    dead_lettered: int
    refused: int
    """Rows among these whose lease the engine no longer had."""
    durations: tuple[float, ...]
    """Seconds that each row took, of those that were started."""
    row_kind: str = "message"
    """`message` or `computation`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(Event):
    """Leases were renewed, in one round trip."""

    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int
    """How many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(Event):
    """A loop, or the sweep of a worker or its parent, dead-lettered a message."""

    default_level: ClassVar[Level] = Level.ERROR

    mailbox: str
    message_id: str
    reason: str
    """`poison`, `lost`, `failed`, `unanswered`, `permanent`, `undecodable` or `expired`."""
    error: str = ""
    """The error of its last run, if it is known here."""
