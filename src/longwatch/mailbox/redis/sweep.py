"""Sweeps one mailbox in Redis. The server lists the owners, and this process checks its own host
for their processes and beat pages.

A sweep reads first, and writes only if there is something to do. The script that writes checks
again, because leases may have changed meanwhile. Other hosts share the server: an owner of another
boot counts as alive until its lease has ended. When most owners that renew lapse at once, the
server's clock has moved, and `store/lapse_guard.py` delays reclaiming by one renewal interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec

from longwatch.host.beatpage import remove_page
from longwatch.mailbox.redis.codec import COUNTER_BY_BLAME, seq_of
from longwatch.store.blame import OwnerEnd
from longwatch.store.lapse_guard import LapsedOwner, LapseGuard
from longwatch.store.sweep import (
    OWNER_RETENTION,
    SWEEP_BATCH,
    LeaseOwner,
    owner_end,
    parse_incarnation,
)

ReleaseRequest = tuple[str, int, str, bool]
"""A lease to release by `sweep.lua`: owner, number, counter to raise, whether only if it ended."""


class Sweepable(Protocol):
    """The part of a mailbox backend that a sweep uses."""

    def run_script(self, script: str, **arguments: Any) -> Any: ...

    def leased_numbers(self, owner: int) -> list[int]: ...


class SweepResult(NamedTuple):
    """How many rows a sweep changed, and the messages that it dead-lettered: ids and reasons, in
    turn.
    """

    rows: int = 0
    given_up: Sequence[bytes] = ()


class LapsedLeases(NamedTuple):
    """Leases of one owner that have ended, and how the owner ended."""

    owner: str
    numbers: Sequence[str]
    end: OwnerEnd


class OwnerStatus(NamedTuple):
    """An owner as the server lists it, its age in seconds, and whether it holds leases."""

    holder: LeaseOwner
    age: float
    has_leases: bool

    @property
    def is_dead(self) -> bool:
        found = parse_incarnation(self.holder.incarnation)
        return found is not None and found.is_dead()

    @property
    def is_forgettable(self) -> bool:
        """Whether the record of the owner may be deleted: it holds no lease, registered long ago,
        and this host cannot see its process. If it is alive, it registers again.
        """
        found = parse_incarnation(self.holder.incarnation)
        return (
            not self.has_leases
            and self.age > OWNER_RETENTION
            and not (found is not None and found.is_visible)
        )


def sweep(
    mailbox: Sweepable, *, queue: int, retention: float | None, guard: LapseGuard, now: float
) -> SweepResult:
    """Release the rows of dead owners and of ended leases, make due rows ready, and give up rows
    that expired or spent a budget. `now` is on `Clock.monotonic()`.
    """
    owners, lapsed, stale = msgspec.msgpack.decode(
        mailbox.run_script("find_stale", limit=SWEEP_BATCH, retention=retention)
    )
    statuses = [
        OwnerStatus(_lease_owner(owner), age, has_leases) for *owner, age, has_leases in owners
    ]
    dead = [status for status in statuses if status.is_dead]
    dead_ids = {status.holder.id for status in dead}
    living = {status.holder.id: status for status in statuses if status.holder.id not in dead_ids}
    found = [
        LapsedLeases(owner, numbers, _end_of(living.get(int(owner))))
        for owner, numbers in lapsed
        if int(owner) not in dead_ids
    ]
    reclaimable = _reclaimable(found, living, guard, now)
    leases = [
        *_leases_of_dead(mailbox, dead, queue),
        *islice(_lapsed_leases(reclaimable, queue), SWEEP_BATCH),
    ]
    forget = [
        status.holder
        for status in statuses
        if not status.has_leases and (status.holder.id in dead_ids or status.is_forgettable)
    ]
    if not (leases or forget or stale):
        return SweepResult()
    names = [str(holder.id) for holder in forget]
    rows, forgotten, given_up = mailbox.run_script(
        "sweep", leases=leases, forget=names, limit=SWEEP_BATCH, retention=retention
    )
    _remove_pages(holder for holder in forget if str(holder.id).encode() in forgotten)
    return SweepResult(rows, given_up)


def _lease_owner(record: Sequence[Any]) -> LeaseOwner:
    """Decode an owner from `find_stale.lua`, which returns false for a missing value."""
    owner, incarnation, page, parent, is_draining, renew_seconds = record
    return LeaseOwner(
        int(owner), incarnation, page or None, parent or None, is_draining, renew_seconds or None
    )


def _leases_of_dead(
    mailbox: Sweepable, dead: Iterable[OwnerStatus], queue: int
) -> Iterator[ReleaseRequest]:
    """Yield the leases of dead owners, one page of each."""
    for status in dead:
        if status.has_leases:
            blame = owner_end(status.holder).blame
            for number in mailbox.leased_numbers(status.holder.id)[:SWEEP_BATCH]:
                yield (
                    str(status.holder.id),
                    number,
                    COUNTER_BY_BLAME[blame(seq_of(queue, number))],
                    False,
                )


def _reclaimable(
    lapsed: Sequence[LapsedLeases],
    living: dict[int, OwnerStatus],
    guard: LapseGuard,
    now: float,
) -> list[LapsedLeases]:
    """Return those lapsed leases of owners that are not dead that may be reclaimed now."""
    renew_seconds = {owner: status.holder.renew_seconds for owner, status in living.items()}
    reclaimable = guard.reclaimable(
        [
            LapsedOwner(
                int(each.owner), renew_seconds.get(int(each.owner)), is_alive=each.end.is_alive
            )
            for each in lapsed
        ],
        renewing_holders=sum(
            status.has_leases and status.holder.renew_seconds is not None
            for status in living.values()
        ),
        now=now,
    )
    return [each for each in lapsed if int(each.owner) in reclaimable]


def _end_of(status: OwnerStatus | None) -> OwnerEnd:
    """Return how an owner ended. An owner without a record blames no row."""
    return OwnerEnd(has_page=True, is_draining=True) if status is None else owner_end(status.holder)


def _lapsed_leases(lapsed: Iterable[LapsedLeases], queue: int) -> Iterator[ReleaseRequest]:
    for owner, numbers, end in lapsed:
        for number in map(int, numbers):
            yield owner, number, COUNTER_BY_BLAME[end.blame(seq_of(queue, number))], True


def _remove_pages(holders: Iterable[LeaseOwner]) -> None:
    """Remove the beat pages of deleted owners. Sweeps need the page while rows are leased."""
    for holder in holders:
        found = parse_incarnation(holder.incarnation)
        if holder.page is not None and found is not None and found.is_dead():
            remove_page(holder.page)
