"""The messages of one mailbox in memory: rows in one of four states, and their indexes.

    new        rows in the order they were sent, none of which was ever leased   a deque
    returned   rows that were released, by number                                a heap
    suspects   rows that were released and are suspects, by number               a heap
    delayed    rows that are not due yet                                         a heap by time
    expiring   rows that have an expiry                                          a heap by time

A row that is removed while an index holds it stays there, marked REMOVED and without its body. It
is skipped later. The indexes are compacted when most of their rows are removed. This module takes
no lock and reads no clock: `memory.py` does both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, count, islice
from typing import Self

from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import GivenUp
from longwatch.mailbox.headers import decode_headers, encode_headers
from longwatch.mailbox.limits import EXPIRED, MailboxLimits, give_up_reason, is_kept
from longwatch.mailbox.records import DeadLetter, MessageRecord, NewMessage
from longwatch.store.blame import Blame, BlameBudget
from longwatch.store.claims import RowSelection

MAX_REMOVED = 1000
"""Removed rows that the indexes may hold however few other rows they hold."""


class LeaseState(IntEnum):
    """The state of a row. The first three values are those of the SQL tables."""

    READY = 0
    DELAYED = 1
    LEASED = 2
    REMOVED = 3


@dataclass(slots=True, eq=False, kw_only=True)
class StoredMessage:
    """One stored message, its lease and its history."""

    seq: int
    queue: MemoryQueue
    id: str
    body: bytes
    enqueued_at: float
    expires_at: float | None = None
    keep_expired: bool = False
    dedupe_key: str | None = None
    reply_to: str | None = None
    headers: str | None = None
    lease_state: LeaseState = LeaseState.REMOVED
    owner: int = 0
    term: int = 0
    lease_until: float = 0.0
    deliveries: int = 0
    failures: int = 0
    crashes: int = 0
    lost: int = 0
    releases: int = 0
    error: str | None = None
    traceback: str | None = None
    is_tracked_for_expiry: bool = False
    """Whether the row is in the heap of expiring rows."""

    @classmethod
    def sent(cls, message: NewMessage, queue: MemoryQueue, *, seq: int, wall: float) -> Self:
        """Make the row of a new message."""
        return cls(
            seq=seq,
            queue=queue,
            id=message.id,
            body=message.body,
            enqueued_at=wall,
            expires_at=None if message.expires_in is None else wall + message.expires_in,
            keep_expired=message.keep_expired,
            dedupe_key=message.dedupe_key,
            reply_to=message.reply_to,
            headers=message.headers,
        )

    @classmethod
    def replayed(cls, letter: DeadLetter, queue: MemoryQueue, *, seq: int) -> Self:
        """Make a new message of a dead letter. Of its history it keeps only the time it was
        sent.
        """
        return cls(
            seq=seq,
            queue=queue,
            id=letter.id,
            body=letter.body,
            enqueued_at=letter.enqueued_at,
            reply_to=letter.reply_to,
            headers=encode_headers(letter.headers),
        )

    def record(self) -> MessageRecord:
        return MessageRecord(
            self.id,
            self.body,
            self.deliveries,
            self.failures,
            self.crashes,
            self.enqueued_at,
            self.reply_to,
            self.lost,
            self.releases,
            self.headers,
        )

    def count(self, blame: Blame) -> None:
        """Raise the counter for the end of a lease."""
        self.failures += blame is Blame.FAILURE
        self.crashes += blame is Blame.CRASH
        self.lost += blame is Blame.LOST
        self.releases += blame is Blame.RELEASE

    def note(self, error: str | None, traceback: str | None) -> None:
        """Store the error and the traceback of a failure. None keeps the stored value."""
        self.error = self.error if error is None else error
        self.traceback = self.traceback if traceback is None else traceback

    def dead_letter(self, reason: str, died_at: float, position: int) -> DeadLetter:
        return DeadLetter(
            id=self.id,
            mailbox=self.queue.name,
            reason=reason,
            error=self.error,
            died_at=died_at,
            enqueued_at=self.enqueued_at,
            deliveries=self.deliveries,
            failures=self.failures,
            crashes=self.crashes,
            releases=self.releases,
            reply_to=self.reply_to,
            body=self.body,
            lost=self.lost,
            traceback=self.traceback,
            position=position,
            headers=decode_headers(self.headers),
        )

    def is_expired(self, wall: float) -> bool:
        """Return whether the row has expired and is not leased."""
        return (
            self.lease_state is not LeaseState.LEASED
            and self.expires_at is not None
            and self.expires_at <= wall
        )


class MemoryQueue:
    """The rows of one mailbox, its dead letters, its budgets, and its listeners."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: dict[str, StoredMessage] = {}
        self.by_dedupe_key: dict[str, StoredMessage] = {}
        self.dead_letters: dict[str, DeadLetter] = {}
        self._dead_positions = count(1)
        self.counts = dict.fromkeys(LeaseState, 0)
        self.expired = 0
        self.paused = False
        self.limits = MailboxLimits()
        self.wakeups: set[Wakeup] = set()
        self._new: deque[StoredMessage] = deque()
        self._returned: list[tuple[int, StoredMessage]] = []
        self._suspects: list[tuple[int, StoredMessage]] = []
        self._delayed: list[tuple[float, int, StoredMessage]] = []
        self._expiring: list[tuple[float, int, StoredMessage]] = []
        self._removed = 0

    def __len__(self) -> int:
        return len(self.messages)

    def set_budgets(self, limits: MailboxLimits) -> None:
        """Store the budgets of these limits, and sort the released rows into suspects and others
        by them.
        """
        self.limits = limits.with_stored([*self.limits.set_budgets.values()])
        released = [row for _, row in chain(self._returned, self._suspects)]
        self._returned, self._suspects = [], []
        for row in released:
            self._push_ready(row)

    def is_suspect(self, row: StoredMessage) -> bool:
        budget = BlameBudget(self.limits.max_crashes, self.limits.max_lost)
        return budget.is_suspect(crashes=row.crashes, lost=row.lost)

    def give_up_reason(self, row: StoredMessage, wall: float) -> str | None:
        """Return why the row is given up; None if it is not."""
        return give_up_reason(
            self.limits,
            crashes=row.crashes,
            failures=row.failures,
            lost=row.lost,
            is_expired=row.is_expired(wall),
        )

    def count_suspects(self, *, limit: int) -> int:
        """Count the free suspects, up to `limit`."""
        free = (1 for _, row in self._suspects if row.lease_state is not LeaseState.REMOVED)
        return sum(islice(free, limit))

    def add(self, row: StoredMessage, *, ready_at: float = 0.0) -> None:
        """Add a new row at the end of the queue, or as a delayed row."""
        self.messages[row.id] = row
        if row.dedupe_key is not None:
            self.by_dedupe_key[row.dedupe_key] = row
        if ready_at:
            self._delay(row, ready_at)
        else:
            self._set_lease_state(row, LeaseState.READY)
            self._new.append(row)
        self._track_expiry(row)

    def release(self, row: StoredMessage, *, ready_at: float = 0.0) -> None:
        """Free a leased row at its old place in the queue, or delay it."""
        if ready_at:
            self._delay(row, ready_at)
        else:
            self._make_ready(row)
        self._track_expiry(row)

    def next_ready(self, selection: RowSelection = RowSelection.ANY) -> StoredMessage | None:
        """Return the oldest free row of the selection without leasing it."""
        while self._new and self._new[0].lease_state is LeaseState.REMOVED:
            self._new.popleft()
        first = [] if selection is RowSelection.SUSPECTS or not self._new else [self._new[0]]
        for heap in self._heaps(selection):
            while heap and heap[0][1].lease_state is LeaseState.REMOVED:
                heappop(heap)
            first += [heap[0][1]] if heap else []
        return min(first, key=lambda row: row.seq, default=None)

    def lease(self, row: StoredMessage) -> None:
        """Lease the row that `next_ready` has just returned."""
        if self._new and self._new[0] is row:
            self._new.popleft()
        else:
            heappop(next(heap for heap in self._heaps() if heap and heap[0][1] is row))
        self._set_lease_state(row, LeaseState.LEASED)

    def remove(self, row: StoredMessage) -> None:
        """Remove a row that is done, cancelled or given up."""
        self._removed += row.is_tracked_for_expiry or row.lease_state is not LeaseState.LEASED
        self._set_lease_state(row, LeaseState.REMOVED)
        row.body = b""
        del self.messages[row.id]
        if row.dedupe_key is not None:
            del self.by_dedupe_key[row.dedupe_key]
        if self._removed > max(MAX_REMOVED, len(self.messages)):
            self._compact()

    def give_up(self, row: StoredMessage, reason: str, *, wall: float) -> list[GivenUp]:
        """Remove a row, and keep it as a dead letter if `limits.is_kept`. Return the dead letter,
        if any.
        """
        self.expired += reason == EXPIRED
        if is_kept(reason, keep_expired=row.keep_expired):
            return [self.dead_letter(row, reason, wall=wall)]
        self.remove(row)
        return []

    def dead_letter(self, row: StoredMessage, reason: str, *, wall: float) -> GivenUp:
        """Move a row to the dead letters, with its history."""
        self.dead_letters[row.id] = row.dead_letter(reason, wall, next(self._dead_positions))
        self.remove(row)
        return GivenUp(row.id, self.name, reason)

    def expire(self, wall: float) -> tuple[int, list[GivenUp]]:
        """Give up the rows that expired before a claim. Return how many, and the dead letters. A
        leased row is checked again when it is released.
        """
        expired = 0
        given_up: list[GivenUp] = []
        while self._expiring and self._expiring[0][0] <= wall:
            row = heappop(self._expiring)[2]
            row.is_tracked_for_expiry = False
            if (
                row.lease_state is not LeaseState.REMOVED
                and row.lease_state is not LeaseState.LEASED
            ):
                given_up += self.give_up(row, EXPIRED, wall=wall)
                expired += 1
        return expired, given_up

    def delete_old_dead_letters(self, before: float) -> None:
        """Delete the dead letters that died before this time."""
        while (
            self.dead_letters
            and (oldest := next(iter(self.dead_letters.values()))).died_at < before
        ):
            del self.dead_letters[oldest.id]

    def promote_due(self, wall: float) -> int:
        """Free the delayed rows that are due. Return how many."""
        freed = 0
        while (due := self.next_due()) is not None and due <= wall:
            self._make_ready(heappop(self._delayed)[2])
            freed += 1
        return freed

    def next_due(self) -> float | None:
        """Return when the next delayed row is due; None if no row is delayed."""
        while self._delayed and self._delayed[0][2].lease_state is LeaseState.REMOVED:
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def claimable(self, wall: float, *, limit: int) -> list[StoredMessage]:
        """Return the rows that a claim would lease next, oldest first, without leasing them."""
        due = (row for ready_at, _, row in self._delayed if ready_at <= wall)
        there = (
            row
            for row in chain(self._new, (row for heap in self._heaps() for _, row in heap), due)
            if row.lease_state is not LeaseState.REMOVED
        )
        return nsmallest(
            limit, (row for row in there if not row.is_expired(wall)), key=lambda row: row.seq
        )

    def notify(self) -> None:
        for wakeup in tuple(self.wakeups):
            wakeup.set()

    def _set_lease_state(self, row: StoredMessage, lease_state: LeaseState) -> None:
        self.counts[row.lease_state] -= 1
        self.counts[lease_state] += 1
        row.lease_state = lease_state

    def _compact(self) -> None:
        """Delete the removed rows from the indexes. The next call comes after as many removals as
        rows are left, so the cost for each removal is constant.
        """
        self._removed = 0
        self._new = deque(row for row in self._new if row.lease_state is not LeaseState.REMOVED)
        self._returned = [
            entry for entry in self._returned if entry[1].lease_state is not LeaseState.REMOVED
        ]
        self._suspects = [
            entry for entry in self._suspects if entry[1].lease_state is not LeaseState.REMOVED
        ]
        self._delayed = [
            entry for entry in self._delayed if entry[2].lease_state is not LeaseState.REMOVED
        ]
        self._expiring = [
            entry for entry in self._expiring if entry[2].lease_state is not LeaseState.REMOVED
        ]
        heapify(self._returned)
        heapify(self._suspects)
        heapify(self._delayed)
        heapify(self._expiring)

    def _make_ready(self, row: StoredMessage) -> None:
        self._set_lease_state(row, LeaseState.READY)
        self._push_ready(row)

    def _push_ready(self, row: StoredMessage) -> None:
        heappush(self._suspects if self.is_suspect(row) else self._returned, (row.seq, row))

    def _heaps(
        self, selection: RowSelection = RowSelection.ANY
    ) -> Iterator[list[tuple[int, StoredMessage]]]:
        """Yield the heaps of free rows of a selection."""
        if selection is not RowSelection.SUSPECTS:
            yield self._returned
        if selection is not RowSelection.ORDINARY:
            yield self._suspects

    def _delay(self, row: StoredMessage, ready_at: float) -> None:
        self._set_lease_state(row, LeaseState.DELAYED)
        heappush(self._delayed, (ready_at, row.seq, row))

    def _track_expiry(self, row: StoredMessage) -> None:
        if row.expires_at is not None and not row.is_tracked_for_expiry:
            row.is_tracked_for_expiry = True
            heappush(self._expiring, (row.expires_at, row.seq, row))
