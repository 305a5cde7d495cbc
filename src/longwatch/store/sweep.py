"""Leases whose owner is gone: found, blamed justly, given back.

An owner is gone when its process certainly is (same machine, same PID namespace: at once), or when
its lease has ended (a lost host, a keeper that could not renew). Whose fault that was decides which
counter of the row rises:

- An owner with a beat page: rows that it had started when it died crashed; rows it only held ahead
  are released, and so is everything once it was draining, or when its page cannot be read (a lost
  host blames nobody).
- An owner without a page (a bare `receive`): nobody can know, so every lease that lapses unsettled
  counts as a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from longwatch.host.beatpage import read_page, remove_page
from longwatch.host.incarnation import Incarnation, boot_id
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Parameters, Transaction

PAGE_OF_ROWS = 500
"""Leases looked at in one transaction: a sweep never holds the store for long."""


FORGET_AFTER = 3600.0
"""Seconds after which an owner that holds nothing is forgotten though nobody here sees whether
it lives; it may enter again.
"""


class Holder(NamedTuple):
    """An owner that holds leases."""

    owner: int
    incarnation: str
    page: str | None


class Sweep:
    """Sweeps one table of claims. `is_shared`: other machines may use it as well."""

    def __init__(self, claims: Claims, *, is_shared: bool = False) -> None:
        self._claims = claims
        self._is_shared = is_shared

    def lapsed(self, transaction: Transaction) -> list[int]:
        """Give back what is held by leases that have ended; for each row its lane."""
        rows = transaction.rows(self._claims.for_release("lapsed"), _page(PAGE_OF_ROWS))
        held = [(seq, term, Holder(*holder)) for seq, term, _, *holder in rows]
        blames = {holder: judge(holder) for holder in {holder for _, _, holder in held}}
        self._release(
            transaction,
            [(Claim(seq, holder.owner, term), blames[holder](seq)) for seq, term, holder in held],
        )
        return [row[2] for row in rows]

    def has_lapsed(self, transaction: Transaction) -> bool:
        """Whether any lease has ended; a read."""
        return bool(transaction.rows(self._claims.sql["lapsed"], _page(1)))

    def dead_holders(self, transaction: Transaction) -> list[Holder]:
        """Owners to be buried: a read, so that looking costs the writer nothing.

        They have certainly ended, or they hold nothing, entered long ago and cannot be seen from
        here.
        """
        found = transaction.rows(
            self._claims.sql["owners"], {"boot": boot_id(), "long": FORGET_AFTER}
        )
        return [
            Holder(owner, incarnation, page)
            for owner, incarnation, page, age, holds in found
            if self.has_ended(incarnation)
            or (not holds and age > FORGET_AFTER and not _is_visible(incarnation))
        ]

    def bury(self, transaction: Transaction, holder: Holder) -> list[int]:
        """Give back what a dead owner held, a page of it at a time; for each row its lane. One
        that holds nothing is forgotten.
        """
        held = transaction.rows(
            self._claims.for_release("held_by"), {"owner": holder.owner, "limit": PAGE_OF_ROWS}
        )
        if not held:
            self.forget(transaction, holder)
            return []
        if not self.has_ended(holder.incarnation):
            return []
        blame = judge(holder)
        self._release(
            transaction, [(Claim(seq, holder.owner, term), blame(seq)) for seq, term, _ in held]
        )
        return [lane for _, _, lane in held]

    def _release(self, transaction: Transaction, judged: Sequence[tuple[Claim, Blame]]) -> None:
        for blame in {blame for _, blame in judged}:
            self._claims.release(
                transaction, [claim for claim, its in judged if its is blame], blame=blame
            )

    def forget(self, transaction: Transaction, holder: Holder) -> None:
        """Only once its rows are back for good: until then somebody may need its page."""
        forgotten = transaction.execute(self._claims.sql["forget"], {"owner": holder.owner})
        if forgotten and holder.page is not None and self.has_ended(holder.incarnation):
            remove_page(holder.page)

    def has_ended(self, incarnation: str) -> bool:
        """Whether an owner certainly has. In a store of one machine that of an earlier boot has;
        in others it may be elsewhere.
        """
        found = read_incarnation(incarnation)
        return found is not None and (
            found.is_dead() or (not self._is_shared and found.is_of_another_boot)
        )


def _page(limit: int) -> Parameters:
    return {"boot": boot_id(), "limit": limit}


def judge(holder: Holder, *, unread: Blame = Blame.RELEASE) -> Callable[[int], Blame]:
    """Says of each row whether its own work is to blame for the end of its owner. The page is read
    once, here; `unread` is the answer if it cannot be.
    """
    if holder.page is None:
        return lambda _: Blame.CRASH
    reading = None if _is_of_another_boot(holder.incarnation) else read_page(holder.page)
    if reading is None:
        return lambda _: unread
    started = frozenset[int]() if reading.draining else reading.started
    return lambda seq: Blame.CRASH if seq in started else Blame.RELEASE


def _is_of_another_boot(incarnation: str) -> bool:
    found = read_incarnation(incarnation)
    return found is not None and found.is_of_another_boot


def _is_visible(incarnation: str) -> bool:
    found = read_incarnation(incarnation)
    return found is not None and found.is_visible


def read_incarnation(incarnation: str) -> Incarnation | None:
    """None for one that some other version wrote: it counts as alive."""
    try:
        return Incarnation.parse(incarnation)
    except ValueError:
        return None
