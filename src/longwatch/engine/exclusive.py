"""Which rows run beside others in one process: suspects (`store.blame`) run with nothing beside
them.

Every engine of a process has a seat. An engine that wants to run such a row asks for the process;
from then on no other begins anything, and when the last of them has nothing running any more, the
one who asked has the process to itself until it lets go.

Rows that run alone: those of one engine that wait until nothing else runs, and the one that
does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import inf

from longwatch.core.clock import Clock
from longwatch.engine.claim_source import ClaimedRow


class ExclusiveLock:
    """The seats of one process. Thread-safe; nothing here waits: seats are woken when it may be
    worth asking again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: list[ExclusiveLockHandle] = []
        self._requester: ExclusiveLockHandle | None = None

    def register(self, wake: Callable[[], None]) -> ExclusiveLockHandle:
        """A seat for one engine; `wake` is called when something has changed for it."""
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
    """One engine's place."""

    def __init__(self, lock: ExclusiveLock, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.holds_shared = False
        self._lock = lock

    @property
    def is_blocked(self) -> bool:
        """Whether another engine wants the process to itself."""
        return self._lock.is_requested_by_another(self)

    def acquire_shared(self) -> bool:
        """Say that rows may begin to run here; False if another engine wants the process to
        itself.
        """
        return self._lock.acquire_shared(self)

    def release_shared(self) -> None:
        """Say that nothing runs here any more."""
        self._lock.release_shared(self)

    def request_exclusive(self) -> bool:
        """Ask for the process; True once nothing runs at any other seat. Keeps asking until it
        lets go.
        """
        return self._lock.request_exclusive(self)

    def release_exclusive(self) -> None:
        self._lock.release_exclusive(self)

    def unregister(self) -> None:
        self._lock.unregister(self)


class ExclusiveRows:
    """The rows of one engine that have to run alone; used by its fetcher. A row that has waited for
    longer than `timeout` seconds is to be left to other workers.
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
        """Whether one waits or runs: then nothing else is taken."""
        return bool(self._waiting) or self._running is not None

    def add(self, claimed: ClaimedRow) -> None:
        self._waiting_since = self._clock.monotonic()
        self._waiting.append(claimed)

    def time_left(self) -> float:
        """Seconds until those that wait have waited long enough."""
        return max(self._waiting_since + self._timeout - self._clock.monotonic(), 0.0)

    def start_next(self, held: int) -> ClaimedRow | None:
        """The one to be run now, if nothing else runs: here, of so many that are held, or in
        another engine of this process.
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
        """Those that wait, which do so no more."""
        dropped, self._waiting = list(self._waiting), deque()
        if self._running is None:
            self._lock_handle.release_exclusive()
        return dropped

    def finish(self, claimed: ClaimedRow) -> None:
        """A row is done; perhaps it was the one."""
        if self._running is claimed:
            self._running = None
            self._lock_handle.release_exclusive()
