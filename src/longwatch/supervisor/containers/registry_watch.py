"""Watches the registry of agents and their manifests: compares their stat every few seconds, never
their content.

If the registry cannot be read, the plans from before stay, and the problem is reported once until
it changes again. If a manifest cannot be read, that is a fault of its agent alone, in its plan.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from pathlib import Path

from longwatch.core.events.base import Events
from longwatch.core.events.containers import (
    ContainerRegistryLoaded,
    ContainerRegistryRejected,
    ContainerRegistryWarning,
)
from longwatch.supervisor.containers.agent_registry import (
    RegistryDefaults,
    RegistryError,
    RegistryReading,
    read_registry,
)
from longwatch.supervisor.plan import ProgramPlan

_Signature = dict[Path, tuple[int, int, int] | None]


class RegistryWatch:
    """The agents of one registry, as last read. Thread-safe; its methods block on the disk."""

    def __init__(self, path: Path, *, defaults: RegistryDefaults, events: Events) -> None:
        self.path = path
        self.defaults = defaults
        self._events = events
        self._lock = threading.Lock()
        self._plans: dict[str, ProgramPlan] = {}
        self._files: tuple[Path, ...] = (path,)
        self._signature: _Signature = {}
        self._rejection = ""
        """Why the last read failed; empty if it succeeded."""
        self._warnings: set[str] = set()
        self._was_loaded = False

    def read(self, *, taken: Collection[str] = ()) -> dict[str, ProgramPlan]:
        """Read the registry and return the plans of its agents; the former ones if it cannot be
        read.

        Names in `taken` belong to other programs and are left out.
        """
        with self._lock:
            # The stat comes before the read: a change in between shows at the next comparison.
            self._signature = _signature(self._files)
            try:
                reading = read_registry(self.path, defaults=self.defaults)
            except RegistryError as error:
                self._reject(str(error))
            else:
                self._accept(reading, taken)
            return dict(self._plans)

    def report(self) -> None:
        """Emit the events of the last read again, for observers that subscribed since."""
        path = str(self.path)
        with self._lock:
            if self._was_loaded:
                self._events.emit(ContainerRegistryLoaded(path=path, agents=tuple(self._plans)))
            for warning in sorted(self._warnings):
                self._events.emit(ContainerRegistryWarning(path=path, problem=warning))
            if self._rejection:
                self._events.emit(ContainerRegistryRejected(path=path, reason=self._rejection))

    def has_changed(self) -> bool:
        """Return whether the registry or a manifest is another file than the one read, or has
        another size or modification time.
        """
        with self._lock:
            return _signature(self._files) != self._signature

    def _accept(self, reading: RegistryReading, taken: Collection[str]) -> None:
        warnings = [
            *reading.warnings,
            *(
                f"{name!r} is the name of another program, so this agent is ignored; rename it"
                for name in reading.plans
                if name in taken
            ),
        ]
        plans = {name: plan for name, plan in reading.plans.items() if name not in taken}
        self._files = reading.files
        self._signature = {
            path: self._signature[path] if path in self._signature else _stat(path)
            for path in self._files
        }
        if plans != self._plans or self._rejection or not self._was_loaded:
            self._events.emit(ContainerRegistryLoaded(path=str(self.path), agents=tuple(plans)))
        for warning in warnings:
            if warning not in self._warnings:
                self._events.emit(ContainerRegistryWarning(path=str(self.path), problem=warning))
        self._plans, self._warnings = plans, {*warnings}
        self._rejection, self._was_loaded = "", True

    def _reject(self, reason: str) -> None:
        if reason != self._rejection:
            self._rejection = reason
            self._events.emit(ContainerRegistryRejected(path=str(self.path), reason=reason))


def _signature(files: Iterable[Path]) -> _Signature:
    """Return the stat of each file; None for a file that does not exist."""
    return {path: _stat(path) for path in files}


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
