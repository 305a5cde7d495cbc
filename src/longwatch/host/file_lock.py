"""Locks on open files (flock), which show whether the process that holds them is alive.

The kernel releases such a lock when the last descriptor of that open file is closed. That is at the
latest when the process ends, however it ends. A forked child shares the descriptor and with it the
lock. The file may be a directory.
"""

from __future__ import annotations

import fcntl
import os


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False if another open file holds the lock.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_locked(path: str | os.PathLike[str], flags: int, *, wait: bool = False) -> int | None:
    """Open a file and lock it; return the descriptor, or None if either fails.

    With `wait` it blocks until the current holder has closed its descriptor. On NFS the descriptor
    must be writable for an exclusive lock.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
