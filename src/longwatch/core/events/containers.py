"""Events of containers and their runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from longwatch.core.events.base import Event, Level


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeConnected(Event):
    """The container runtime responds, and its containers are known."""

    runtime: str
    """Its name and version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntimeUnavailable(Event):
    """No runtime answers; emitted once for each outage. Meanwhile containers are neither started
    nor counted as ended.
    """

    default_level: ClassVar[Level] = Level.ERROR

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRestartPolicyConflict(Event):
    """The runtime has a restart policy for the container, so both the runtime and Longwatch would
    restart it.
    """

    default_level: ClassVar[Level] = Level.WARNING

    program: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryLoaded(Event):
    """The registry or a manifest was read, at first or after a change."""

    path: str
    agents: tuple[str, ...]
    """Their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryRejected(Event):
    """The registry cannot be read: Longwatch keeps the former agents up."""

    default_level: ClassVar[Level] = Level.ERROR

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRegistryWarning(Event):
    """A value or key of the registry or a manifest is ignored, or a default is used instead; once
    for each.
    """

    default_level: ClassVar[Level] = Level.WARNING

    path: str
    problem: str
