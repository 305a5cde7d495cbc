"""Events of the supervising process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStarted(Event):
    """The supervisor begins to start its programs."""

    version: str
    programs: tuple[str, ...]
    """Their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFileQuarantined(Event):
    """The records could not be read: the file was renamed, and new records were begun."""

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    quarantined_as: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsLeftStopped(Event):
    """At the start: these programs were stopped by hand and stay stopped; `longwatch start` starts
    them.
    """

    default_level: ClassVar[Level] = Level.WARNING

    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCommandReceived(Event):
    """`longwatch start`, `stop`, `restart`, `reset` or `down` was used, or the processes of a
    worker are restarted one after another.
    """

    command: str
    programs: tuple[str, ...]
    """Those that it affects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramListenerFailed(Event):
    """A listener of program starts and ends raised: all programs are stopped, and the supervisor
    fails.
    """

    default_level: ClassVar[Level] = Level.CRITICAL

    listener: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded(Event):
    """The file was read again, by `longwatch reload` or SIGHUP. Programs in none of the lists are
    unchanged.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    """Restarted with their new settings."""
    updated: tuple[str, ...]
    """Changed without a restart."""
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloadRejected(Event):
    """The file has faults, or asks for something impossible: nothing changes."""

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsLoaded(Event):
    """At the start: all settings, wherever they were set; secrets are masked."""

    default_level: ClassVar[Level] = Level.DEBUG

    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReceived(Event):
    """The supervisor received a signal."""

    signal: int
    action: str
    """`stop`, `escalate`, `forward`, `reload` or `ignore`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorStopped(Event):
    """The supervisor has stopped all programs and ends."""

    exit_code: int
    lasted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChecksOff(Event):
    """Once, by `longwatch run`: no setting configures a health check, so there is none.
    `--health-port PORT` turns it on, `--no-health` silences this notice.
    """

    program: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDirectoryUnavailable(Event):
    """Once, at the start: the default state directory cannot be written, so Longwatch keeps no log
    files, and commands such as `longwatch status` cannot reach this process.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlUnavailable(Event):
    """Once, at the start: the control socket could not be opened, so commands such as `longwatch
    status` cannot reach this process. Everything else works.
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
    """A log file cannot be written or reopened (a full disk, a symbolic link in its place); its
    lines are dropped until it can; emitted once each time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileStalled(Event):
    """The disk accepts no lines of a log file, and its buffer is full. The oldest lines are dropped
    until the disk accepts some; emitted once each time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    buffered: int
    """Bytes."""
