"""The sweep of one mailbox in Redis: what the server sees is judged here, where processes and beat
pages can be looked at.

Look first, a read; act only if there is something to do. In between things change, so the script
that acts looks again. Other hosts share the server: an owner of another boot is alive until its
lease has ended. When most owners that renew lapse at once, the server's clock has moved, and
`store/lapse_guard.py` lets their leases wait for one renewal interval.
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
"""As `sweep.lua` takes it: owner, number, the counter that rises, whether only if it has ended."""


class Sweepable(Protocol):
    """What a sweep asks of a mailbox."""

    def run_script(self, script: str, **arguments: Any) -> Any: ...

    def leased_numbers(self, owner: int) -> list[int]: ...


class SweepResult(NamedTuple):
    """How many rows a sweep changed, and the messages that it dead-lettered: ids and reasons, in
    turn.
    """

    rows: int = 0
    given_up: Sequence[bytes] = ()


class LapsedLeases(NamedTuple):
    """Leases of one owner that have ended, and what is known of the owner."""

    owner: str
    numbers: Sequence[str]
    end: OwnerEnd


class OwnerStatus(NamedTuple):
    """An owner as the server knows it."""

    holder: LeaseOwner
    age: float
    has_leases: bool

    @property
    def is_dead(self) -> bool:
        found = parse_incarnation(self.holder.incarnation)
        return found is not None and found.is_dead()

    @property
    def is_forgettable(self) -> bool:
        """Holds nothing, entered long ago, and nobody here can tell whether it lives: it may
        enter again.
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
    """An owner as `find_stale.lua` returns it; it has false for a value that is missing."""
    owner, incarnation, page, parent, is_draining, renew_seconds = record
    return LeaseOwner(
        int(owner), incarnation, page or None, parent or None, is_draining, renew_seconds or None
    )


def _leases_of_dead(
    mailbox: Sweepable, dead: Iterable[OwnerStatus], queue: int
) -> Iterator[ReleaseRequest]:
    """What they hold, a page of it at a time."""
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
    """The lapsed leases of owners that are not dead, as far as they may be reclaimed now."""
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
    """What is known of the end of an owner; one whose record is missing blames no row."""
    return OwnerEnd(has_page=True, is_draining=True) if status is None else owner_end(status.holder)


def _lapsed_leases(lapsed: Iterable[LapsedLeases], queue: int) -> Iterator[ReleaseRequest]:
    for owner, numbers, end in lapsed:
        for number in map(int, numbers):
            yield owner, number, COUNTER_BY_BLAME[end.blame(seq_of(queue, number))], True


def _remove_pages(holders: Iterable[LeaseOwner]) -> None:
    """Only once their rows are back for good: until then somebody may need them."""
    for holder in holders:
        found = parse_incarnation(holder.incarnation)
        if holder.page is not None and found is not None and found.is_dead():
            remove_page(holder.page)
