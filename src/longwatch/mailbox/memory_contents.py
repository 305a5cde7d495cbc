"""The contents of a memory store: its queues, the owners of leases, and the leases of each."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from itertools import count

from longwatch.mailbox.memory_queue import MemoryQueue, StoredMessage
from longwatch.store.claims import Claim
from longwatch.store.lapse_guard import LapseGuard
from longwatch.store.sweep import LeaseOwner


class MemoryContents:
    """All queues, owners and leases of a store in one process, and the lock over them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._queues: dict[str, MemoryQueue] = {}
        self.owners: dict[int, LeaseOwner] = {}
        self.leases: dict[int, dict[int, StoredMessage]] = defaultdict(dict)
        self.sequence = count(1)
        self.lapse_guard = LapseGuard()

    def queue(self, name: str) -> MemoryQueue:
        found = self._queues.get(name)
        return found if found is not None else self._queues.setdefault(name, MemoryQueue(name))

    def register_owner(self, owner: LeaseOwner) -> int:
        """Register an owner under a random number, so that a receipt of another store, or from
        before a fork, matches no row.
        """
        number = secrets.randbits(62)
        self.owners[number] = owner._replace(id=number)
        return number

    def lease(self, row: StoredMessage, *, owner: int, until: float) -> Claim:
        row.queue.lease(row)
        row.owner, row.lease_until = owner, until
        row.term += 1
        row.deliveries += 1
        self.leases[owner][row.seq] = row
        return Claim(row.seq, owner, row.term)

    def find_claimed(self, claim: Claim) -> StoredMessage | None:
        """Return the row of a claim; None if the claim no longer matches."""
        row = self.leases.get(claim.owner, {}).get(claim.seq)
        return row if row is not None and row.term == claim.term else None

    def end_lease(self, row: StoredMessage) -> None:
        del self.leases[row.owner][row.seq]

    def lapsed(self, now: float) -> list[StoredMessage]:
        return [
            row for rows in self.leases.values() for row in rows.values() if row.lease_until < now
        ]

    def lapsed_owners(self, now: float) -> tuple[list[LeaseOwner], int]:
        """Return the owners of lapsed leases, and how many owners that renew hold leases."""
        lapsed = {row.owner for row in self.lapsed(now)}
        renewing = sum(
            bool(rows) and self.owners[owner].renew_seconds is not None
            for owner, rows in self.leases.items()
        )
        return [self.owners[owner] for owner in lapsed], renewing
