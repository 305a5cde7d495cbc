"""The messages of one mailbox in memory: rows in one of four states, and what finds them without
looking at all of them.

    line       rows in the order they were sent, none of which was ever taken          a deque
    returned   rows that are free again and go back to their place by number           a heap
    delayed    rows that are not due yet                                               a heap by
               time
    expiring   rows that will be given up if nobody takes them in time                 a heap by
               time

A row that is removed while it stands in one of them stays there, marked gone and without its body,
and is passed over when it comes up; when most of what stands there is gone, it is cleared out.
Nothing here takes a lock or reads a clock: `memory.py` does.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush, nsmallest
from itertools import chain, count

from longwatch.core.clock import Wakeup
from longwatch.mailbox.letters import DeadLetter, Delivery

FEW_GONE = 1000
"""So many rows that are gone may stand around, however few are not."""


class Held(IntEnum):
    """Where a row stands; the first three as in the SQL tables."""

    FREE = 0
    DELAYED = 1
    LEASED = 2
    GONE = 3


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One message and everything that happened to it."""

    seq: int
    lane: Lane
    id: str
    body: bytes
    enqueued_at: float
    expires_at: float | None = None
    keep_expired: bool = False
    dedupe_key: str | None = None
    reply_to: str | None = None
    held: Held = Held.GONE
    owner: int = 0
    term: int = 0
    lease_until: float = 0.0
    deliveries: int = 0
    failures: int = 0
    crashes: int = 0
    releases: int = 0
    error: str | None = None
    watched: bool = False
    """Whether it stands among the expiring."""

    def delivery(self) -> Delivery:
        return Delivery(
            self.id,
            self.body,
            self.deliveries,
            self.failures,
            self.crashes,
            self.enqueued_at,
            self.reply_to,
        )

    def dead_letter(
        self, reason: str, error: str | None, died_at: float, position: int
    ) -> DeadLetter:
        return DeadLetter(
            id=self.id,
            mailbox=self.lane.name,
            reason=reason,
            error=error,
            died_at=died_at,
            enqueued_at=self.enqueued_at,
            deliveries=self.deliveries,
            failures=self.failures,
            crashes=self.crashes,
            releases=self.releases,
            reply_to=self.reply_to,
            body=self.body,
            position=position,
        )

    def is_overdue(self, wall: float) -> bool:
        """Whether its time has passed while nobody holds it."""
        return (
            self.held is not Held.LEASED and self.expires_at is not None and self.expires_at <= wall
        )


class Lane:
    """The rows of one mailbox, its dead letters, and who listens."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: dict[str, Row] = {}
        self.keys: dict[str, Row] = {}
        self.dead: dict[str, DeadLetter] = {}
        self._deaths = count(1)
        self.counts = dict.fromkeys(Held, 0)
        self.expired = 0
        self.paused = False
        self.listeners: set[Wakeup] = set()
        self._line: deque[Row] = deque()
        self._returned: list[tuple[int, Row]] = []
        self._delayed: list[tuple[float, int, Row]] = []
        self._expiring: list[tuple[float, int, Row]] = []
        self._gone = 0

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, row: Row, *, ready_at: float = 0.0) -> None:
        """Put a new row at the end of the line, or among the delayed."""
        self.rows[row.id] = row
        if row.dedupe_key is not None:
            self.keys[row.dedupe_key] = row
        if ready_at:
            self._delay(row, ready_at)
        else:
            self._move(row, Held.FREE)
            self._line.append(row)
        self._watch(row)

    def put_back(self, row: Row, *, ready_at: float = 0.0) -> None:
        """Free a row that was taken, at its old place, or delay it."""
        if ready_at:
            self._delay(row, ready_at)
        else:
            self._free(row)
        self._watch(row)

    def first(self) -> Row | None:
        """The oldest free row; it stays where it is."""
        while self._line and self._line[0].held is Held.GONE:
            self._line.popleft()
        while self._returned and self._returned[0][1].held is Held.GONE:
            heappop(self._returned)
        if self._returned and (not self._line or self._returned[0][0] < self._line[0].seq):
            return self._returned[0][1]
        return self._line[0] if self._line else None

    def take(self, row: Row) -> None:
        """Lease the row that `first` has just shown."""
        if self._line and self._line[0] is row:
            self._line.popleft()
        else:
            heappop(self._returned)
        self._move(row, Held.LEASED)

    def remove(self, row: Row) -> None:
        """It is done, cancelled or given up."""
        self._gone += row.watched or row.held is not Held.LEASED
        self._move(row, Held.GONE)
        row.body = b""
        del self.rows[row.id]
        if row.dedupe_key is not None:
            del self.keys[row.dedupe_key]
        if self._gone > max(FEW_GONE, len(self.rows)):
            self._clear_out()

    def give_up(self, row: Row, reason: str, *, wall: float, error: str | None = None) -> None:
        """Remove it; to the dead with its history, one that has expired only if that was asked
        for.
        """
        self.expired += reason == "expired"
        if reason != "expired" or row.keep_expired:
            self.dead[row.id] = row.dead_letter(
                reason, row.error if error is None else error, wall, next(self._deaths)
            )
        self.remove(row)

    def expire(self, wall: float) -> int:
        """Give up what nobody took in its time; how many rows. A leased one is looked at again
        when it comes back.
        """
        expired = 0
        while self._expiring and self._expiring[0][0] <= wall:
            row = heappop(self._expiring)[2]
            row.watched = False
            if row.held is not Held.GONE and row.held is not Held.LEASED:
                self.give_up(row, "expired", wall=wall)
                expired += 1
        return expired

    def forget_the_dead(self, before: float) -> None:
        """Remove the dead that died before this moment."""
        while self.dead and (oldest := next(iter(self.dead.values()))).died_at < before:
            del self.dead[oldest.id]

    def free_the_due(self, wall: float) -> int:
        """Free the delayed rows whose time has come; how many."""
        freed = 0
        while (due := self.next_due()) is not None and due <= wall:
            self._free(heappop(self._delayed)[2])
            freed += 1
        return freed

    def next_due(self) -> float | None:
        """When the next delayed row is due; None if none is delayed."""
        while self._delayed and self._delayed[0][2].held is Held.GONE:
            heappop(self._delayed)
        return self._delayed[0][0] if self._delayed else None

    def waiting(self, wall: float, *, limit: int) -> list[Row]:
        """What would be taken next, oldest first; it all stays."""
        due = (row for ready_at, _, row in self._delayed if ready_at <= wall)
        there = (
            row
            for row in chain(self._line, (row for _, row in self._returned), due)
            if row.held is not Held.GONE
        )
        return nsmallest(
            limit, (row for row in there if not row.is_overdue(wall)), key=lambda row: row.seq
        )

    def announce(self) -> None:
        for wakeup in tuple(self.listeners):
            wakeup.set()

    def _move(self, row: Row, held: Held) -> None:
        self.counts[row.held] -= 1
        self.counts[held] += 1
        row.held = held

    def _clear_out(self) -> None:
        """Let go of the rows that are gone. It takes as many removals to come here again as this
        looks at rows.
        """
        self._gone = 0
        self._line = deque(row for row in self._line if row.held is not Held.GONE)
        self._returned = [entry for entry in self._returned if entry[1].held is not Held.GONE]
        self._delayed = [entry for entry in self._delayed if entry[2].held is not Held.GONE]
        self._expiring = [entry for entry in self._expiring if entry[2].held is not Held.GONE]
        heapify(self._returned)
        heapify(self._delayed)
        heapify(self._expiring)

    def _free(self, row: Row) -> None:
        self._move(row, Held.FREE)
        heappush(self._returned, (row.seq, row))

    def _delay(self, row: Row, ready_at: float) -> None:
        self._move(row, Held.DELAYED)
        heappush(self._delayed, (ready_at, row.seq, row))

    def _watch(self, row: Row) -> None:
        if row.expires_at is not None and not row.watched:
            row.watched = True
            heappush(self._expiring, (row.expires_at, row.seq, row))
