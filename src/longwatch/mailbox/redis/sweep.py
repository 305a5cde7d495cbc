"""Sweeps one mailbox in Redis. The server lists the owners, and this process checks its own host
for their processes and beat pages. Engines take turns (`turn_sweeper.py`).

A sweep reads first, and writes only if there is something to do. The script that writes checks
again, because leases may have changed meanwhile. Other hosts share the server: an owner of another
boot counts as alive until its lease has ended. When most owners that renew lapse at once, the
server's clock has moved, and `store/lapse_guard.py` delays reclaiming by one renewal interval.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum, auto
from itertools import islice
from math import inf
from typing import Any, NamedTuple, Protocol

import msgspec

from longwatch.engine.claim_source import GivenUp
from longwatch.host.beatpage import remove_page
from longwatch.mailbox.redis.codec import COUNTER_BY_BLAME, seq_of, unpack_given_up
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

    @property
    def name(self) -> str: ...

    def queue(self) -> int: ...

    def run_script(self, script: str, **arguments: Any) -> Any: ...

    def leased_numbers(self, owner: int) -> list[int]: ...

    def wake_here(self) -> None: ...


def has_ended(incarnation: str) -> bool:
    """Return whether an owner has certainly ended. One of another boot may run on another host."""
    found = parse_incarnation(incarnation)
    return found is not None and found.is_dead()


class OwnerStatus(NamedTuple):
    """An owner as the server lists it, its age in seconds, and whether it holds leases."""

    holder: LeaseOwner
    age: float
    has_leases: bool

    @property
    def is_dead(self) -> bool:
        return has_ended(self.holder.incarnation)

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


class LapsedLeases(NamedTuple):
    """Leases of one owner that have ended, and how the owner ended."""

    owner: str
    numbers: Sequence[str]
    end: OwnerEnd

    def owner_of(self, living: Mapping[int, OwnerStatus]) -> LapsedOwner:
        """Return the owner as the guard sees it."""
        status = living.get(int(self.owner))
        renew_seconds = None if status is None else status.holder.renew_seconds
        return LapsedOwner(int(self.owner), renew_seconds, is_alive=self.end.is_alive)


class Reads(StrEnum):
    """What a look reads."""

    ALL = auto()
    OWNERS = auto()  # only the owners, and only if one was registered since the known version
    QUEUE = auto()  # all but the owners; those, too, if a lease has lapsed


class Look(NamedTuple):
    """What a look found.

    `version` changes whenever an owner is registered. `lapsed`: numbers of ended leases by owner;
    None if they were not searched. `is_stale`: whether messages are due or have expired, or dead
    letters are too old. `next_due`: the seconds until a delayed message is due. `is_waiting`:
    whether messages wait, and the look has notified.
    """

    version: str
    owners: list[OwnerStatus]
    lapsed: Sequence[tuple[str, Sequence[str]]] | None
    is_stale: bool
    next_due: float
    is_waiting: bool


class RedisSweeper:
    """Sweeps one mailbox: `look` finds what there is to change, `change` changes it. `now` returns
    the time on `Clock.monotonic()`.
    """

    def __init__(
        self,
        mailbox: Sweepable,
        *,
        retention: float | None,
        now: Callable[[], float],
        guard: LapseGuard,
    ) -> None:
        self._mailbox = mailbox
        self._retention = retention
        self._now = now
        self._lapse_guard = guard

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> int:
        """Release the rows of dead owners and of ended leases, make due rows ready, and give up
        rows that expired or spent a budget. Return how many rows changed.
        """
        return self.change(self.look(), on_given_up)

    def look(
        self,
        reads: Reads = Reads.ALL,
        *,
        version: str = "",
        notifies: str | None = None,
        to_all: bool = False,
    ) -> Look:
        """Find what there is to change. With `notifies`, `lua/find_stale.lua` notifies the mailbox
        if messages wait. `to_all`: no receiver may ignore it.
        """
        response = self._mailbox.run_script(
            "find_stale",
            limit=SWEEP_BATCH,
            retention=self._retention,
            reads=reads.value,
            version=version,
            notifies=notifies,
            to_all=to_all,
        )
        found, owners, lapsed, is_stale, next_due, is_waiting = msgspec.msgpack.decode(response)
        if is_waiting:
            self._mailbox.wake_here()
        return Look(
            found,
            [OwnerStatus(_lease_owner(owner), age, holds) for *owner, age, holds in owners],
            None if reads is Reads.OWNERS else lapsed,
            is_stale,
            next_due or inf,
            is_waiting,
        )

    def forget_lapses(self) -> None:
        """Forget which owners were seen lapsed, because other processes have looked since."""
        self._lapse_guard = LapseGuard()

    def change(self, found: Look, on_given_up: Callable[[GivenUp], None]) -> int:
        """Make the changes of a sweep whose search is done. Return how many rows changed."""
        queue = self._mailbox.queue()
        dead = {status.holder.id: status for status in found.owners if status.is_dead}
        leases = [
            *_leases_of_dead(self._mailbox, dead.values(), queue),
            *islice(_lapsed_leases(self._reclaimable(found, dead), queue), SWEEP_BATCH),
        ]
        forget = {
            str(status.holder.id): status.holder
            for status in found.owners
            if not status.has_leases and (status.holder.id in dead or status.is_forgettable)
        }
        if not (leases or forget or found.is_stale):
            return 0
        rows, forgotten, given_up = self._mailbox.run_script(
            "sweep",
            leases=leases,
            forget=list(forget),
            limit=SWEEP_BATCH,
            retention=self._retention,
        )
        _remove_pages(forget[owner.decode()] for owner in forgotten)
        if rows:
            self._mailbox.wake_here()
        for each in unpack_given_up(self._mailbox.name, given_up):
            on_given_up(each)
        return int(rows)

    def _reclaimable(self, found: Look, dead: Collection[int]) -> list[LapsedLeases]:
        """Return those lapsed leases of owners that are not dead that may be reclaimed now."""
        if found.lapsed is None:
            return []
        living = {
            status.holder.id: status for status in found.owners if status.holder.id not in dead
        }
        lapsed = [
            LapsedLeases(owner, numbers, _end_of(living.get(int(owner))))
            for owner, numbers in found.lapsed
            if int(owner) not in dead
        ]
        renewing = sum(
            status.has_leases and status.holder.renew_seconds is not None
            for status in living.values()
        )
        reclaimable = self._lapse_guard.reclaimable(
            [each.owner_of(living) for each in lapsed],
            renewing_holders=renewing,
            now=self._now(),
        )
        return [each for each in lapsed if int(each.owner) in reclaimable]


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
