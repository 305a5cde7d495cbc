"""Events of the engine: claims, leases, settlements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFailed(Event):
    """The code that works on a row raised."""

    default_level: ClassVar[Level] = Level.WARNING

    engine: str
    row: int
    attempt: int
    error: str
    retry_in: float | None
    """When it is tried again; None: never, it goes to the dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(Event):
    """The right to rows was lost while they ran or waited; what they do does not count."""

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    rows: tuple[int, ...]
    reason: str
    """`untrusted`: it could not be renewed in time. `stale`: no beat, so it was not renewed.
    `taken`: the store gave it to another owner. `revoked`: an input changed, or an operator
    abandoned or cancelled it.
    """

    @property
    def level(self) -> Level:
        return Level.INFO if self.reason == "revoked" else self.default_level


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRefused(Event):
    """A finished row was not the engine's any more."""

    default_level: ClassVar[Level] = Level.WARNING

    engine: str
    row: int
    outcome: str
    may_have_settled: bool
    """Whether an earlier try of the same settlement may have been the one that counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSourceFailed(Event):
    """A call to the claim source raised; it is made again. Emitted once, and while it lasts at
    the 16th failure, the 32nd, …
    """

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    call: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSourceRecovered(Event):
    """The call works again."""

    engine: str
    call: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTimedOut(Event):
    """The deadline of a stop passed while rows still ran; nobody is blamed if the process ends
    now.
    """

    default_level: ClassVar[Level] = Level.ERROR

    engine: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsClaimed(Event):
    """Rows were leased, in one exchange."""

    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int
    held: int
    """How many it has now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsSettled(Event):
    """Rows were settled, in one exchange."""

    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    done: int
    failed: int
    released: int
    dead_lettered: int
    refused: int
    """How many of all these were not the engine's any more."""
    durations: tuple[float, ...]
    """How long the work on each took, of those that were begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesRenewed(Event):
    default_level: ClassVar[Level] = Level.DEBUG

    engine: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(Event):
    """A message was given up and is kept as a dead letter."""

    default_level: ClassVar[Level] = Level.ERROR

    mailbox: str
    message_id: str
    reason: str
    """`poison`, `lost`, `failed`, `unanswered`, `permanent`, `undecodable` or `expired`."""
