"""A directory with a short path, for sockets and pages of this user alone."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from longwatch.errors import UsageError

_MAX_PATH_BYTES = 67
"""Longest path in bytes. The path of a socket has at most 107, and its name takes up to 40."""


def runtime_directory() -> Path:
    """Return the runtime directory of this user; creates it with mode 0700.

    It is below XDG_RUNTIME_DIR if that is set and usable, else below the temporary directory, or
    below /tmp if that path is too long. Raises UsageError if it belongs to another user, or others
    can read it.
    """
    directory = _directory_path()
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise UsageError(
            f"cannot create {directory} ({error.strerror}); set XDG_RUNTIME_DIR to a "
            f"directory of your own"
        ) from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise UsageError(
            f"{directory} is not a directory of this user alone; remove it, or set XDG_RUNTIME_DIR"
        )
    return directory


def _directory_path() -> Path:
    name = f"longwatch-{os.getuid()}"
    configured = os.environ.get("XDG_RUNTIME_DIR", "")
    base = configured if os.access(configured, os.W_OK | os.X_OK) else tempfile.gettempdir()
    directory = Path(base).absolute() / name
    return directory if len(os.fsencode(directory)) <= _MAX_PATH_BYTES else Path("/tmp") / name  # noqa: S108 - refused unless it belongs to this user
