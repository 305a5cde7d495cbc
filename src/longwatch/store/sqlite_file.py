"""The file a SQLite database lives in, looked at before SQLite opens it."""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from longwatch.errors import StoreError, StoreFullError, StoreMisplacedError, StoreReadOnlyError

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    "nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "ncpfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph",
)  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")


def prepare_file(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Make the file for its owner alone if it is not there; refuse a place where SQLite cannot keep its promises."""
    if kind := network_file_system(path, mounts=mounts):
        raise StoreMisplacedError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; use a local disk, or PostgreSQL"
        )
    try:
        with suppress(FileExistsError):
            _make(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreMisplacedError(f"{path} cannot be opened, its directory does not exist; make {path.parent}") from None
    except OSError as error:
        raise _not_made(path, error) from None
    _require_writable(path)


def network_file_system(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """The kind of network file system the path is on; None for a local one, or where the system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, kind = "", ""
    resolved = str(path.resolve())
    for line in lines:
        before, _, after = line.partition(" - ")
        where = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if len(where) >= len(place) and (resolved == where or resolved.startswith(where.rstrip("/") + "/")):
            place, kind = where, after.split(" ", 1)[0]
    return kind if kind.startswith(_NETWORK) else None


def _make(path: Path) -> None:
    """Never opens a file that may be in use: closing it again would drop every lock that this process holds on it."""
    if sys.platform == "linux":
        os.mknod(path, 0o600)
    else:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _not_made(path: Path, error: OSError) -> StoreError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(f"{path} cannot be made: the disk is full; free some space")
    return StoreReadOnlyError(f"{path} cannot be made ({error.strerror}); give this user write permission to its directory")


def _require_writable(path: Path) -> None:
    if path.is_dir():
        raise StoreMisplacedError(f"{path} cannot be opened, it is a directory; name a file in it")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreReadOnlyError(f"{path} is read-only; give this user write permission to the file and its directory")
