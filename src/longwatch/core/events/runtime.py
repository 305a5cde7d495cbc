"""Events of loops and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStarted(Event):
    """The run of a loop began."""

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
    """No heartbeat for the readiness threshold: the loop is not ready, and the watchdog may end the
    process soon.
    """

    default_level: ClassVar[Level] = Level.WARNING

    loop: str
    elapsed: float
    """Seconds since the last heartbeat."""
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(Event):
    """A degraded loop beats again."""

    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """No heartbeat for the watchdog's threshold: the watchdog ends the process."""

    default_level: ClassVar[Level] = Level.CRITICAL

    loop: str
    elapsed: float
    """Seconds since the last heartbeat."""
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
    """Seconds."""


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
    """At the start: two timeouts do not fit together. The loop works, but not as intended."""

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
    """The thread of every loop has started."""

    loops: tuple[str, ...]
    health_address: str
    """Address of the health endpoint; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraining(Event):
    """The group claims no more messages, after `drain()` or SIGUSR1; running work goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed(Event):
    """The group claims messages again, after `resume()`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopping(Event):
    """The group was asked to stop, or has a reason of its own to stop."""

    reason: str
    """`asked`, `crashed`, `done` (every loop has ended by itself), `failed` (it could not be
    started), or the name of a signal.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStopped(Event):
    """All loops of the group have ended, or the time to stop is over."""

    lasted: float
    overdue: tuple[str, ...]
    """The loops that did not stop in time."""

    @property
    def level(self) -> Level:
        """Error if a loop did not stop."""
        return Level.ERROR if self.overdue else Level.INFO
