from __future__ import annotations

import errno
import fcntl
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from longwatch.host.file_lock import open_locked, try_lock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "locked"
    file.touch()
    return file


@pytest.fixture
def holder(path: Path) -> Iterator[int]:
    """A descriptor that holds the lock of the file."""
    descriptor = open_locked(path, os.O_RDWR)
    assert descriptor is not None
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def other(path: Path) -> Iterator[int]:
    """Another open file of the same path, without a lock."""
    descriptor = os.open(path, os.O_RDWR)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize("shared", [False, True])
def test_a_lock_is_refused_while_another_open_file_holds_it(
    holder: int,
    other: int,
    shared: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    assert holder != other
    assert not try_lock(other, shared=shared)


def test_shared_locks_go_together_and_exclude_the_exclusive_one(path: Path, other: int) -> None:
    reader = os.open(path, os.O_RDONLY)
    try:
        assert try_lock(other, shared=True)
        assert try_lock(reader, shared=True)
        assert open_locked(path, os.O_RDWR) is None
    finally:
        os.close(reader)


def test_a_lock_ends_with_its_descriptor(path: Path, other: int) -> None:
    descriptor = open_locked(path, os.O_RDWR)
    assert descriptor is not None
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)

    assert try_lock(other)


def test_a_refused_lock_leaves_no_descriptor_open(path: Path, holder: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    assert [None, None] == [open_locked(path, os.O_RDWR) for _ in range(2)]
    assert before == len(list(Path("/proc/self/fd").iterdir()))
    assert holder


def test_what_cannot_be_opened_cannot_be_locked(tmp_path: Path, path: Path) -> None:
    assert open_locked(tmp_path / "missing", os.O_RDWR) is None
    assert open_locked(path, os.O_DIRECTORY) is None


def test_a_lock_of_a_directory_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_locked(tmp_path, os.O_DIRECTORY)
    assert first is not None
    real, asked, taken = fcntl.flock, queue.SimpleQueue[int](), list[int | None]()

    def flock(descriptor: int, operation: int) -> None:
        asked.put(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    thread = threading.Thread(
        target=lambda: taken.append(open_locked(tmp_path, os.O_DIRECTORY, wait=True))
    )
    thread.start()
    assert fcntl.LOCK_EX == asked.get(timeout=10)
    assert [] == taken
    os.close(first)
    thread.join(10)

    (second,) = taken
    assert second is not None
    os.close(second)


def test_a_file_system_without_locks_is_an_error_of_the_try_alone(
    path: Path, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="no locks"):
        try_lock(other)
    assert open_locked(path, os.O_RDWR) is None
