"""The directory for the sockets of one supervisor: with a short path, accessible only to its owner,
and removed with the supervisor.
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
    """The directory, locked as long as its supervisor lives. The next supervisor removes
    directories of killed ones.
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
            ):  # else another supervisor removed it as stale before it was locked
                return cls(path, lock)

    def socket_path(self, name: str, uid: int | None = None) -> Path:
        """Return the path for a socket of that name. For a process of another user, which has no
        access to this directory, it is in a directory that this user can traverse.

        We own that directory too. In a directory of its own, the user could replace the socket by a
        symlink, and we would change the mode of its target.
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
    """Remove the directory, and the directories outside that it links to."""
    for outside in path.glob("*.outside"):
        shutil.rmtree(outside.resolve(), ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def _stale_directories(base: Path) -> Iterator[Path]:
    for path in base.glob(f"{_PREFIX}*"):
        lock = open_locked(path, os.O_DIRECTORY)
        if lock is not None:
            yield path
            os.close(lock)
