"""Makes stores safe across fork: a child must not use anything that its parent has open.

A child that forks while a thread is inside SQLite inherits SQLite's locks as taken, for ever:
SQLite counts them per process and takes the copy for its own. So a fork waits until no connection
of ours is in use, and the child closes its copies before any other code runs. Closing them does not
harm the parent: file locks belong to processes, and the parent still holds its own.

`os.fork` and everything built on it call these hooks. Starting another program needs no hook.
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
    """An object whose connections must not be in use when the process forks."""

    def before_fork(self) -> None:
        """Block new use of the connections, and wait for current users up to a timeout."""

    def after_fork_in_parent(self) -> None:
        """Called in the parent, after the fork."""

    def after_fork_in_child(self) -> None:
        """Called in the child, after the fork: close the copies of the parent's connections."""


class LockLike(Protocol):
    """The methods of `threading.Lock` and `threading.RLock` that are used here."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...  # noqa: FBT001 - the signature of threading.Lock
    def release(self) -> None: ...


_LOCK_TIMEOUT = 5.0
"""Seconds that a fork waits for one lock, which is held for one transaction at most. Then it goes
on without the lock.
"""

_POLL_SECONDS = 0.001
"""Seconds between two checks of a thread that waits for a fork to finish."""

_registered: WeakSet[ForkAware] = WeakSet()
_registry_lock = threading.Lock()
_prepared: list[ForkAware] = []


class _ForkState:
    """Whether a fork is pending. A plain attribute: a lock or an event could itself be taken at the
    moment of the fork.
    """

    is_pending = False


class _ThreadState(threading.local):
    """How many of these locks the current thread holds."""

    locks_held = 0


_fork = _ForkState()
_thread = _ThreadState()


def register_fork_hooks(forkable: ForkAware) -> None:
    """Call the methods of this object around every fork, as long as it exists. Keeps a weak
    reference.
    """
    with _registry_lock:
        _registered.add(forkable)


@contextmanager
def fork_guarded(lock: LockLike) -> Iterator[None]:
    """Hold a lock that a fork waits for.

    While a fork is pending, a thread that holds no other such lock waits first. Locks are not fair:
    threads that take them again and again would delay the fork for ever.
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
    """Acquire these locks for the time of a fork. Returns those that were acquired in time."""
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
