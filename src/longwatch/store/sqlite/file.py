"""Checks and creates the file of a SQLite database before SQLite opens it."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from contextlib import suppress
from pathlib import Path

from longwatch.errors import StoreError, StoreFullError, StoreLocationError, StoreReadOnlyError

MOUNTINFO = Path("/proc/self/mountinfo")
_NETWORK_FILE_SYSTEMS = (
    "nfs", "cifs", "smb", "9p", "virtiofs", "afs", "ceph", "glusterfs", "lustre", "gpfs",
    "beegfs", "juicefs", "gcsfuse", "orangefs", "panfs", "wekafs", "ncpfs", "vboxsf", "vmhgfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs",
    "fuse.gcsfuse", "fuse.goofys", "fuse.mountpoint-s3", "fuse.mount-s3", "fuse.blobfuse",
    "fuse.seaweedfs", "fuse.mfs", "fuse.lizardfs", "fuse.afs", "fuse.vmhgfs", "fuse.grpcfuse",
    "fuse.osxfs",
)  # fmt: skip
"""How the types of file systems of other machines begin, among them the directories that a host
shares with its virtual machines and containers.
"""
READ_ONLY_TEXT = "is read-only; give this user write permission to the file and its directory"
MAX_PATH_BYTES = 504
"""The longest path, in bytes, that SQLite opens. Its own limit is 512, and it appends suffixes."""
_OCTAL = re.compile(r"\\([0-7]{3})")


def prepare_file(path: Path, *, mountinfo: Path = MOUNTINFO) -> None:
    """Create the file, readable by its owner only, if it does not exist. Raises a StoreError for a
    place where SQLite's guarantees do not hold.
    """
    require_usable_path(path)
    if kind := network_file_system(path, mountinfo=mountinfo):
        raise StoreLocationError(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; "
            f"use a local disk, or PostgreSQL"
        )
    try:
        with suppress(FileExistsError):
            _create(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreLocationError(
            f"{path} cannot be opened, its directory does not exist; create {path.parent}"
        ) from None
    except OSError as error:
        raise _create_error(path, error) from None
    if not is_writable(path):
        raise StoreReadOnlyError(f"{path} {READ_ONLY_TEXT}")


def require_usable_path(path: Path) -> None:
    """Raise a StoreError for a path that cannot be a database. A missing file is fine. Opens
    nothing.
    """
    try:
        mode = _file_mode(path)
    except (OSError, ValueError) as error:
        raise _unusable_error(path, error) from None
    if mode is not None and not stat.S_ISREG(mode):
        cure = (
            "is a directory; name a file in it"
            if stat.S_ISDIR(mode)
            else "is not a regular file; name another"
        )
        raise StoreLocationError(f"{path} cannot be opened, it {cure}")
    if (length := len(os.fsencode(os.path.realpath(path)))) > MAX_PATH_BYTES:
        raise StoreLocationError(
            f"{path} cannot be opened, its path has {length} bytes; use a path of at most "
            f"{MAX_PATH_BYTES}"
        )


def is_writable(path: Path) -> bool:
    """Return whether this user may write the existing file, and its file system is not
    read-only.
    """
    return os.access(path, os.R_OK | os.W_OK)


def network_file_system(path: Path, *, mountinfo: Path = MOUNTINFO) -> str | None:
    """Return the kind of network file system that holds the path. None for a local one, or if that
    is unknown.
    """
    try:
        lines = mountinfo.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    mount_point, kind = "", ""
    resolved = os.path.realpath(path)
    for line in lines:
        before, _, after = line.partition(" - ")
        candidate = _OCTAL.sub(lambda match: chr(int(match[1], 8)), before.split(" ")[4])
        if len(candidate) >= len(mount_point) and (
            resolved == candidate or resolved.startswith(candidate.rstrip("/") + "/")
        ):
            mount_point, kind = candidate, after.split(" ", 1)[0]
    return kind if kind.startswith(_NETWORK_FILE_SYSTEMS) else None


def _create(path: Path) -> None:
    """Create the file without opening an existing one. Closing that again would drop every lock
    that this process holds on it.
    """
    if sys.platform == "linux":
        os.mknod(path, 0o600)
    else:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _file_mode(path: Path) -> int | None:
    """Return the mode of the file, which shows its kind, or None if there is no file."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            raise FileNotFoundError(errno.ENOENT, "it is a link to a missing file") from None
        return None


def _unusable_error(path: Path, error: OSError | ValueError) -> StoreError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if isinstance(error, PermissionError):
        return StoreReadOnlyError(
            f"{path} cannot be reached ({reason}); give this user permission to enter its directory"
        )
    return StoreLocationError(f"{path} cannot be opened ({reason}); name another file")


def _create_error(path: Path, error: OSError) -> StoreError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFullError(f"{path} cannot be created: the disk is full; free some space")
    return StoreReadOnlyError(
        f"{path} cannot be created ({error.strerror}); give this user write permission to its "
        f"directory"
    )
