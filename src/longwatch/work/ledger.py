"""What an engine tells of its exchanges: one event for many rows, and none where nobody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longwatch.core.events import RowsClaimed, RowsSettled
from longwatch.work.policy import Surroundings
from longwatch.work.source import Exchange, Outcome, Settlement


class Ledger:
    """Remembers what was done until it is settled, then tells. One owner; not thread-safe."""

    def __init__(self, around: Surroundings) -> None:
        self._engine = around.name
        self._events = around.events
        self._lasted: list[float] = []

    def ran(self, seconds: float) -> None:
        if self._events.heard:
            self._lasted.append(seconds)

    def traded(self, batch: Sequence[Settlement], exchange: Exchange, *, held: int) -> None:
        """An exchange was made."""
        if not self._events.heard:
            return
        if batch or self._lasted:
            self._settled(batch, exchange)
        if exchange.leased:
            self._events.emit(RowsClaimed(engine=self._engine, rows=len(exchange.leased), held=held))

    def _settled(self, batch: Sequence[Settlement], exchange: Exchange) -> None:
        told = Counter(settlement.outcome for settlement in batch)
        lasted, self._lasted = tuple(self._lasted), []
        self._events.emit(
            RowsSettled(
                engine=self._engine,
                done=told[Outcome.DONE],
                failed=told[Outcome.FAILED],
                back=told[Outcome.BACK],
                dead=told[Outcome.DEAD],
                refused=exchange.settled.count(False),
                lasted=lasted,
            )
        )
