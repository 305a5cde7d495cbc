"""The runtime directory: a directory with a short path for sockets and beat pages, private to this
user.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from longwatch.errors import UsageError

_MAX_PATH_BYTES = 67
"""Longest path in bytes. The path of a socket has at most 107, and its name takes up to 40."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - refused unless it belongs to this user
_SET_ANOTHER = "set XDG_RUNTIME_DIR to a directory of your own"


def runtime_directory() -> Path:
    """Return the runtime directory of this user; creates it with mode 0700.

    It is below XDG_RUNTIME_DIR if that is set and usable, else below the temporary directory, or
    below /tmp if that path is too long. Raises UsageError, with the cure, if another user could use
    it or this user cannot.
    """
    directory = runtime_directory_path()
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise UsageError(f"cannot create {directory} ({error.strerror}); {_SET_ANOTHER}") from None
    if problem := _find_problem(directory, found):
        raise UsageError(f"{directory} {problem}, or {_SET_ANOTHER}")
    return directory


def runtime_directory_path() -> Path:
    """Return the path of the runtime directory, which may not exist or not be usable."""
    name = f"longwatch-{os.geteuid()}"
    configured = os.environ.get("XDG_RUNTIME_DIR", "")
    base = configured if _is_trusted(configured) else _temporary_directory()
    directory = Path(base).absolute() / name
    return directory if len(os.fsencode(directory)) <= _MAX_PATH_BYTES else Path("/tmp") / name  # noqa: S108 - refused unless it belongs to this user


def private_file_directory() -> Path:
    """Return the directory for files that a process creates under a random name, with O_EXCL and
    mode 0600.

    It is the runtime directory, or the temporary directory if the runtime directory cannot be used.
    """
    try:
        return runtime_directory()
    except UsageError:
        return Path(_temporary_directory())


def _find_problem(directory: Path, found: os.stat_result) -> str:
    """Why the directory cannot be used, and the first cure; empty if it can."""
    if not stat.S_ISDIR(found.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a directory"
        return f"is {kind}; remove it"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, not to user {os.geteuid()}; have it removed"
    if found.st_mode & 0o077:
        return f"is open to other users (mode {found.st_mode & 0o777:o}); `chmod 700` it"
    if not _is_writable(directory):
        return f"is not writable (mode {found.st_mode & 0o777:o}); `chmod 700` it"
    return ""


def _is_trusted(base: str) -> bool:
    """Whether XDG_RUNTIME_DIR can be used. Under `sudo` it may belong to another user."""
    try:
        owner = os.stat(base).st_uid  # noqa: PTH116 - it may be empty
    except OSError:
        return False
    return owner in {0, os.geteuid()} and _is_writable(base)


def _is_writable(directory: str | Path) -> bool:
    return os.access(directory, os.W_OK | os.X_OK, effective_ids=True)


def _temporary_directory() -> str:
    """Return the temporary directory; /dev/shm if none can be written, as in a container with a
    read-only file system.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        return _SHARED_MEMORY
