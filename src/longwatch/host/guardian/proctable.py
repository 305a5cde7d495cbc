"""A look at /proc: every process with its parent, session and start time.

In a PID namespace whose /proc was not mounted anew (plain `unshare -pf`), /proc shows the outer
namespace's numbers. Signals take ours, so each entry carries both: `key`, its name in /proc, and
`pid`, its number here.
"""

from __future__ import annotations

import os
import signal
from collections import namedtuple
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter

_KERNEL_THREAD = 0x00200000

_MAX_STAT_BYTES = 4096
_THREADS_FIELD = 17
"""Where /proc/PID/stat has the number of threads, counted from the state."""


class Process(namedtuple("Process", ("key", "pid", "parent", "group", "session", "start"))):  # noqa: PYI024 - typing is large
    """One process that is not a zombie."""

    __slots__ = ()
    key: int
    pid: int
    parent: int
    """The parent's key."""
    group: int
    """The process group's number here."""
    session: int
    """The session's number here."""
    start: int
    """Start time in clock ticks since boot: with the pid it names a process for good."""


class ProcTable:
    """Reads processes from /proc as seen from this PID namespace."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self._namespace_depth = self._find_namespace_depth()

    @property
    def own_key(self) -> int:
        """Our own name in /proc."""
        return int(os.readlink(f"{self.root}/self"))

    def read(self) -> dict[int, Process]:
        """Every living process by its key; one that ends meanwhile is left out."""
        found = (self.get(int(name)) for name in os.listdir(self.root) if name.isdecimal())
        return {process.key: process for process in found if process is not None}

    def get(self, key: int) -> Process | None:
        """The process of that key, or None if it is gone, a zombie, or in a namespace we cannot
        signal into.
        """
        try:
            fields = self._stat(key)
            state, parent, group, session, start = (
                fields[0],
                int(fields[1]),
                int(fields[2]),
                int(fields[3]),
                int(fields[19]),
            )
            if (
                state in b"ZX" and int(fields[_THREADS_FIELD]) <= 1
            ):  # with more, only its first thread has ended
                return None
            if self._namespace_depth is None:
                return Process(key, key, parent, group, session, start)
            pid, group, session = (
                numbers[self._namespace_depth] for numbers in self._namespace_ids(key)
            )
            return Process(key, pid, parent, group, session, start)
        except (OSError, IndexError):
            return None

    def start_time(self, pid: int) -> int:
        """When the process that bears this number here began; 0 if none does, or nobody can
        tell.
        """
        process = self.get(pid) if self._namespace_depth is None else None
        return process.start if process else 0

    def started_after(self, pid: int, start: int) -> bool:
        """Whether the process that bears this number began after that time, as far as anybody
        can tell.
        """
        return 0 < start < self.start_time(pid)

    def own_children(self) -> list[Process]:
        """Our direct children, read so fast that even one that forks and exits without end is
        met sooner or later.
        """
        try:
            with open(f"{self.root}/{self.own_key}/task/{self.own_key}/children", "rb") as file:
                found = [self.get(int(key)) for key in file.read().split()]
        except OSError:
            return []
        return [process for process in found if process is not None]

    def environment(self, process: Process) -> list[bytes] | None:
        """What it was started with, as `NAME=value` each; None while nobody can tell: it is
        executing a program, or dying.
        """
        for place in (f"{process.key}", *self._tasks(process.key)):
            try:
                with open(f"{self.root}/{place}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
            except ProcessLookupError:
                continue  # it has no memory (any more); another thread of it may have
            except OSError:
                return []
            if entries != [b""]:
                return entries
        return [] if self._has_no_environment(process.key) else None

    def _tasks(self, key: int) -> Iterator[str]:
        """Where its threads are, looked up only when asked for."""
        with suppress(OSError):
            yield from (f"{key}/task/{thread}" for thread in os.listdir(f"{self.root}/{key}/task"))

    def signal(self, process: Process, signum: int) -> None:
        """Send a signal to exactly that process; one that ended meanwhile is passed over, its
        pid's next bearer spared.
        """
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if (now := self.get(process.key)) is not None and now.start == process.start:
                    signal.pidfd_send_signal(descriptor, signum)
            finally:
                os.close(descriptor)

    def _has_no_environment(self, key: int) -> bool:
        """Whether one whose environment cannot be seen has none, as a thread of the kernel, or one
        that is gone by now.

        A program that is being executed gets its place in memory step by step, that of the code
        last; one that dies loses it first.
        """
        try:
            fields = self._stat(key)
        except OSError:
            return True
        flags, memory, code, begin, end = (
            int(number) for number in itemgetter(6, 20, 23, 47, 48)(fields)
        )
        gone = (fields[0] in b"ZX" and int(fields[_THREADS_FIELD]) <= 1) or bool(
            flags & _KERNEL_THREAD
        )
        return gone or (memory != 0 and code != 0 and begin == end)

    def _stat(self, key: int) -> list[bytes]:
        """The fields of its `stat` that come after the name. Read without a file object: a look
        at all processes is mostly this.
        """
        descriptor = os.open(f"{self.root}/{key}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _MAX_STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)

    def _find_namespace_depth(self) -> int | None:
        """Which of the numbers in NSpid are ours; None when /proc shows ours anyway."""
        if self.own_key == os.getpid():
            return None
        return len(self._namespace_ids(self.own_key)[0]) - 1

    def _namespace_ids(self, key: int) -> list[list[int]]:
        """Its pid, group and session, each in every namespace from that of /proc down to its
        own.
        """
        with open(f"{self.root}/{key}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
        return [
            [int(number) for number in lines[name].split()]
            for name in (b"NSpid", b"NSpgid", b"NSsid")
        ]


def descendants(table: dict[int, Process], root: int) -> Iterator[Process]:
    """Everything below the process of that key, parents before their children."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    edge = children.get(root, [])
    while edge:
        yield from edge
        edge = [child for process in edge for child in children.get(process.key, [])]
