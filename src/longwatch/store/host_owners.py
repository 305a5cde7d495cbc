"""Finds dead owners of this host, in one of its processes, almost without calls to the store.

Only a process of the same PID namespace sees at once that an owner has ended. The engine with the
turn of the table may run on another host, so every host looks for its own dead owners. One process
does it, chosen by a lock (`host_lock`). It remembers the owners of the store that it can see, and
asks the kernel about them in each round. It reads the owners again

- when a beat page has come or gone: an engine has started or stopped, and the modification time of
  the directory of pages has changed;
- every `REFRESH_SECONDS`, for owners whose pages are elsewhere or who have none (a bare `receive`).

The lock's holder may be stopped (SIGSTOP). Then the dead owners of this host wait until the turn of
the table comes to this host, or until their leases end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, Protocol, TypeVar

from longwatch.core.clock import Clock, SystemClock
from longwatch.host.runtime_dir import private_file_directory
from longwatch.store.database import Database
from longwatch.store.host_lock import HostLock
from longwatch.store.sweep import Candidates, ClaimSweeper, LeaseOwner

REFRESH_SECONDS = 10.0


class ReadOwners(Protocol):
    """Owners as a store lists them: each with its age in seconds, and whether it holds leases."""

    @property
    def owners(self) -> Sequence[tuple[LeaseOwner, float, bool]]: ...


OwnersT = TypeVar("OwnersT", bound=ReadOwners)


class HostOwners(Generic[OwnersT]):
    """The owners of one table or mailbox that this process can see. Not thread-safe.

    `key` names the store and the table. `read` reads all owners from the store; called with False,
    it may return None if none was registered since its last call. `has_ended` returns whether an
    incarnation has certainly ended.
    """

    def __init__(
        self,
        key: str,
        read: Callable[[bool], OwnersT | None],
        has_ended: Callable[[str], bool],
        clock: Clock | None = None,
    ) -> None:
        self._read = read
        self._has_ended = has_ended
        self._clock = clock or SystemClock()
        self._lock = HostLock(key)
        self._incarnations: list[str] = []
        self._pages_changed_at = 0
        self._refresh_at = -inf

    def find_dead(self) -> OwnersT | None:
        """Return the owners to inspect if one of this host has ended, else None. None, too, if
        another process of this host looks.
        """
        if not self._lock.acquire():
            return None
        found = self._refresh(always=False) if self._is_outdated() else None
        if not any(map(self._has_ended, self._incarnations)):
            return None
        return found or self._refresh(always=True)

    def release(self) -> None:
        """Leave the search to another process. Idempotent."""
        self._lock.release()
        self._refresh_at = -inf

    def _is_outdated(self) -> bool:
        """Whether owners may have been registered since the last call that returned True."""
        before, self._pages_changed_at = self._pages_changed_at, _pages_changed_at()
        return before != self._pages_changed_at or self._clock.monotonic() >= self._refresh_at

    def _refresh(self, *, always: bool) -> OwnersT | None:
        found = self._read(always)
        if found is not None:
            self._incarnations = [owner.incarnation for owner, _, _ in found.owners]
        self._refresh_at = self._clock.monotonic() + REFRESH_SECONDS
        return found


def sql_host_owners(
    database: Database, sweeper: ClaimSweeper, table: str, clock: Clock | None = None
) -> HostOwners[Candidates]:
    """Return the owners of one table of claims."""
    return HostOwners(
        f"{database.identity} {table}",
        lambda _: database.read(lambda tx: sweeper.find_candidates(tx, lapses=False)),
        sweeper.has_ended,
        clock,
    )


def _pages_changed_at() -> int:
    try:
        return private_file_directory().stat().st_mtime_ns
    except OSError:
        return 0
