"""One process of a host does a chore that every process could do, such as looking for dead owners.

    waiting ──acquire, while no other process holds the lock──► held
       ▲                                                         │
       └──────────── release, or the process ends ───────────────┘

The lock is a flock on a file in the runtime directory. The kernel releases it when the process
ends, however it ends, so another process takes it at its next attempt.

Invariants
1. At most one process of a host holds the lock, as far as the processes share a runtime directory.
   A container and a user have one of their own.
2. A forked child holds no lock of its parent: it closes its copy of the descriptor.
3. The holder removes the file before it releases the lock. A process that locked a removed file
   does not hold the lock, and tries again at its next attempt.

Failure cases
- The file cannot be opened or locked (no runtime directory, a full disk). Every process does the
  chore. So the lock is only for chores that may be done twice.
- The holder is stopped (SIGSTOP). It keeps the lock, and its host does not do the chore. So there
  must be another, slower way.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from weakref import finalize

from longwatch.errors import UsageError
from longwatch.host.file_lock import try_lock
from longwatch.host.runtime_dir import runtime_directory
from longwatch.store.forks import register_fork_hooks


class HostLock:
    """The lock of one chore. Does not block. Not thread-safe: its user makes one call at a time.

    `key` names the chore and what it is done for, such as a store and a queue.
    """

    def __init__(self, key: str) -> None:
        self._name = f"turn-{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}"
        self._held: dict[int, Path] = {}
        """The descriptor that has the lock, and its file."""
        finalize(self, _close, self._held)
        register_fork_hooks(self)

    def acquire(self) -> bool:
        """Return whether this process does the chore. Takes the lock if it is free."""
        if self._held:
            return True
        try:
            path = runtime_directory() / self._name
            descriptor = _lock_file(path)
        except (OSError, UsageError):
            return True
        if descriptor is None:
            return False
        self._held[descriptor] = path
        return True

    def release(self) -> None:
        """Let another process do the chore. Idempotent."""
        for path in self._held.values():
            with suppress(OSError):
                path.unlink()
        _close(self._held)

    def before_fork(self) -> None:
        """Do nothing: a fork harms no lock."""

    def after_fork_in_parent(self) -> None:
        """Do nothing: the parent keeps the lock."""

    def after_fork_in_child(self) -> None:
        """Close the child's copy of the descriptor, or it would keep the lock of a dead parent."""
        _close(self._held)


def _close(held: dict[int, Path]) -> None:
    while held:
        descriptor, _ = held.popitem()
        os.close(descriptor)


def _lock_file(path: Path) -> int | None:
    """Open and lock a file. Returns None if another process holds the lock or removed the file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if try_lock(descriptor) and _is_at(path, descriptor):
            return descriptor
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
