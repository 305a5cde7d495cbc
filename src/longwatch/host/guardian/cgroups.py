"""A cgroup v2 for every tree, where one can be made: membership no process can shed, and a kill
the kernel does at once.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from longwatch.host.guardian.kernel import fork_into

_PREFIX = "longwatch-"
_LEAF_LINKS = 2


class Cgroup:
    """The cgroup of one tree, or the one around them all."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def for_name(cls, name: str) -> Cgroup | None:
        """The one of that name below the one this process is in, be it there or not; None where
        there is no cgroup v2.
        """
        try:
            own = _own_cgroup()
        except OSError:
            return None
        return None if own is None else cls(f"{own}/{_PREFIX}{name}")

    def make(self) -> bool:
        try:
            os.mkdir(self.path, 0o755)
        except OSError:
            return False
        return True

    def fork(self) -> int | None:
        """Fork a child inside it; None where that cannot be, by an old kernel or because a
        filter of system calls forbids it.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return fork_into(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def enter(self) -> None:
        """Move the calling process in (between fork and exec)."""
        self._write("cgroup.procs", "0")

    def pids(self) -> set[int]:
        """The processes in it, zombies included, those of cgroups made inside it too."""
        found: set[int] = set()
        for folder in self._folders():
            with suppress(OSError), open(f"{folder}/cgroup.procs", "rb") as file:
                found.update(map(int, file.read().split()))
        return found - {0}

    def _folders(self) -> list[str]:
        """Where it is, and where those made inside it are; there are some if more than itself
        and its parent link to it.
        """
        with suppress(OSError):
            if os.stat(self.path).st_nlink > _LEAF_LINKS:
                return [folder for folder, _, _ in os.walk(self.path)]
        return [self.path]

    @property
    def populated(self) -> bool:
        """Whether anything lives in it, as the kernel sees it: no process can hide by forking
        and exiting.
        """
        try:
            with open(f"{self.path}/cgroup.events") as file:
                return "populated 1" in file.read()
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL to everything in it, also to what is being forked just now."""
        with suppress(OSError):
            self._write("cgroup.kill", "1")

    def limit_memory(self, amount: int) -> bool:
        """At most so many bytes for all of it together, none of them swapped out, and all of it
        killed for one too many.
        """
        try:
            self._write("memory.max", str(amount))
        except OSError:
            return False
        for name, text in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with suppress(OSError):  # a kernel without swap accounting, or before 4.19
                self._write(name, text)
        return True

    @property
    def out_of_memory(self) -> bool:
        """Whether anything in it was killed for want of memory."""
        try:
            with open(f"{self.path}/memory.events") as file:
                return any(
                    line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in file
                )
        except OSError:
            return False

    def enable_controller(self, controller: str) -> bool:
        """Have those made inside it controlled; False where it is not given that controller
        itself.
        """
        try:
            self._write("cgroup.subtree_control", f"+{controller}")
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Remove it and what was made inside it; what still holds processes stays."""
        for folder, _, _ in os.walk(self.path, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)

    def _write(self, name: str, text: str) -> None:
        descriptor = os.open(f"{self.path}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


class Cgroups:
    """Makes cgroups, all inside one that is held by a lock; one that nobody holds was left by a
    guardian that was killed.
    """

    def __init__(self, root: Cgroup, lock: int) -> None:
        self.root = root
        self._lock = lock
        self._memory_enabled: bool | None = None
        """Whether memory can be limited; None as long as nobody has asked."""

    @classmethod
    def open(cls, name: str) -> Cgroups | None:
        """A place of that name where we may make cgroups that can be killed whole, or None. What
        others left is removed.
        """
        root = Cgroup.for_name(name)
        lock = None if root is None else _make_locked(root)
        if root is None or lock is None:
            return None
        _remove_abandoned(os.path.dirname(root.path))
        cgroups = cls(root, lock)
        if _is_usable(root.path):
            return cgroups
        cgroups.remove()
        return None

    def make(self, name: str) -> Cgroup | None:
        cgroup = Cgroup(f"{self.root.path}/{name}")
        return cgroup if cgroup.make() else None

    def limit_memory(self, cgroup: Cgroup, amount: int) -> bool:
        """Limit one of ours; False where the memory controller is not for us."""
        if self._memory_enabled is None:
            self._memory_enabled = self.root.enable_controller("memory")
        return self._memory_enabled and cgroup.limit_memory(amount)

    def remove(self) -> None:
        self.root.remove()
        os.close(self._lock)


def _make_locked(cgroup: Cgroup) -> int | None:
    """Make it and lock it; again if somebody found it in between and took it for abandoned."""
    for _ in range(10):
        cgroup.make()
        lock = _lock_directory(cgroup.path, fcntl.LOCK_EX)
        if lock is not None and os.path.isdir(cgroup.path):
            return lock
        if lock is not None:
            os.close(lock)
    return None


def _remove_abandoned(base: str) -> None:
    for name in os.listdir(base):
        if (
            name.startswith(_PREFIX)
            and (lock := _lock_directory(f"{base}/{name}", fcntl.LOCK_EX | fcntl.LOCK_NB))
            is not None
        ):
            Cgroup(f"{base}/{name}").remove()
            os.close(lock)


def _lock_directory(path: str, operation: int) -> int | None:
    """A descriptor that holds the lock of this directory; None if it cannot be had."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, operation)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_usable(path: str) -> bool:
    return os.access(f"{path}/cgroup.kill", os.W_OK) and os.access(
        f"{path}/../cgroup.procs", os.W_OK
    )


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
