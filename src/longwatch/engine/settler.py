"""The settler: keeps the rows that slots have finished and the settlements still to make.

A finished row waits in `_finished` until a cycle collects it. Its settlement then stays in
`unsettled` until an exchange has made it. After an exchange that failed it is unknown which
settlements were made. All of them are kept and made again, which is safe because they are fenced.
If the source refuses one of these, the first attempt may have counted, and the event says so. The
next batch is half as large, and a single settlement that failed goes to the end. So a settlement
that cannot be made does not delay the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from longwatch.core.events.engine import (
    MessageDeadLettered,
    RowsClaimed,
    RowsSettled,
    SettlementRefused,
)
from longwatch.engine.claim_source import (
    ClaimedRow,
    ExchangeResult,
    GivenUp,
    RowOutcome,
    Settlement,
    emit_given_up,
)
from longwatch.engine.coroutines import AlreadySettled
from longwatch.engine.policy import MAX_BATCH, EngineContext
from longwatch.engine.row_life import FinishedRow
from longwatch.store.claims import Claim


class Settler:
    """Owns the settlements of one engine, from the finished row to the reply of the source.

    `mailbox` names the mailbox in events, unless a message names its own. Any thread may call `add`
    and read the properties. Everything else is for the thread that runs the cycle.
    """

    def __init__(self, engine_context: EngineContext, *, mailbox: str = "") -> None:
        self.unsettled: list[Settlement] = []
        self._rows: dict[Claim, ClaimedRow] = {}
        """The rows of the unsettled settlements, except rows that no slot had."""
        self._mailbox = mailbox
        self.completed = 0
        """How many rows were run and settled. Released rows do not count."""
        self.stats = SettlementStats(engine_context)
        self._finished: deque[FinishedRow] = deque()
        self._settle_batch = engine_context.policy.settle_batch
        self._batch_limit = MAX_BATCH
        self._attempted: set[Claim] = set()
        self._has_delayed = False
        self._engine = engine_context.name
        self._events = engine_context.events
        self._emit_given_up = emit_given_up(self._events)

    # --- settlements to make ---

    @property
    def has_work(self) -> bool:
        """Whether rows are finished, or earlier settlements are left."""
        return bool(self._finished or self.unsettled)

    @property
    def is_batch_full(self) -> bool:
        """Whether enough rows are finished to settle them without waiting for more."""
        return len(self._finished) + len(self.unsettled) >= self._settle_batch

    @property
    def needs_cycle(self) -> bool:
        """Whether settlements are left, or the last ones may have delayed rows."""
        return bool(self.unsettled) or self._has_delayed

    def add(self, finished: FinishedRow) -> None:
        self._finished.append(finished)

    def release(self, claims: Iterable[Claim], *, delay: float = 0.0) -> None:
        """Queue the release of rows that no slot has."""
        self.unsettled += [Settlement(each, RowOutcome.RELEASED, delay=delay) for each in claims]

    def collect(self) -> list[FinishedRow]:
        """Queue the settlements of the finished rows, and return these rows."""
        collected: list[FinishedRow] = []
        while self._finished:
            finished = self._finished.popleft()
            collected.append(finished)
            if finished.duration is not None:
                self.stats.record_duration(finished.duration)
            if isinstance(finished.result, Settlement):
                self.unsettled.append(finished.result._replace(seconds=finished.duration))
                self._rows[finished.result.claim] = finished.claimed
            elif finished.result is not None:
                self.completed += finished.result.outcome is not RowOutcome.RELEASED
                self.stats.record_settled(finished.result.outcome)
                if finished.result.outcome is RowOutcome.DEAD:
                    self._emit_dead(finished.claimed, finished.result)
        return collected

    # --- one exchange ---

    def next_batch(self) -> list[Settlement]:
        return self.unsettled[: self._batch_limit]

    def exchange_done(
        self,
        batch: Sequence[Settlement],
        settled: Sequence[bool],
        given_up: Iterable[GivenUp] = (),
    ) -> None:
        """Drop the settlements that were made or refused. Emits dead letters and refusals."""
        del self.unsettled[: len(batch)]
        self._batch_limit = MAX_BATCH
        self._has_delayed = any(each.outcome is not RowOutcome.DONE for each in batch)
        for settlement, is_settled in zip(batch, settled, strict=True):
            row = self._rows.pop(settlement.claim, None)
            self.completed += is_settled and settlement.outcome is not RowOutcome.RELEASED
            if is_settled:
                if settlement.outcome is RowOutcome.DEAD and row is not None:
                    self._emit_dead(row, settlement)
            elif settlement.outcome is not RowOutcome.RELEASED and row is not None:
                self._emit_refused(row, settlement)
        if self._attempted:
            self._attempted.difference_update(each.claim for each in batch)
        for each in given_up:
            self._emit_given_up(each)

    def exchange_failed(self, batch: Sequence[Settlement]) -> None:
        """Keep the settlements, and halve the next batch."""
        if not batch:
            return
        self._attempted.update(each.claim for each in batch)
        self._batch_limit = max(len(batch) // 2, 1)
        if len(batch) == 1:
            self.unsettled.append(self.unsettled.pop(0))

    def _emit_dead(self, row: ClaimedRow, settled: Settlement | AlreadySettled) -> None:
        if row.message_id:
            self._events.emit(
                MessageDeadLettered(
                    mailbox=getattr(row.item, "mailbox", self._mailbox),
                    message_id=row.message_id,
                    reason=settled.reason,
                    error=settled.error or "",
                )
            )

    def _emit_refused(self, row: ClaimedRow, settlement: Settlement) -> None:
        self._events.emit(
            SettlementRefused(
                engine=self._engine,
                message_id=row.message_id,
                computation=row.computation,
                outcome=settlement.outcome,
                may_have_settled=settlement.claim in self._attempted,
            )
        )


class SettlementStats:
    """Emits one event for the rows of many exchanges, and none without an observer. Not
    thread-safe.

    A refused settlement counts only as refused, because the outcome of the row is unknown.
    """

    def __init__(self, engine_context: EngineContext) -> None:
        self._engine = engine_context.name
        self._row_kind = str(engine_context.policy.row_kind)
        self._events = engine_context.events
        self._durations: list[float] = []
        self._settled: Counter[RowOutcome] = Counter()
        self._refused = 0

    def record_duration(self, seconds: float) -> None:
        if self._events.has_debug_observers:
            self._durations.append(seconds)

    def record_settled(self, outcome: RowOutcome) -> None:
        """Count a row that was settled while its code ran."""
        if self._events.has_debug_observers:
            self._settled[outcome] += 1

    def record_exchange(
        self, batch: Sequence[Settlement], result: ExchangeResult, *, held: int
    ) -> None:
        """Count the settlements of an exchange, and emit the settled and claimed rows."""
        if not self._events.has_debug_observers:
            return
        for settlement, is_settled in zip(batch, result.settled, strict=True):
            self._settled[settlement.outcome] += is_settled
            self._refused += not is_settled
        self.emit()
        self.emit_claimed(len(result.claimed), held=held)

    def emit_claimed(self, rows: int, *, held: int) -> None:
        """Emit claimed rows, if there are any."""
        if rows and self._events.has_debug_observers:
            self._events.emit(
                RowsClaimed(engine=self._engine, rows=rows, held=held, row_kind=self._row_kind)
            )

    def emit(self) -> None:
        """Emit the counts since the last call, if there are any."""
        if not (self._durations or self._settled or self._refused):
            return
        settled, refused, durations = self._settled, self._refused, tuple(self._durations)
        self._settled, self._refused, self._durations = Counter(), 0, []
        self._events.emit(
            RowsSettled(
                engine=self._engine,
                done=settled[RowOutcome.DONE],
                failed=settled[RowOutcome.FAILED] + settled[RowOutcome.CRASHED],
                released=settled[RowOutcome.RELEASED],
                dead_lettered=settled[RowOutcome.DEAD],
                refused=refused,
                durations=durations,
                row_kind=self._row_kind,
            )
        )
