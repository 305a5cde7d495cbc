"""A short directory for sockets and pages that belongs to this user alone."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from longwatch.errors import UsageError

_MAX_PATH_BYTES = 67
"""Bytes in its path: that of a socket ends at 107, and its name takes up to 40."""


def runtime_directory() -> Path:
    """Below XDG_RUNTIME_DIR if that is set and can be used, else below the temporary directory, or
    below /tmp if that is too long.

    Made 0700, and refused if it is anybody else's.
    """
    directory = _directory_path()
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise UsageError(
            f"{directory} cannot be made ({error.strerror}); set XDG_RUNTIME_DIR to a "
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
    return directory if len(os.fsencode(directory)) <= _MAX_PATH_BYTES else Path("/tmp") / name  # noqa: S108 - refused unless it is ours
