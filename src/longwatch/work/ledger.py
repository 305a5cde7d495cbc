"""What an engine tells of its exchanges: one event for many rows, and none where nobody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longwatch.core.events import RowsClaimed, RowsSettled
from longwatch.work.policy import Surroundings
from longwatch.work.source import Exchange, Outcome, Settlement


class Ledger:
    """Remembers what was done and settled until it tells. One owner; not thread-safe.

    What was refused counts as that and as nothing else: nobody knows how the row ended.
    """

    def __init__(self, around: Surroundings) -> None:
        self._engine = around.name
        self._events = around.events
        self._lasted: list[float] = []
        self._settled: Counter[Outcome] = Counter()
        self._refused = 0

    def ran(self, seconds: float) -> None:
        if self._events.heard:
            self._lasted.append(seconds)

    def settled(self, outcome: Outcome) -> None:
        """The code that ran a row has settled it by itself."""
        if self._events.heard:
            self._settled[outcome] += 1

    def traded(self, batch: Sequence[Settlement], exchange: Exchange, *, held: int) -> None:
        """An exchange was made."""
        if not self._events.heard:
            return
        for settlement, counted in zip(batch, exchange.settled, strict=True):
            self._settled[settlement.outcome] += counted
            self._refused += not counted
        self.tell()
        if exchange.leased:
            self._events.emit(
                RowsClaimed(engine=self._engine, rows=len(exchange.leased), held=held)
            )

    def tell(self) -> None:
        """What came together since the last time."""
        if not (self._lasted or self._settled or self._refused):
            return
        told, refused, lasted = self._settled, self._refused, tuple(self._lasted)
        self._settled, self._refused, self._lasted = Counter(), 0, []
        self._events.emit(
            RowsSettled(
                engine=self._engine,
                done=told[Outcome.DONE],
                failed=told[Outcome.FAILED],
                back=told[Outcome.BACK],
                dead=told[Outcome.DEAD],
                refused=refused,
                lasted=lasted,
            )
        )
