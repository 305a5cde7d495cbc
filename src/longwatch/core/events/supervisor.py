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
    """What was remembered of programs could not be read: it is kept under another name, and a
    new ledger was begun.
    """

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    quarantined_as: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramsLeftStopped(Event):
    """These programs are not started: somebody has stopped them, and nobody has started them
    since.
    """

    default_level: ClassVar[Level] = Level.WARNING

    programs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCommandReceived(Event):
    """Somebody told the supervisor what to do."""

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
    """The settings were read again; what is in no list was left alone."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    """Started anew."""
    updated: tuple[str, ...]
    """Changed as they run."""
    removed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloadRejected(Event):
    """The settings have faults: everything goes on as it was."""

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsLoaded(Event):
    """Every setting, whoever said it; secrets are masked."""

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
class ControlCommandFailed(Event):
    """A command over the control socket raised what it should not have; who asked was told, and
    the socket lives on.
    """

    default_level: ClassVar[Level] = Level.ERROR

    command: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFileStalled(Event):
    """The disk takes no lines of a log file: its buffer of so many bytes is full, and the oldest
    lines in it are dropped until it takes some again. Emitted once each time.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    buffered: int
