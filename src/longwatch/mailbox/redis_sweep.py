"""The sweep of one mailbox in Redis: what the server sees is judged here, where processes and beat
pages can be looked at.

Look first, a read; act only if there is something to do. In between things change, so the script
that acts looks again. Other hosts share the server: an owner of another boot is alive until its
lease has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from longwatch.host.beatpage import remove_page
from longwatch.mailbox.redis_rows import COUNTERS, seq_of
from longwatch.store.claims import Blame
from longwatch.store.sweep import FORGET_AFTER, PAGE_OF_ROWS, Holder, judge, read_incarnation

Lease = tuple[str, int, str, bool]
"""As `sweep.lua` takes it: owner, number, the counter that rises, whether only if it has ended."""


class Sweepable(Protocol):
    """What a sweep asks of a mailbox."""

    def run(self, script: str, **asked: Any) -> Any: ...

    def numbers_held(self, owner: int) -> list[int]: ...


class Sight(NamedTuple):
    """An owner as the server knows it."""

    holder: Holder
    age: float
    holds: bool

    @property
    def is_dead(self) -> bool:
        found = read_incarnation(self.holder.incarnation)
        return found is not None and found.is_dead()

    @property
    def is_out_of_sight(self) -> bool:
        """Holds nothing, entered long ago, and nobody here can tell whether it lives: it may
        enter again.
        """
        found = read_incarnation(self.holder.incarnation)
        return (
            not self.holds
            and self.age > FORGET_AFTER
            and not (found is not None and found.is_visible)
        )


def sweep(mailbox: Sweepable, *, lane: int, retention: float | None) -> int:
    """Give back what dead owners and ended leases hold, and do what time asks for; how many
    rows.
    """
    owners, members, stale = msgspec.msgpack.decode(
        mailbox.run("look", limit=PAGE_OF_ROWS, retention=retention)
    )
    sights = [
        Sight(Holder(int(owner), incarnation, page or None), age, holds)
        for owner, incarnation, page, age, holds in owners
    ]
    dead = [sight for sight in sights if sight.is_dead]
    leases = [*_of_the_dead(mailbox, dead, lane), *_lapsed(members, sights, lane)]
    forget = [
        sight.holder
        for sight in sights
        if not sight.holds and (sight in dead or sight.is_out_of_sight)
    ]
    if not (leases or forget or stale):
        return 0
    names = [str(holder.owner) for holder in forget]
    found, forgotten = mailbox.run(
        "sweep", leases=leases, forget=names, limit=PAGE_OF_ROWS, retention=retention
    )
    _remove_pages(holder for holder in forget if str(holder.owner).encode() in forgotten)
    return int(found)


def _of_the_dead(mailbox: Sweepable, dead: Iterable[Sight], lane: int) -> Iterator[Lease]:
    """What they hold, a page of it at a time."""
    for sight in dead:
        if sight.holds:
            blame = judge(sight.holder)
            for number in mailbox.numbers_held(sight.holder.owner)[:PAGE_OF_ROWS]:
                yield str(sight.holder.owner), number, COUNTERS[blame(seq_of(lane, number))], False


def _lapsed(members: Iterable[str], sights: Iterable[Sight], lane: int) -> Iterator[Lease]:
    judges = {str(sight.holder.owner): sight.holder for sight in sights}
    blames: dict[str, Any] = {}
    for member in members:
        owner, _, number = member.partition(":")
        if owner not in blames:
            blames[owner] = judge(judges[owner]) if owner in judges else lambda _: Blame.RELEASE
        yield owner, int(number), COUNTERS[blames[owner](seq_of(lane, int(number)))], True


def _remove_pages(holders: Iterable[Holder]) -> None:
    """Only once their rows are back for good: until then somebody may need them."""
    for holder in holders:
        found = read_incarnation(holder.incarnation)
        if holder.page is not None and found is not None and found.is_dead():
            remove_page(holder.page)
