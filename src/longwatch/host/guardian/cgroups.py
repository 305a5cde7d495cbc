"""A cgroup v2 for every tree, where one can be made: membership no process can shed, and a kill the kernel does at once."""

from __future__ import annotations

import os
from contextlib import suppress

_PREFIX = "longwatch-"


class Cgroup:
    """The cgroup of one tree."""

    def __init__(self, path: str) -> None:
        self.path = path
        os.mkdir(path, 0o755)

    def enter(self) -> None:
        """Move the calling process in (between fork and exec)."""
        self._write("cgroup.procs", "0")

    def pids(self) -> set[int]:
        """The processes in it, zombies included, those of cgroups made inside it too."""
        return _pids(self.path)

    @property
    def populated(self) -> bool:
        """Whether anything lives in it, as the kernel sees it: no process can hide by forking and exiting."""
        try:
            with open(f"{self.path}/cgroup.events") as file:
                return "populated 1" in file.read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL to everything in it, also to what is being forked just now."""
        with suppress(OSError):
            self._write("cgroup.kill", "1")

    def remove(self) -> None:
        _remove(self.path)

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


class Cgroups:
    """Makes cgroups below the one this process is in."""

    def __init__(self, base: str) -> None:
        self.base = base

    @classmethod
    def find(cls, name: str) -> Cgroups | None:
        """A place of that name where we may make cgroups that can be killed whole, or None."""
        try:
            cgroups = cls.named(name)
            if cgroups is None:
                return None
            os.mkdir(cgroups.base, 0o755)
        except OSError:
            return None
        if cgroups.usable():
            return cgroups
        cgroups.remove()
        return None

    @classmethod
    def named(cls, name: str) -> Cgroups | None:
        """Where `find` makes the place of that name, be it there or not; None where there is no cgroup v2."""
        try:
            own = _own_cgroup()
        except OSError:
            return None
        return None if own is None else cls(f"{own}/{_PREFIX}{name}")

    def usable(self) -> bool:
        return os.access(f"{self.base}/cgroup.kill", os.W_OK) and os.access(f"{self.base}/../cgroup.procs", os.W_OK)

    def make(self, name: str) -> Cgroup | None:
        try:
            return Cgroup(f"{self.base}/{name}")
        except OSError:
            return None

    def pids(self) -> set[int]:
        """The processes in all of them."""
        return _pids(self.base)

    def remove(self) -> None:
        _remove(self.base)


def _pids(path: str) -> set[int]:
    found: set[int] = set()
    for folder, _, _ in os.walk(path):
        with suppress(OSError), open(f"{folder}/cgroup.procs") as file:
            found.update(int(line) for line in file)
    return found - {0}


def _remove(path: str) -> None:
    """Remove a cgroup and what was made inside it; one that still holds processes stays."""
    for folder, _, _ in os.walk(path, topdown=False):
        with suppress(OSError):
            os.rmdir(folder)


def _own_cgroup() -> str | None:
    """The directory of our own cgroup in the unified hierarchy."""
    mount = _unified_mount()
    if mount is None:
        return None
    with open("/proc/self/cgroup") as file:
        for line in file:
            if line.startswith("0::"):
                return f"{mount}{line[3:].strip().rstrip('/')}"
    return None


def _unified_mount() -> str | None:
    with open("/proc/self/mounts") as file:
        for line in file:
            _, where, kind, options, *_ = line.split(" ")
            if kind == "cgroup2" and "rw" in options.split(","):
                return where
    return None
