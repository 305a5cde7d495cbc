"""Runs suspects (`store.blame`) with no other row beside them in one process.

Every engine of a process registers a handle with the lock. An engine that wants to run an exclusive
row requests the process. From then on no other engine begins a row. When nothing runs in the
others, the requester has the process to itself until it releases it.

`ExclusiveRows` keeps the exclusive rows of one engine: those that wait until nothing else runs, and
the one that runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import inf

from longwatch.core.clock import Clock
from longwatch.engine.claim_source import ClaimedRow


class ExclusiveLock:
    """The engines of one process that share or request it. Thread-safe, and never blocks: handles
    are woken when a new attempt may succeed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: list[ExclusiveLockHandle] = []
        self._requester: ExclusiveLockHandle | None = None

    def register(self, wake: Callable[[], None]) -> ExclusiveLockHandle:
        """Return a handle for one engine. `wake` is called when its state may have changed."""
        handle = ExclusiveLockHandle(self, wake)
        with self._lock:
            self._handles.append(handle)
        return handle

    def is_requested_by_another(self, handle: ExclusiveLockHandle) -> bool:
        return self._requester is not None and self._requester is not handle

    def acquire_shared(self, handle: ExclusiveLockHandle) -> bool:
        with self._lock:
            handle.holds_shared = handle.holds_shared or self._requester in (None, handle)
            return self._requester in (None, handle)

    def release_shared(self, handle: ExclusiveLockHandle) -> None:
        with self._lock:
            if not handle.holds_shared:
                return
            handle.holds_shared = False
            requester = self._requester
        if requester is not None and requester is not handle:
            requester.wake()

    def request_exclusive(self, handle: ExclusiveLockHandle) -> bool:
        with self._lock:
            first = self._requester is None
            if first:
                self._requester = handle
            granted = self._requester is handle and not any(
                other.holds_shared for other in self._handles if other is not handle
            )
        if first and not granted:
            self._wake_others(handle)
        return granted

    def release_exclusive(self, handle: ExclusiveLockHandle) -> None:
        with self._lock:
            if self._requester is not handle:
                return
            self._requester = None
        self._wake_others(handle)

    def unregister(self, handle: ExclusiveLockHandle) -> None:
        self.release_shared(handle)
        self.release_exclusive(handle)
        with self._lock:
            if handle in self._handles:
                self._handles.remove(handle)

    def _wake_others(self, handle: ExclusiveLockHandle) -> None:
        for other in tuple(self._handles):
            if other is not handle:
                other.wake()


class ExclusiveLockHandle:
    """The handle of one engine on an `ExclusiveLock`."""

    def __init__(self, lock: ExclusiveLock, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.holds_shared = False
        self._lock = lock

    @property
    def is_blocked(self) -> bool:
        """Whether another engine has requested the process."""
        return self._lock.is_requested_by_another(self)

    def acquire_shared(self) -> bool:
        """Announce that rows may run here. Returns False if another engine has requested the
        process.
        """
        return self._lock.acquire_shared(self)

    def release_shared(self) -> None:
        """Announce that no row runs here."""
        self._lock.release_shared(self)

    def request_exclusive(self) -> bool:
        """Request the process. Returns True once no other engine runs a row. The request stays
        until `release_exclusive`.
        """
        return self._lock.request_exclusive(self)

    def release_exclusive(self) -> None:
        self._lock.release_exclusive(self)

    def unregister(self) -> None:
        self._lock.unregister(self)


class ExclusiveRows:
    """The exclusive rows of one engine, for its fetcher. Rows that wait longer than `timeout`
    seconds should be released for other workers.
    """

    def __init__(self, lock_handle: ExclusiveLockHandle, clock: Clock, *, timeout: float) -> None:
        self._lock_handle = lock_handle
        self._clock = clock
        self._timeout = timeout
        self._waiting: deque[ClaimedRow] = deque()
        self._waiting_since = -inf
        self._running: ClaimedRow | None = None

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def is_active(self) -> bool:
        """Whether an exclusive row waits or runs, so that no other row is claimed."""
        return bool(self._waiting) or self._running is not None

    def add(self, claimed: ClaimedRow) -> None:
        self._waiting_since = self._clock.monotonic()
        self._waiting.append(claimed)

    def time_left(self) -> float:
        """Return the seconds until the waiting rows are overdue."""
        return max(self._waiting_since + self._timeout - self._clock.monotonic(), 0.0)

    def start_next(self, held: int) -> ClaimedRow | None:
        """Return the row to run now, if nothing else runs: neither among the `held` rows of this
        engine nor in another engine of this process.
        """
        if (
            not self._waiting
            or self._running is not None
            or not self._lock_handle.request_exclusive()
            or held != len(self._waiting)
        ):
            return None
        self._running = self._waiting.popleft()
        return self._running

    @property
    def is_overdue(self) -> bool:
        return self._running is None and bool(self._waiting) and not self.time_left()

    def take_waiting(self) -> list[ClaimedRow]:
        """Remove the waiting rows, and return them."""
        dropped, self._waiting = list(self._waiting), deque()
        if self._running is None:
            self._lock_handle.release_exclusive()
        return dropped

    def finish(self, claimed: ClaimedRow) -> None:
        """Release the process if this finished row is the exclusive one."""
        if self._running is claimed:
            self._running = None
            self._lock_handle.release_exclusive()
