"""The owner of a lease: one start of one process, named so that other processes can see if it
lives.

Its text is `ID.BOOT.NAMESPACE.PID.START`: a random id, the machine's boot, the PID namespace, and
the pid with its start time. Processes of the same boot and namespace can check it. An owner is dead
if its pid is gone, is a zombie or has another start time. From elsewhere, or if /proc is not
readable, an owner counts as alive. So the lease of a living process is never taken this way.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

_THREADS_FIELD, _START_TIME_FIELD = 17, 19
"""Index in the fields of /proc/PID/stat, counted from the state after the name in parentheses."""

_SYSCTL_BYTES = 128


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One start of one process."""

    id: str
    boot: str
    namespace: int
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.id}.{self.boot}.{self.namespace}.{self.pid}.{self.start}"

    @classmethod
    def current(cls) -> Self:
        """Make a new incarnation of this process; a forked child needs its own."""
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Self:
        """Make a new incarnation of the process that has this pid now."""
        now = _read_proc_stat(pid)
        start = now.start if now is not None else 0
        return cls(os.urandom(8).hex(), boot_id(), _pid_namespace(), pid, start)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `str`; raises ValueError for anything else."""
        identity, boot, namespace, pid, start = text.split(".")
        return cls(identity, boot, int(namespace), int(pid), int(start))

    def is_dead(self) -> bool:
        """Whether the process has certainly ended. False means alive or unknown."""
        if not self.is_visible:
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        now = _read_proc_stat(self.pid)
        return now is not None and (now.is_zombie or (bool(self.start) and now.start != self.start))

    @property
    def is_visible(self) -> bool:
        """Whether this process can see it: same boot, same PID namespace."""
        return (
            bool(self.namespace)
            and not self.is_from_another_boot
            and self.namespace == _pid_namespace()
        )

    @property
    def is_from_another_boot(self) -> bool:
        """Whether it belongs to another boot, of this machine or of another one."""
        return self.boot != boot_id()


@cache
def boot_id() -> str:
    """Return the id of this boot without dashes; empty if the system does not provide it."""
    if _is_macos():
        text = _read_sysctl("kern.bootsessionuuid")
    else:
        text = _read_text("/proc/sys/kernel/random/boot_id")
    return text.strip().replace("-", "").lower()


def _is_macos() -> bool:
    return sys.platform == "darwin"


def _read_text(path: str) -> str:
    """Read a text file; empty if it cannot be read."""
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


def _read_sysctl(name: str) -> str:
    """Read a text value of the macOS kernel; empty if it does not exist."""
    import ctypes  # noqa: PLC0415 - needed on macOS only

    buffer = ctypes.create_string_buffer(_SYSCTL_BYTES)
    size = ctypes.c_size_t(_SYSCTL_BYTES)
    try:
        failed = ctypes.CDLL(None).sysctlbyname(
            name.encode("ascii"), buffer, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
    except (OSError, AttributeError):  # no such function in this libc
        return ""
    return "" if failed else buffer.value.decode("ascii", errors="replace")


def _pid_namespace() -> int:
    """Return the PID namespace of this process.

    0 if the system does not provide it, or if /proc shows the pids of another namespace.
    """
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115 - only the text of the link matters
            return 0
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


class _ProcStat(NamedTuple):
    """Facts about a process from /proc."""

    is_zombie: bool
    start: int


def _read_proc_stat(pid: int) -> _ProcStat | None:
    """Read /proc/PID/stat; None if it is not readable.

    A zombie that has other threads is not dead: only its main thread has ended.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return _ProcStat(
        state in {b"Z", b"X"} and int(rest[_THREADS_FIELD - 1]) <= 1,
        int(rest[_START_TIME_FIELD - 1]),
    )
