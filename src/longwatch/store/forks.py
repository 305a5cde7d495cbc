"""Stores and fork: a child must use nothing of what its parent has open. Above all SQLite, which
does not defend itself.

A child that forks off while a thread is inside SQLite inherits its locks as taken, for ever: SQLite
counts them once a process and takes the copy for its own. So a fork waits until no connection of
ours is in use, and the child closes its copies before anything else runs there. That is harmless to
the parent: locks of files belong to processes, and a copy that closes finds the parent's.

`os.fork` and what stands on it come through here; starting another program does not need it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet


class ForkAware(Protocol):
    """Something whose parts must not be in use when the process forks."""

    def before_fork(self) -> None:
        """Block new use of them, and wait for users up to a timeout."""

    def after_fork_in_parent(self) -> None:
        """In the parent, after the fork."""

    def after_fork_in_child(self) -> None:
        """In the child, after the fork: close what is the parent's."""


class LockLike(Protocol):
    """What `threading.Lock` and `threading.RLock` make."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...  # noqa: FBT001 - theirs
    def release(self) -> None: ...


_LOCK_TIMEOUT = 5.0
"""How long a fork waits for one lock, in seconds: it is held for one transaction at the most.
Then it goes on without.
"""

_POLL_SECONDS = 0.001
"""How often those who let a fork go first look whether it is over, in seconds."""

_registered: WeakSet[ForkAware] = WeakSet()
_registry_lock = threading.Lock()
_prepared: list[ForkAware] = []


class _ForkState:
    """Whether one waits. A plain fact: a lock or an event in its place could itself be taken in
    the moment of the fork.
    """

    is_pending = False


class _ThreadState(threading.local):
    """How many locks of ours the present thread holds."""

    locks_held = 0


_fork = _ForkState()
_thread = _ThreadState()


def register_fork_hooks(forkable: ForkAware) -> None:
    """Call its methods around every fork, for as long as it lives."""
    with _registry_lock:
        _registered.add(forkable)


@contextmanager
def fork_guarded(lock: LockLike) -> Iterator[None]:
    """Hold a lock that a fork waits for. While one waits, whoever is not in the middle of something
    lets it go first: locks are not fair, and threads that take them again and again would keep it
    waiting for ever.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT
    while _fork.is_pending and not _thread.locks_held and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    lock.acquire()
    _thread.locks_held += 1
    try:
        yield
    finally:
        _thread.locks_held -= 1
        lock.release()


def acquire_locks(locks: Iterable[LockLike]) -> list[LockLike]:
    """Take these locks for the time of a fork; those that were taken."""
    return [lock for lock in locks if lock.acquire(timeout=_LOCK_TIMEOUT)]


def _before_fork() -> None:
    _registry_lock.acquire()
    _fork.is_pending = True
    _prepared.extend(_registered)
    for forkable in _prepared:
        forkable.before_fork()


def _after_in_parent() -> None:
    _finish_fork(lambda forkable: forkable.after_fork_in_parent())


def _after_in_child() -> None:
    _finish_fork(lambda forkable: forkable.after_fork_in_child())


def _finish_fork(act: Callable[[ForkAware], None]) -> None:
    for forkable in _prepared:
        act(forkable)
    _prepared.clear()
    _fork.is_pending = False
    _registry_lock.release()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child
)
