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


class Forkable(Protocol):
    """Something whose parts must not be in use when the process forks."""

    def hold(self) -> None:
        """Let nobody begin to use them, wait a while for those who do."""

    def go_on(self) -> None:
        """In the parent, after the fork."""

    def leave_behind(self) -> None:
        """In the child, after the fork: let go of what is the parent's."""


class Lock(Protocol):
    """What `threading.Lock` and `threading.RLock` make."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...  # noqa: FBT001 - theirs
    def release(self) -> None: ...


_PATIENCE = 5.0
"""How long a fork waits for one lock, in seconds: it is held for one transaction at the most.
Then it goes on without.
"""

_STEP = 0.001
"""How often those who let a fork go first look whether it is over, in seconds."""

_known: WeakSet[Forkable] = WeakSet()
_lock = threading.Lock()
_held: list[Forkable] = []


class _Fork:
    """Whether one waits. A plain fact: a lock or an event in its place could itself be taken in
    the moment of the fork.
    """

    is_waiting = False


class _Thread(threading.local):
    """How many locks of ours the present thread holds."""

    holds = 0


_fork = _Fork()
_thread = _Thread()


def survive_forks(forkable: Forkable) -> None:
    """Have it told of every fork for as long as it lives."""
    with _lock:
        _known.add(forkable)


@contextmanager
def using(lock: Lock) -> Iterator[None]:
    """Hold a lock that a fork waits for. While one waits, whoever is not in the middle of something
    lets it go first: locks are not fair, and threads that take them again and again would keep it
    waiting for ever.
    """
    until = time.monotonic() + _PATIENCE
    while _fork.is_waiting and not _thread.holds and time.monotonic() < until:
        time.sleep(_STEP)
    lock.acquire()
    _thread.holds += 1
    try:
        yield
    finally:
        _thread.holds -= 1
        lock.release()


def hold_locks(locks: Iterable[Lock]) -> list[Lock]:
    """Take these locks for the time of a fork; those that were taken."""
    return [lock for lock in locks if lock.acquire(timeout=_PATIENCE)]


def _before() -> None:
    _lock.acquire()
    _fork.is_waiting = True
    _held.extend(_known)
    for forkable in _held:
        forkable.hold()


def _in_parent() -> None:
    _release(lambda forkable: forkable.go_on())


def _in_child() -> None:
    _release(lambda forkable: forkable.leave_behind())


def _release(act: Callable[[Forkable], None]) -> None:
    for forkable in _held:
        act(forkable)
    _held.clear()
    _fork.is_waiting = False
    _lock.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
