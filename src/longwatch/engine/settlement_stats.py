"""What an engine tells of its exchanges: one event for many rows, and none where nobody listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from longwatch.core.events.engine import RowsClaimed, RowsSettled
from longwatch.engine.claim_source import ExchangeResult, RowOutcome, Settlement
from longwatch.engine.policy import EngineContext


class SettlementStats:
    """Remembers what was done and settled until it tells. One owner; not thread-safe.

    What was refused counts as that and as nothing else: nobody knows how the row ended.
    """

    def __init__(self, engine_context: EngineContext) -> None:
        self._engine = engine_context.name
        self._events = engine_context.events
        self._durations: list[float] = []
        self._settled: Counter[RowOutcome] = Counter()
        self._refused = 0

    def record_duration(self, seconds: float) -> None:
        if self._events.has_observers:
            self._durations.append(seconds)

    def record_settled(self, outcome: RowOutcome) -> None:
        """The code that ran a row has settled it by itself."""
        if self._events.has_observers:
            self._settled[outcome] += 1

    def record_exchange(
        self, batch: Sequence[Settlement], result: ExchangeResult, *, held: int
    ) -> None:
        """An exchange was made."""
        if not self._events.has_observers:
            return
        for settlement, is_settled in zip(batch, result.settled, strict=True):
            self._settled[settlement.outcome] += is_settled
            self._refused += not is_settled
        self.emit()
        if result.claimed:
            self._events.emit(RowsClaimed(engine=self._engine, rows=len(result.claimed), held=held))

    def emit(self) -> None:
        """What came together since the last time."""
        if not (self._durations or self._settled or self._refused):
            return
        settled, refused, durations = self._settled, self._refused, tuple(self._durations)
        self._settled, self._refused, self._durations = Counter(), 0, []
        self._events.emit(
            RowsSettled(
                engine=self._engine,
                done=settled[RowOutcome.DONE],
                failed=settled[RowOutcome.FAILED],
                released=settled[RowOutcome.RELEASED],
                dead_lettered=settled[RowOutcome.DEAD],
                refused=refused,
                lasted=durations,
            )
        )
