"""The file a SQLite database lives in, looked at before SQLite opens it."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path

from longwatch.errors import StoreError, StoreFullError, StoreMisplacedError, StoreReadOnlyError

MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    "nfs", "cifs", "smb", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs", "ncpfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph",
)  # fmt: skip
READ_ONLY = "is read-only; give this user write permission to the file and its directory"
LONGEST_PATH = 504
"""Bytes of a path that SQLite opens; it appends to it, and its own limit is 512."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def prepare_file(path: Path, *, mounts: Path = MOUNTS) -> None:
    """Make the file for its owner alone if it is not there; refuse a place where SQLite cannot
    keep its promises.
    """
    require_place(path)
    if kind := network_file_system(path, mounts=mounts):
        raise StoreMisplacedError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; "
            f"use a local disk, or PostgreSQL"
        )
    try:
        with suppress(FileExistsError):
            _make(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreMisplacedError(
            f"{path} cannot be opened, its directory does not exist; make {path.parent}"
        ) from None
    except OSError as error:
        raise _not_made(path, error) from None
    if not is_writable(path):
        raise StoreReadOnlyError(f"{path} {READ_ONLY}")


def require_place(path: Path) -> None:
    """Refuse what can be no database, whatever is done about it; that nothing is there yet is
    all right. Opens nothing.
    """
    try:
        kind = _kind(path)
    except (OSError, ValueError) as error:
        raise _unusable(path, error) from None
    if kind is not None and not stat.S_ISREG(kind):
        cure = (
            "is a directory; name a file in it"
            if stat.S_ISDIR(kind)
            else "is no regular file; name another"
        )
        raise StoreMisplacedError(f"{path} cannot be opened, it {cure}")
    if (length := len(os.fsencode(os.path.realpath(path)))) > LONGEST_PATH:
        raise StoreMisplacedError(
            f"{path} cannot be opened, its path has {length} bytes; use one of {LONGEST_PATH} "
            f"at the most"
        )


def is_writable(path: Path) -> bool:
    """Whether this user may write the file that is there, and the file system it is on lets
    anybody.
    """
    return os.access(path, os.R_OK | os.W_OK)


def network_file_system(path: Path, *, mounts: Path = MOUNTS) -> str | None:
    """The kind of network file system the path is on; None for a local one, or where the system
    does not tell.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    place, kind = "", ""
    resolved = os.path.realpath(path)
    for line in lines:
        before, _, after = line.partition(" - ")
        where = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if len(where) >= len(place) and (
            resolved == where or resolved.startswith(where.rstrip("/") + "/")
        ):
            place, kind = where, after.split(" ", 1)[0]
    return kind if kind.startswith(_NETWORK) else None


def _make(path: Path) -> None:
    """Never opens a file that may be in use: closing it again would drop every lock that this
    process holds on it.
    """
    if sys.platform == "linux":
        os.mknod(path, 0o600)
    else:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _kind(path: Path) -> int | None:
    """The mode of what is there, which tells what it is; None if nothing is."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "it links to what does not exist") from None
        return None


def _unusable(path: Path, error: OSError | ValueError) -> StoreError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, PermissionError):
        return StoreReadOnlyError(
            f"{path} cannot be reached ({why}); give this user permission to enter its directory"
        )
    return StoreMisplacedError(f"{path} cannot be opened ({why}); name another file")


def _not_made(path: Path, error: OSError) -> StoreError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(f"{path} cannot be made: the disk is full; free some space")
    return StoreReadOnlyError(
        f"{path} cannot be made ({error.strerror}); give this user write permission to its "
        f"directory"
    )
