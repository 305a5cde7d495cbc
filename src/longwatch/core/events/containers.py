"""Events of containers and their runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeConnected(Event):
    """The container runtime responds, and its containers are known."""

    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeUnavailable(Event):
    """No container runtime responds. Emitted once per outage.

    Meanwhile containers are neither started nor counted as ended.
    """

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRestartPolicyConflict(Event):
    """The runtime is configured to restart the container by itself, so two authorities would
    restart it.
    """

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryLoaded(Event):
    """The registry or a manifest was read, at the start or after a change."""

    path: str
    agents: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryRejected(Event):
    """The registry cannot be read; the former targets are kept."""

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryWarning(Event):
    """The registry or a manifest has a problem, and a default is used."""

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    problem: str
