"""What a test left running: children of this process and threads that would keep it alive."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker

import psutil

PATIENCE = 2.0


@dataclass(frozen=True)
class Running:
    """The children and the non-daemon threads of this process at one moment."""

    children: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]

    @classmethod
    def now(cls) -> Running:
        threads = (thread for thread in threading.enumerate() if not thread.daemon)
        return cls(frozenset(_children()), frozenset(threads))

    def left_behind(self, *, patience: float = PATIENCE, now: Callable[[], Running] | None = None) -> list[str]:
        """What runs now and did not run then; something that is just ending is given a moment."""
        look = now or Running.now
        end = time.monotonic() + patience
        while (extra := self._extra(look())) and time.monotonic() < end:
            threading.Event().wait(0.02)
        return extra

    def _extra(self, later: Running) -> list[str]:
        children = [f"child process {_described(child)}" for child in later.children - self.children]
        return sorted(children + [f"thread {thread.name}" for thread in later.threads - self.threads])


def _children() -> list[psutil.Process]:
    """The standard library keeps one tracker process for good once shared memory was used; it is nobody's leak."""
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return [child for child in psutil.Process().children() if child.pid != tracker]


def _described(child: psutil.Process) -> str:
    try:
        return f"{child.pid} ({child.status()}): {' '.join(child.cmdline()) or child.name()}"
    except psutil.NoSuchProcess:
        return f"{child.pid} (just gone)"
