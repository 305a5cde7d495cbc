"""Capacity that an engine reserves for code that inserts rows, and the rows it got for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from longwatch.engine.claim_source import ClaimedRow

Delivered = tuple[list[ClaimedRow], float]
"""Rows, and when they were asked for."""


class Reservation:
    """Free capacity of an engine. Code that inserts rows may lease so many of them to the engine,
    in the transaction that inserts them.

    Call `deliver` with the leased rows once that is committed, and `close` in any case: the engine
    does not stop before that.
    """

    def __init__(self, reservations: Reservations, limit: int, *, owner: int) -> None:
        self.limit = limit
        self.owner = owner
        self.is_closed = False
        self.is_uncertain = False
        """Whether nobody knows if anything was leased."""
        self._reservations = reservations

    def deliver(self, claimed: list[ClaimedRow], requested_at: float) -> None:
        """These are its own now; they were asked for at this moment. From any thread."""
        if claimed:
            self._reservations.delivered.append((claimed, requested_at))

    def close(self) -> None:
        self.is_closed = True
        self._reservations.close_one(is_uncertain=self.is_uncertain)


class Reservations:
    """The reservations of one engine. `on_close(is_uncertain)` is called when one is closed. Every
    method may be called from any thread.
    """

    def __init__(self, on_close: Callable[[bool], None]) -> None:
        self.delivered: deque[Delivered] = deque()
        self.open_count = 0
        self.total = 0
        """How many there ever were."""
        self.lock = threading.Lock()
        self._on_close = on_close

    def reserve(self, capacity: Callable[[], int], *, owner: int) -> Reservation | None:
        """One for so many rows; None if that is none."""
        with self.lock:
            limit = capacity()
            if limit <= 0:
                return None
            self.open_count += 1
            self.total += 1
        return Reservation(self, limit, owner=owner)

    def close_one(self, *, is_uncertain: bool) -> None:
        with self.lock:
            self.open_count -= 1
        self._on_close(is_uncertain)
