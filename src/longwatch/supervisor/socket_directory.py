"""A directory of one supervisor for its sockets: short enough for their addresses, its owner's
alone, gone when it is.

A supervisor holds a lock on its directory for as long as it lives. The next supervisor that makes
one removes those that are not locked: their supervisors were killed. A directory may be removed
after it was made and before it was locked. Its maker notices that once it has the lock, and makes
another.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from longwatch.host.file_lock import open_locked
from longwatch.host.runtime_dir import runtime_directory

_PREFIX = "up-"


class SocketDirectory:
    """The directory, held by a lock for as long as its maker lives; what a killed one left is
    removed by the next.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def create(cls) -> Self:
        base = runtime_directory()
        for stale in _stale_directories(base):
            _remove(stale)
        while True:
            path = base / f"{_PREFIX}{os.getpid()}-{os.urandom(3).hex()}"
            path.mkdir(mode=0o700)
            lock = open_locked(path, os.O_DIRECTORY, wait=True)
            if (
                lock is not None and path.is_dir()
            ):  # else somebody took it for abandoned before it was locked
                return cls(path, lock)

    def socket_path(self, name: str, uid: int | None = None) -> Path:
        """Where a socket of that name may be; for another user's process in a directory that it can
        pass: it cannot come here.

        That one stays ours as well. In a directory of theirs they could put a link in the socket's
        place, and we would open up whatever it leads to.
        """
        if uid is None or uid == os.getuid():
            return self.path / name
        outside = Path(tempfile.mkdtemp(prefix="longwatch-", dir="/tmp"))
        outside.chmod(0o711)
        (self.path / f"{name}.outside").symlink_to(outside)
        return outside / name

    def close(self) -> None:
        _remove(self.path)
        os.close(self._lock)


def _remove(path: Path) -> None:
    """The directory, and what it names outside of it."""
    for outside in path.glob("*.outside"):
        shutil.rmtree(outside.resolve(), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def _stale_directories(base: Path) -> Iterator[Path]:
    for path in base.glob(f"{_PREFIX}*"):
        lock = open_locked(path, os.O_DIRECTORY)
        if lock is not None:
            yield path
            os.close(lock)
