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
    """Its run is over: it was told to stop, its mailbox was closed, or it has made its
    iterations.
    """

    loop: str
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCrashed(Event):
    """Its run raised; the others of its group are stopped."""

    default_level: ClassVar[Level] = Level.ERROR

    loop: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDegraded(Event):
    """It has given no beat for so long that nothing more should be sent its way; the watchdog
    may end the process soon.
    """

    default_level: ClassVar[Level] = Level.WARNING

    loop: str
    elapsed: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRecovered(Event):
    """It beats again."""

    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    """It has given no beat for the threshold: the process is ended."""

    default_level: ClassVar[Level] = Level.CRITICAL

    loop: str
    elapsed: float
    threshold: float
    stacks: str
    """Where every thread's stack was written; empty if nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogRoundSkipped(Event):
    """The watchdog woke up so late that the process must have been stopped or the machine
    paused: it looks again next time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    late_by: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyFailed(Event):
    """The reply to a message could not be sent. That counts as a failure of the message: its work
    is done once more after a delay, or the message is dead-lettered.
    """

    default_level: ClassVar[Level] = Level.ERROR

    loop: str
    request_id: str
    message_id: str
    error: str
    retry_in: float | None
    """When the work is done again; None: never, the message goes to the dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutsMismatched(Event):
    """Two timeouts do not go together: it works, and not as it is meant."""

    default_level: ClassVar[Level] = Level.WARNING

    setting: str
    """The one to change."""
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalHandlersSkipped(Event):
    """A group was run off the main thread, where no signal handlers can be installed: nobody but
    code stops it.
    """

    default_level: ClassVar[Level] = Level.WARNING


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStarted(Event):
    loops: tuple[str, ...]
    health_address: str
    """Where health is answered for; empty: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDraining(Event):
    """Nothing more is taken; what runs goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumed(Event):
    """Messages are taken again."""


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
    """The loops that did not stop in their time."""

    @property
    def level(self) -> Level:
        return Level.ERROR if self.overdue else Level.INFO
