"""Claims rows from many queues in one transaction: the queues in turn, and each within its caps.

A queue is a number in the column `queue` of a claim table. A *cap* limits how many rows of some
queues together may be leased at the same time, over all processes that use the store.

The steps of one claim, inside a transaction of the caller
    1. in turn    The caller orders the queues with `in_turn`: least recently served first.
    2. lock       The queues that have caps are locked, each cap by its first queue.
    3. count      The leased rows of a cap are counted; the rest of the cap is free capacity.
    4. claim      Each queue is claimed from, up to its free capacity and the rest of the limit.

Invariants
    1. A cap is never exceeded: rows are counted and claimed under one lock, which lasts until the
       transaction ends. A database with a single writer needs no lock.
    2. All transactions lock in the order of the queue numbers, so two of them do not deadlock.
    3. A queue that was claimed from goes behind all others. A queue with many rows delays another
       queue by one turn at most.

Failure cases
    - The transaction fails after it has claimed. The rows are free again, and only the order of the
      queues has changed.
    - A process that claims rows by other means holds no lock. It may exceed a cap. Its rows count.
    - The lease of a dead owner counts until a sweep releases it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Protocol, TypeVar

from longwatch.store.database import Transaction

Cap = tuple[tuple[int, ...], int]
"""Queues that count together, and how many of their rows may be leased at the same time."""


class CappedQueue(Protocol):
    """A queue with its number and its caps."""

    @property
    def number(self) -> int: ...

    @property
    def caps(self) -> Sequence[Cap]: ...


class QueueCounts(Protocol):
    """The queries that a claim needs about the queues of one table."""

    def lock_queues(self, tx: Transaction, numbers: Sequence[int]) -> None:
        """Lock these queues in this order, and wait for transactions that hold one of them. Does
        nothing on a database with a single writer.
        """

    def count_leased(self, tx: Transaction, number: int) -> int:
        """Return how many rows of a queue are leased."""


QueueT = TypeVar("QueueT", bound=CappedQueue)
RowT = TypeVar("RowT")


class FairClaims:
    """Claims from some queues in turn. Remembers in this process when each was served.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._turns = count(1)
        self._served: dict[int, int] = {}

    def in_turn(self, queues: Iterable[QueueT]) -> list[QueueT]:
        """Return the queues, least recently served first."""
        return sorted(queues, key=lambda queue: self._served.get(queue.number, 0))

    def claim(  # noqa: PLR0913 - the queues, their counts, and how to claim
        self,
        tx: Transaction,
        queues: Sequence[QueueT],
        *,
        counts: QueueCounts,
        limit: int,
        claim_from: Callable[[QueueT, int], Sequence[RowT]],
        count_waiting: Callable[[QueueT], int] | None = None,
    ) -> list[RowT]:
        """Claim up to `limit` rows within the caps, from one queue after the other.

        `claim_from` claims up to a number of rows of a queue. `count_waiting` is called after the
        lock: the queues then share the limit evenly, as far as rows wait. Without it the first
        queue may use all of the limit.
        """
        lock_capped(tx, queues, counts)
        shares = [limit] * len(queues)
        if count_waiting is not None:
            rooms = [free_capacity(tx, queue, count_waiting(queue), counts) for queue in queues]
            shares = even_shares(limit, rooms)
        claimed: list[RowT] = []
        for queue, share in zip(queues, shares, strict=True):
            room = free_capacity(tx, queue, min(share, limit - len(claimed)), counts)
            if room > 0 and (rows := claim_from(queue, room)):
                self._served[queue.number] = next(self._turns)
                claimed += rows
        return claimed


def lock_capped(tx: Transaction, queues: Iterable[CappedQueue], counts: QueueCounts) -> None:
    """Lock the queues with caps in the order of their numbers, so that two transactions do not
    deadlock.
    """
    numbers = sorted({numbers[0] for queue in queues for numbers, _ in queue.caps})
    if numbers:
        counts.lock_queues(tx, numbers)


def free_capacity(tx: Transaction, queue: CappedQueue, limit: int, counts: QueueCounts) -> int:
    """Return how many rows of a queue its caps allow to claim, at most `limit`. Exact only while
    the queue is locked.
    """
    for numbers, maximum in queue.caps:
        if limit > 0:
            leased = sum(counts.count_leased(tx, number) for number in numbers)
            limit = min(limit, maximum - leased)
    return limit


def even_shares(limit: int, rooms: Sequence[int]) -> list[int]:
    """Divide the limit among the queues, one row at a time in turn, as far as each has room."""
    shares = [0] * len(rooms)
    while limit > 0 and (open_places := [i for i, room in enumerate(rooms) if room > shares[i]]):
        for place in open_places[:limit]:
            shares[place] += 1
        limit -= len(open_places[:limit])
    return shares
