"""Events of containers and their runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeConnected(Event):
    """The runtime answers: its containers are known."""

    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeUnavailable(Event):
    """No runtime answers. Emitted once until one does; containers are neither started nor counted
    as ended meanwhile.
    """

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRestartPolicyConflict(Event):
    """The runtime would restart the container by itself: two authorities restart it."""

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryLoaded(Event):
    """The registry or a manifest was read, at the start or because it changed."""

    path: str
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryRejected(Event):
    """The registry cannot be read: the former targets are kept."""

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryWarning(Event):
    """Something in the registry or a manifest is not as it should be, and a default is used."""

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    problem: str
