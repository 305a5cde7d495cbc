"""Decides whether lapsed leases are reclaimed at once, or after one more renewal interval.

A lease lapses when its owner does not renew it, or when the clock of the store moves: a step of the
server's clock, a failover to a server that is ahead, a suspended machine. In the first case the
owner is gone and the sweeper should release its rows at once. In the second case the owners live
and renew within one interval, so a sweeper that waits for one interval reclaims nothing from them.

A sweeper looks at all owners at one moment. The owners in question renew their leases
(`renew_seconds` is known) and have at least one lease that has lapsed. Such an owner is *held* if

- this process can see that it is alive; or
- at the same look at least two renewing owners, and more than half of the renewing owners that hold
  leases, have lapsed: the clock moved, not the workers.

    not lapsed ──lapsed, held──► waiting ──one renewal interval──► reclaimable
        ▲  │                        │                                  │
        │  └──lapsed, not held──────┼──────────────────────────────► reclaimable
        └──renewed, or reclaimed────┴──────────────────────────────────┘

Invariants
1. The leases of a dead owner, and of an owner that does not renew (a bare `receive`), never wait.
2. An owner waits for one interval at most, counted from the first look that saw it lapsed. A later
   look neither restarts nor ends the wait. When several owners lapsed together, the first to renew
   must not cost the others their leases.
3. The guard remembers only owners that the last look saw lapsed.
4. Waiting changes no lease. The owner may renew or settle meanwhile; the store decides then.

Failure cases
- All owners really are gone (a power cut of a rack). Their rows are released one renewal interval
  later than otherwise.
- One owner of many is gone. It is in the minority and not seen alive, so its rows are released at
  once.
- The only owner of a store lapses, and this process cannot see it. Either cause is possible. Its
  rows are released at once, because a store with one worker has no majority.
- An owner is alive and stopped (SIGSTOP). Its rows are released after one interval.
- The sweeper itself was suspended. Its clock must not count that time, so `now` is
  `Clock.monotonic()`.
- Several sweepers look at one store. Each waits by itself, so the first sweeper that has waited
  reclaims.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

MIN_LAPSED_TOGETHER = 2
"""The fewest renewing owners lapsed at one look that suggest that the clock moved."""


class LapsedOwner(NamedTuple):
    """An owner with at least one lapsed lease.

    `renew_seconds` is the time between its renewals, None if it does not renew. `is_alive` and
    `is_dead` are True only when this process can see that for certain.
    """

    id: int
    renew_seconds: float | None = None
    is_alive: bool = False
    is_dead: bool = False


class _Lapse(NamedTuple):
    """When an owner was first seen lapsed, and whether it is held."""

    since: float
    is_held: bool


class LapseGuard:
    """Remembers the lapsed owners that one process has seen. Thread-safe; does not block."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[int, _Lapse] = {}

    def reclaimable(
        self, lapsed: Iterable[LapsedOwner], *, renewing_holders: int, now: float
    ) -> frozenset[int]:
        """Return the owners whose lapsed leases may be reclaimed now.

        `lapsed` holds every owner with a lapsed lease at this look. `renewing_holders` counts the
        owners that renew and hold leases, lapsed or not. `now` is on `Clock.monotonic()`.
        """
        owners = list(lapsed)
        renewing = sum(owner.renew_seconds is not None for owner in owners)
        together = renewing >= MIN_LAPSED_TOGETHER and 2 * renewing > renewing_holders
        with self._lock:
            self._seen = {
                owner.id: self._looked_at(owner, is_held=owner.is_alive or together, now=now)
                for owner in owners
                if owner.renew_seconds is not None and not owner.is_dead
            }
            return frozenset(owner.id for owner in owners if not self._is_waiting(owner, now))

    def __len__(self) -> int:
        """How many owners the guard remembers."""
        return len(self._seen)

    def _looked_at(self, owner: LapsedOwner, *, is_held: bool, now: float) -> _Lapse:
        before = self._seen.get(owner.id, _Lapse(now, is_held=False))
        return before._replace(is_held=before.is_held or is_held)

    def _is_waiting(self, owner: LapsedOwner, now: float) -> bool:
        lapse = self._seen.get(owner.id)
        return (
            lapse is not None and lapse.is_held and now < lapse.since + (owner.renew_seconds or 0)
        )
