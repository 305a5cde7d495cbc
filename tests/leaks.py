"""What a test left behind: children of this process, threads, and descriptors."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

TIMEOUT = 2.0


@dataclass(frozen=True)
class Snapshot:
    """The children and the non-daemon threads of this process at one moment."""

    children: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]

    @classmethod
    def take(cls) -> Snapshot:
        threads = (thread for thread in threading.enumerate() if not thread.daemon)
        return cls(frozenset(_children()), frozenset(threads))

    def left_behind(
        self, *, timeout: float = TIMEOUT, take: Callable[[], Snapshot] | None = None
    ) -> list[str]:
        """What runs now and did not run then; something that is just ending is given a moment."""
        look = take or Snapshot.take
        return _poll_until_empty(lambda: self._new_since(look()), timeout)

    def _new_since(self, later: Snapshot) -> list[str]:
        children = [f"child process {_describe(child)}" for child in later.children - self.children]
        return sorted(
            children + [f"thread {thread.name}" for thread in later.threads - self.threads]
        )


@contextmanager
def no_leaks() -> Iterator[None]:
    """What happens within leaves no thread and no descriptor behind.

    Those of tests before may end meanwhile, and what their threads open for a moment is given that
    moment.
    """
    threads = set(threading.enumerate())
    with no_descriptor_leaks():
        yield
        left = _poll_until_empty(
            lambda: [thread.name for thread in set(threading.enumerate()) - threads], 5 * TIMEOUT
        )
        assert not left, f"threads left behind: {', '.join(left)}"


@contextmanager
def no_descriptor_leaks(
    *, allowed: int = 0, ignored: Callable[[str], bool] = lambda _: False
) -> Iterator[None]:
    """The same for descriptors alone, where threads may come and go. `allowed` so many may stay,
    and those that `ignored` accepts.
    """
    before = open_descriptors()
    yield

    def left() -> list[str]:
        new = {
            number: what
            for number, what in open_descriptors().items()
            if before.get(number) != what and not ignored(what)
        }
        return [f"{number} ({what})" for number, what in new.items()] if len(new) > allowed else []

    found = _poll_until_empty(left, 5 * TIMEOUT)
    assert not found, f"left open: {', '.join(found)}"


def open_descriptors() -> dict[int, str]:
    """What this process has open, and what that is; what only waits to be collected is not
    counted.
    """
    gc.collect()
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that looked
            found[int(link.name)] = str(link.readlink())
    return found


def _poll_until_empty(look: Callable[[], list[str]], timeout: float) -> list[str]:
    """What is seen when nothing is seen any more, or after so long."""
    end = time.monotonic() + timeout
    while (seen := look()) and time.monotonic() < end:
        threading.Event().wait(0.02)
    return seen


def _children() -> list[psutil.Process]:
    """The standard library keeps one tracker process for good once shared memory was used; it is
    nobody's leak.
    """
    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)
    return [child for child in _all_children() if child.pid != tracker]


def _all_children() -> list[psutil.Process]:
    """Read the kernel's own list where there is one: psutil looks at every process."""
    files = list(Path("/proc/self/task").glob("*/children"))
    if not files:
        return psutil.Process().children()
    found = []
    for file in files:
        with suppress(OSError):  # the thread has ended
            found += [int(pid) for pid in file.read_text().split()]
    return [child for pid in found for child in _process(pid)]


def _process(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} ({child.status()}): {' '.join(child.cmdline()) or child.name()}"
    except psutil.NoSuchProcess:
        return f"{child.pid} (just gone)"
