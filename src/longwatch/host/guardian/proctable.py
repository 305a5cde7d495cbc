"""Reads /proc: every process with its parent, session and start time.

In a PID namespace whose /proc was not mounted anew (plain `unshare -pf`), /proc shows the numbers
of the outer namespace. Signals take the inner numbers. So each entry has both: `key`, its name in
/proc, and `pid`, its number here.
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
"""Index of the number of threads in /proc/PID/stat, counted from the state field."""
_CPU_FIELDS = slice(11, 15)
"""Indexes of the ticks on a CPU: of the process in user and kernel mode, and of the children that
it has waited for.
"""
_RESIDENT_FIELD = 21
"""Index of the number of pages in memory."""


class Process(namedtuple("Process", ("key", "pid", "parent", "group", "session", "start"))):  # noqa: PYI024 - typing takes memory
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
    """Start time in clock ticks since boot. Pid and start time identify a process uniquely."""


class ProcTable:
    """Reads processes from /proc as seen from this PID namespace."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self._namespace_depth = self._find_namespace_depth()

    @property
    def own_key(self) -> int:
        """The name of this process in /proc."""
        return int(os.readlink(f"{self.root}/self"))

    def read(self) -> dict[int, Process]:
        """Return every living process by its key; a process that ends meanwhile is left out."""
        found = (self.get(int(name)) for name in os.listdir(self.root) if name.isdecimal())
        return {process.key: process for process in found if process is not None}

    def get(self, key: int) -> Process | None:
        """Return the process of that key, or None if it is gone, a zombie, or not signallable from
        this namespace.
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
            ):  # with more threads, only the first one has ended
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
        """Return the start time of the process with this pid; 0 if there is none, or if /proc shows
        the numbers of another namespace.
        """
        process = self.get(pid) if self._namespace_depth is None else None
        return process.start if process else 0

    def usage(self, key: int) -> tuple[int, int] | None:
        """Its ticks on a CPU, those of children that it has waited for included, and its pages in
        memory; None if it is gone.
        """
        try:
            fields = self._stat(key)
            return sum(map(int, fields[_CPU_FIELDS])), int(fields[_RESIDENT_FIELD])
        except (OSError, IndexError):
            return None

    def started_after(self, pid: int, start: int) -> bool:
        """Whether the process with this pid started after that time; False if its start time is
        unknown.
        """
        return 0 < start < self.start_time(pid)

    def own_children(self) -> list[Process]:
        """Return the direct children of this process.

        Reads only one small file: fast enough to see, sooner or later, even a process that keeps
        forking and exiting.
        """
        try:
            with open(f"{self.root}/{self.own_key}/task/{self.own_key}/children", "rb") as file:
                found = [self.get(int(key)) for key in file.read().split()]
        except OSError:
            return []
        return [process for process in found if process is not None]

    def environment(self, process: Process) -> list[bytes] | None:
        """Return its initial environment, as `NAME=value` entries.

        None if it cannot be read now, because the process is executing a program or dying.
        """
        for place in (f"{process.key}", *self._tasks(process.key)):
            try:
                with open(f"{self.root}/{place}/environ", "rb") as file:
                    entries = file.read().split(b"\0")
            except ProcessLookupError:
                continue  # this thread has no memory (any more); another thread may have
            except OSError:
                return []
            if entries != [b""]:
                return entries
        return [] if self._has_no_environment(process.key) else None

    def _tasks(self, key: int) -> Iterator[str]:
        """Yield the /proc paths of its threads; reads the directory only when iterated."""
        with suppress(OSError):
            yield from (f"{key}/task/{thread}" for thread in os.listdir(f"{self.root}/{key}/task"))

    def signal(self, process: Process, signum: int) -> None:
        """Send a signal to exactly that process.

        Does nothing if the process has ended, even if its pid was reused.
        """
        with suppress(ProcessLookupError, PermissionError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if (now := self.get(process.key)) is not None and now.start == process.start:
                    signal.pidfd_send_signal(descriptor, signum)
            finally:
                os.close(descriptor)

    def _has_no_environment(self, key: int) -> bool:
        """Whether a process whose environment is unreadable has none: a kernel thread, or one that
        is gone.

        The kernel sets the memory fields of a program being executed step by step, the code address
        last. A dying process loses its memory first.
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
        """Return the fields of its `stat` file after the name.

        Avoids a file object: reading `stat` is most of the cost of a scan.
        """
        descriptor = os.open(f"{self.root}/{key}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, _MAX_STAT_BYTES).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)

    def _find_namespace_depth(self) -> int | None:
        """Return which number in NSpid is the one of this namespace; None if /proc shows these
        anyway.
        """
        if self.own_key == os.getpid():
            return None
        return len(self._namespace_ids(self.own_key)[0]) - 1

    def _namespace_ids(self, key: int) -> list[list[int]]:
        """Return its pid, group and session, each in every namespace from that of /proc down to its
        own.
        """
        with open(f"{self.root}/{key}/status", "rb") as file:
            lines = dict(line.split(b":", 1) for line in file if b":" in line)
        return [
            [int(number) for number in lines[name].split()]
            for name in (b"NSpid", b"NSpgid", b"NSsid")
        ]


def descendants(table: dict[int, Process], root: int) -> Iterator[Process]:
    """Yield every process below the one with that key, parents before their children."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    edge = children.get(root, [])
    while edge:
        yield from edge
        edge = [child for process in edge for child in children.get(process.key, [])]
