"""Events of loops and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStarted(Event):
    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded(Event):
    """The run of a loop ended: it was asked to stop, its mailbox was closed, or it made its
    iterations.
    """

    loop: str
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCrashed(Event):
    """The run of a loop raised; the other loops of its group are stopped."""

    default_level: ClassVar[Level] = Level.ERROR

    loop: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDegraded(Event):
    """A loop has given no beat for so long that it should get no more work.

    The watchdog may end the process soon.
    """

    default_level: ClassVar[Level] = Level.WARNING

    loop: str
    elapsed: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(Event):
    """A degraded loop beats again."""

    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """A loop has given no beat for the threshold, so the process is killed."""

    default_level: ClassVar[Level] = Level.CRITICAL

    loop: str
    elapsed: float
    threshold: float
    stacks: str
    """The file with the stacks of all threads; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogRoundSkipped(Event):
    """A watchdog round came so late that the process must have been stopped or the machine
    suspended.

    The watchdog checks again in the next round.
    """

    default_level: ClassVar[Level] = Level.WARNING

    late_by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFailed(Event):
    """The reply to a message could not be sent.

    That counts as a failure of the message: its work is done again after a delay, or the message is
    dead-lettered.
    """

    default_level: ClassVar[Level] = Level.ERROR

    loop: str
    request_id: str
    message_id: str
    error: str
    retry_in: float | None
    """Seconds until the work is done again; None if the message is dead-lettered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsMismatched(Event):
    """Two timeouts do not fit together: the loop works, but not as intended."""

    default_level: ClassVar[Level] = Level.WARNING

    setting: str
    """The setting to change."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalHandlersSkipped(Event):
    """A group runs outside the main thread, where no signal handlers can be installed.

    Only code can stop it.
    """

    default_level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted(Event):
    loops: tuple[str, ...]
    health_address: str
    """Address of the health endpoint; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraining(Event):
    """The group claims no more messages; those that run continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed(Event):
    """The group claims messages again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopping(Event):
    reason: str
    """`asked`, `crashed`, `done` (every loop has ended by itself), `failed` (it could not be
    started), or the name of a signal.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopped(Event):
    lasted: float
    overdue: tuple[str, ...]
    """The loops that did not stop in time."""

    @property
    def level(self) -> Level:
        return Level.ERROR if self.overdue else Level.INFO
