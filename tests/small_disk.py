"""A file system of a few bytes, for tests of a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


def mount(*words: str) -> None:
    """Skips at home and fails in CI where that is not allowed."""
    done = subprocess.run(["mount", *words], check=False, capture_output=True, text=True)
    if done.returncode == 0:
        return
    reason = f"mount does not work here ({done.stderr.strip()}); needed by the tests of a full disk"
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def small_filesystem(folder: Path, *, size: str = "2m") -> Iterator[Path]:
    """A file system of this size. Unmounted lazily: what is open there may be closed later."""
    place = folder / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_disk(disk: Path) -> Path:
    """Take all the space there is."""
    ballast = disk / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast
