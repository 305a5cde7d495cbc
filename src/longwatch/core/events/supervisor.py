"""Events of the supervising process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStarted(Event):
    version: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFileQuarantined(Event):
    """The record of programs could not be read: it is kept under another name, and a new one was
    begun.
    """

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    quarantined_as: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsLeftStopped(Event):
    """These programs are not started, because an operator stopped them and has not started them
    since.
    """

    default_level: ClassVar[Level] = Level.WARNING

    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCommandReceived(Event):
    """The supervisor received a command over its control socket."""

    command: str
    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramListenerFailed(Event):
    """A listener of the supervisor raised: all programs are stopped, and the supervisor fails."""

    default_level: ClassVar[Level] = Level.CRITICAL

    listener: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded(Event):
    """The settings were reloaded; programs in none of the lists are unchanged."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    """Restarted with their new settings."""
    updated: tuple[str, ...]
    """Changed without a restart."""
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloadRejected(Event):
    """The new settings have faults; the former ones stay in use."""

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsLoaded(Event):
    """All settings, wherever they were set; secrets are masked."""

    default_level: ClassVar[Level] = Level.DEBUG

    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived(Event):
    signal: int
    action: str
    """`stop`, `escalate`, `forward`, `reload` or `ignore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStopped(Event):
    exit_code: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChecksOff(Event):
    """`longwatch run` makes no health checks, because no setting says where to ask."""

    program: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirectoryUnavailable(Event):
    """The default state directory cannot be written: no log files are kept, and `longwatch status`
    and its like cannot reach this process.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlUnavailable(Event):
    """The control socket could not be opened: `longwatch status` and its like cannot reach this
    process. Everything else goes on.
    """

    default_level: ClassVar[Level] = Level.WARNING

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCommandFailed(Event):
    """A command over the control socket raised an unexpected error.

    The client got an error reply, and the socket stays open.
    """

    default_level: ClassVar[Level] = Level.ERROR

    command: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileFailed(Event):
    """A log file cannot be written, or not be opened again, and its lines are dropped until it can.
    Emitted once each time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileStalled(Event):
    """The disk accepts no lines of a log file, and its buffer of `buffered` bytes is full.

    The oldest lines in it are dropped until the disk accepts lines again. Emitted once each time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    buffered: int
