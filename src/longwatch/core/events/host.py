"""Events of the guardian, periodic tasks and shutdown callbacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardianLost(Event):
    """The guardian died, and all programs were killed."""

    default_level: ClassVar[Level] = Level.CRITICAL

    guardian_pid: int
    killed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicTaskFailed(Event):
    """A round of a periodic task raised; the next follows as usual."""

    default_level: ClassVar[Level] = Level.ERROR

    task: str
    error: str
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownCallbackFailed(Event):
    """A shutdown callback raised; the others still ran."""

    default_level: ClassVar[Level] = Level.ERROR

    callback: str
    error: str
