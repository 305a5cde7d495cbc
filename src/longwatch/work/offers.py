"""Room that an engine offers to whoever makes rows, and what it was given for that."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from longwatch.work.source import Leased

Given = tuple[list[Leased], float]
"""Rows, and when they were asked for."""


class Offer:
    """Room that an engine has, for whoever makes rows to lease them to it in the transaction that
    makes them.

    `give` what was leased once that is committed, and `close` the offer in any case: an engine does
    not end before that.
    """

    def __init__(self, offers: Offers, want: int, *, owner: int) -> None:
        self.want = want
        self.owner = owner
        self.closed = False
        self.in_doubt = False
        """Whether nobody knows if anything was leased."""
        self._offers = offers

    def give(self, leased: list[Leased], asked: float) -> None:
        """These are its own now; they were asked for at this moment. From any thread."""
        if leased:
            self._offers.given.append((leased, asked))

    def close(self) -> None:
        self.closed = True
        self._offers.end(in_doubt=self.in_doubt)


class Offers:
    """Those of one engine. `ended(in_doubt)` is called when one is closed. Every method may be
    called from any thread.
    """

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self.given: deque[Given] = deque()
        self.open = 0
        self.made = 0
        """How many there ever were."""
        self.lock = threading.Lock()
        self._ended = ended

    def make(self, want: Callable[[], int], *, owner: int) -> Offer | None:
        """One for so many rows; None if that is none."""
        with self.lock:
            room = want()
            if room <= 0:
                return None
            self.open += 1
            self.made += 1
        return Offer(self, room, owner=owner)

    def end(self, *, in_doubt: bool) -> None:
        with self.lock:
            self.open -= 1
        self._ended(in_doubt)
