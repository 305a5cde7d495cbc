"""A disk that stops answering: a file system of its own, frozen for a moment.

While it is frozen every write to it blocks, uninterruptibly, and so may `sync()` anywhere on the
machine. So a process of its own thaws it after a while, whatever becomes of the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from small_disk import mount

_TOOLS = ("mkfs.ext4", "fsfreeze", "losetup")
_THAW_AFTER = 20
"""Seconds; a test needs one or two of them."""


@contextmanager
def ext4_filesystem(folder: Path) -> Iterator[Path]:
    """An ext4 file system that can be frozen. Skips at home and fails in CI where none can be
    mounted.
    """
    _require_tools()
    image, place = folder / "image", folder / "disk"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    place.mkdir()
    mount("-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def frozen(place: Path) -> Iterator[None]:
    """No write to this file system returns inside the block. Fails if the block takes so long
    that the file system had to be thawed before its end.
    """
    thawer = subprocess.Popen(
        ["sh", "-c", f'sleep {_THAW_AFTER}; exec fsfreeze --unfreeze "$0"', place],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
    )
    try:
        subprocess.run(["fsfreeze", "--freeze", place], check=True)
        yield
    finally:
        thawed = subprocess.run(["fsfreeze", "--unfreeze", place], check=False)
        thawer.terminate()
        thawer.wait()
    assert 0 == thawed.returncode, f"it was thawed after {_THAW_AFTER} s, before the test was done"


def _require_tools() -> None:
    lacking = [tool for tool in _TOOLS if shutil.which(tool) is None]
    reason = f"not there: {', '.join(lacking)}" if lacking else ""
    if os.geteuid() != 0:
        reason = "only root can freeze a file system"
    if reason and os.environ.get("CI"):
        pytest.fail(f"{reason}; needed by the tests of a frozen disk", pytrace=False)
    if reason:
        pytest.skip(f"{reason}; needed by the tests of a frozen disk")
