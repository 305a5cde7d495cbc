"""Cgroups (v2) of process trees: only a privileged process can leave one, and the kernel kills all
of it at once.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from longwatch.host.guardian.kernel import fork_into

_PREFIX = "longwatch-"
_LEAF_LINKS = 2


class Cgroup:
    """The cgroup of one tree, or the one around all trees."""

    def __init__(self, path: str) -> None:
        self.path = path

    @classmethod
    def for_name(cls, name: str) -> Cgroup | None:
        """Return the cgroup of that name below this process's own, whether it exists or not.

        None where there is no cgroup v2.
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
        """Fork a child inside it; None if an old kernel or a system call filter does
        not allow it.
        """
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return fork_into(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def enter(self) -> None:
        """Move the calling process in. Used between fork and exec."""
        self._write("cgroup.procs", "0")

    def pids(self) -> set[int]:
        """Return the pids in it and in cgroups made inside it, zombies included."""
        found: set[int] = set()
        for folder in self._folders():
            with suppress(OSError), open(f"{folder}/cgroup.procs", "rb") as file:
                found.update(map(int, file.read().split()))
        return found - {0}

    def _folders(self) -> list[str]:
        """Return its directory, and those of cgroups made inside it.

        More than two links to the directory mean that there are some.
        """
        with suppress(OSError):
            if os.stat(self.path).st_nlink > _LEAF_LINKS:
                return [folder for folder, _, _ in os.walk(self.path)]
        return [self.path]

    @property
    def populated(self) -> bool:
        """Whether the kernel reports living processes in it; forking and exiting cannot hide a
        process.
        """
        try:
            with open(f"{self.path}/cgroup.events") as file:
                return "populated 1" in file.read()
        except OSError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to every process in it, including those being forked."""
        with suppress(OSError):
            self._write("cgroup.kill", "1")

    def limit_memory(self, amount: int) -> bool:
        """Limit the memory of all its processes together, without swap; False if that is not
        possible.

        When the limit is exceeded, the kernel kills all of them.
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
        """Whether the kernel killed any process in it because of memory."""
        try:
            with open(f"{self.path}/memory.events") as file:
                return any(
                    line.startswith("oom_kill ") and int(line.split()[1]) > 0 for line in file
                )
        except OSError:
            return False

    def enable_controller(self, controller: str) -> bool:
        """Enable a controller for the cgroups inside it; False if it does not have the controller
        itself.
        """
        try:
            self._write("cgroup.subtree_control", f"+{controller}")
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Remove it and the cgroups inside it, except those that still contain processes."""
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
    """Makes cgroups, all inside one root that this guardian locks.

    A root without a lock was left by a guardian that was killed.
    """

    def __init__(self, root: Cgroup, lock: int) -> None:
        self.root = root
        self._lock = lock
        self._memory_enabled: bool | None = None
        """Whether memory can be limited; None until the first use."""

    @classmethod
    def open(cls, name: str) -> Cgroups | None:
        """Make a root of that name, or return None if cgroups that can be killed cannot be made
        here.

        Removes roots that killed guardians left.
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
        """Limit one cgroup of this root; False where the memory controller is not available."""
        if self._memory_enabled is None:
            self._memory_enabled = self.root.enable_controller("memory")
        return self._memory_enabled and cgroup.limit_memory(amount)

    def remove(self) -> None:
        self.root.remove()
        os.close(self._lock)


def _make_locked(cgroup: Cgroup) -> int | None:
    """Make it and lock it; retry if another guardian took it for abandoned in between."""
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
    """Lock this directory and return the descriptor that holds the lock; None if that fails."""
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
    """Return the directory of this process's cgroup in the unified hierarchy."""
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
