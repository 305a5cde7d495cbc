"""Capacity that an engine reserves for code that inserts rows, and the rows that it gets in return.

    open ──deliver──► delivered ──close──► closed
      └──close (nothing was leased, or that is uncertain)──► closed

While a reservation is open, rows may be leased to the engine in the store before the engine knows
of them. So an open reservation keeps the engine from stopping, and keeps an audit from releasing
claims that it does not know.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from longwatch.engine.claim_source import ClaimedRow

Delivered = tuple[list[ClaimedRow], float]
"""Rows, and when they were requested, on `boottime()`."""


class Reservation:
    """Reserved capacity of an engine. Code that inserts rows may lease up to `limit` of them to the
    engine, in the transaction that inserts them.

    Call `deliver` with the leased rows after the commit, and `close` in any case: the engine does
    not stop before that.
    """

    def __init__(self, reservations: Reservations, number: int, limit: int, *, owner: int) -> None:
        self.number = number
        self.limit = limit
        self.owner = owner
        self.is_closed = False
        self.is_uncertain = False
        """Whether it is unknown if rows were leased. The code that inserts them sets it."""
        self._reservations = reservations

    def deliver(self, claimed: list[ClaimedRow], requested_at: float) -> None:
        """Pass on rows that were leased by a call made at `requested_at`, on `boottime()`.
        Thread-safe.
        """
        if claimed:
            self._reservations.delivered.append((claimed, requested_at))

    def close(self) -> None:
        """End the reservation. The engine accepts the delivered rows."""
        self.is_closed = True
        self._reservations.close_one(self)


class Reservations:
    """The reservations of one engine. Calls `on_close(is_uncertain)` when one is closed. Every
    method is thread-safe.
    """

    def __init__(self, on_close: Callable[[bool], None]) -> None:
        self.delivered: deque[Delivered] = deque()
        self.total = 0
        """How many reservations were ever made."""
        self.lock = threading.Lock()
        self._open: set[int] = set()
        self._on_close = on_close

    @property
    def are_pending(self) -> bool:
        """Whether rows may be leased to the engine that it does not hold yet."""
        return bool(self._open or self.delivered)

    def accepted_total(self) -> int:
        """How many reservations, from the first, are closed and their rows accepted; 0 while
        delivered rows wait.
        """
        with self.lock:
            return 0 if self.delivered else min(self._open, default=self.total + 1) - 1

    def reserve(self, capacity: Callable[[], int], *, owner: int) -> Reservation | None:
        """Reserve the current capacity. Returns None if there is none."""
        with self.lock:
            limit = capacity()
            if limit <= 0:
                return None
            self.total += 1
            self._open.add(self.total)
            return Reservation(self, self.total, limit, owner=owner)

    def close_one(self, reservation: Reservation) -> None:
        with self.lock:
            self._open.discard(reservation.number)
        self._on_close(reservation.is_uncertain)
