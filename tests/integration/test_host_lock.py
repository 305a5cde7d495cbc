from __future__ import annotations

import signal
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import pytest

from longwatch.host.runtime_dir import runtime_directory
from longwatch.store import host_lock
from longwatch.store.host_lock import HostLock
from snippet import run_snippet

HOLDER = """
import sys
from longwatch.store.host_lock import HostLock

lock = HostLock("chore")
print(lock.acquire(), flush=True)
sys.stdin.read()
"""

FORKED = """
import os, sys
from longwatch.store.host_lock import HostLock

lock = HostLock("chore")
assert lock.acquire()
if not os.fork():
    os.close(2)
    print("locked", flush=True)
    os.close(1)
    sys.stdin.read()
os._exit(0)
"""


@pytest.fixture(autouse=True)
def runtime_dir_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime directory of the test's own, whose path is short enough to be used."""
    with TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        assert folder == str(runtime_directory().parent)
        yield


@pytest.fixture(name="lock")
def lock_fixture() -> Iterator[HostLock]:
    lock = HostLock("chore")
    yield lock
    lock.release()


def test_one_of_two_holds_the_lock_until_it_is_released(lock: HostLock) -> None:
    other = HostLock("chore")
    assert [True, False, True] == [lock.acquire(), other.acquire(), lock.acquire()]
    lock.release()
    lock.release()
    assert [True, False] == [other.acquire(), lock.acquire()]
    other.release()
    assert [] == list(runtime_directory().iterdir())


def test_locks_of_other_chores_are_independent(lock: HostLock) -> None:
    other = HostLock("another chore")
    assert lock.acquire()
    assert other.acquire()
    other.release()


def test_the_lock_of_a_killed_process_is_free_at_once(lock: HostLock) -> None:
    with run_snippet(HOLDER) as holder:
        assert "True" == holder.read_line()
        assert not lock.acquire()
        holder.signal(signal.SIGKILL)
        holder.wait()
        assert lock.acquire()


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(lock: HostLock) -> None:
    with run_snippet(FORKED) as parent:
        assert "locked" == parent.read_line()
        parent.wait()
        assert lock.acquire()


def test_every_process_does_the_chore_without_a_usable_runtime_directory(lock: HostLock) -> None:
    runtime_directory().chmod(0o755)
    assert lock.acquire()
    assert HostLock("chore").acquire()


def test_a_lock_on_a_file_that_its_holder_has_removed_does_not_count(
    lock: HostLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder releases between the moment another process opens the file and locks it."""
    assert lock.acquire()
    other = HostLock("chore")

    def release_first(_descriptor: int) -> bool:
        lock.release()
        return True

    with monkeypatch.context() as patch:
        patch.setattr(host_lock, "try_lock", release_first)
        assert not other.acquire()
    assert other.acquire()
    other.release()
