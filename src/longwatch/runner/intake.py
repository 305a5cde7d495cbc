"""The intake: stores the events that connections have received.

    take     Stores one batch of one source. Callers that wait at the same time share one
             transaction, so one commit serves many sources. A separate thread parses and writes;
             the event loop waits.
    sweep    Expires queued events, sets the outcome of events whose message an operator or the
             mailbox has removed, and deletes old events.

A take is stored in whole or not at all, with the last event id of its stream. It is stored only
while this runner holds the lease of the source (`event_writer.py`, `source_lease.py`). The server
sends events again that were not stored. Events that are stored already change nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from longwatch.core.clock import Clock
from longwatch.core.events.base import Events
from longwatch.core.events.runner import StreamEventsTaken
from longwatch.errors import StoreError
from longwatch.host.blocking_call import BlockingCall
from longwatch.runner.event_filter import OVERFLOW, OVERSIZE
from longwatch.runner.event_writer import BatchPlan, EventWriter, SourceBatch
from longwatch.runner.policy import RunnerPolicy, Severity, SourceSpec
from longwatch.runner.queue_sweep import QueueSweep
from longwatch.runner.retention import EventRetention
from longwatch.runner.seams import StreamItem
from longwatch.runner.source_lease import SourceLeaseLostError, SourceLeases
from longwatch.store.database import CALL_TIMEOUT, Database
from longwatch.store.named_sql import load_queries

MAX_GROUP_ITEMS = 10_000
MAX_GROUP_CHARS = 16 << 20
"""The most items, and characters of them, before the last batch of one transaction. They are
limited because other writers wait meanwhile.
"""
_TIMEOUT = 2 * CALL_TIMEOUT


class _Request:
    """A call that waits for the thread of the intake."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.is_done = False
        self.is_abandoned = False
        self.error: Exception | None = None

    def finish(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_done = True


class _Take(_Request):
    def __init__(self, source: str, items: Sequence[StreamItem], cursor: str) -> None:
        super().__init__(source)
        self.items = items
        self.cursor = cursor


class _CursorRequest(_Request):
    cursor = ""


class Intake:
    """An EventIntake over a SQL store.

    `take`, `cursor` and `report_oversize` are used on one event loop. `cursor_now`, `sweep` and
    `is_expired` block on the store, and may be called from any other thread. The intake makes
    `leases` if they are not given. The caller starts and stops them.
    """

    def __init__(  # noqa: PLR0913 - a runner's intake and its environment
        self,
        database: Database,
        sources: Sequence[SourceSpec],
        policy: RunnerPolicy,
        *,
        clock: Clock,
        events: Events,
        leases: SourceLeases | None = None,
        is_breaker_open: Callable[[], bool] = lambda: False,
    ) -> None:
        self.leases = leases or SourceLeases(
            database, [spec.name for spec in sources], clock=clock, events=events
        )
        self._database = database
        self._policy = policy
        self._events = events
        self._is_breaker_open = is_breaker_open
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)
        self._writer = EventWriter(database, sources, policy, self.leases)
        self._queue_sweep = QueueSweep(
            database, self._writer.queues, max_age=policy.max_queue_age, events=events
        )
        self._retention = EventRetention(database, policy.event_retention)
        self._waiting: deque[_Request] = deque()
        self._call = BlockingCall(self._serve, name="longwatch-intake", timeout=_TIMEOUT)

    # --- EventIntake ---

    async def cursor(self, source: str) -> str:
        request = _CursorRequest(source)
        await self._wait_for(request)
        return request.cursor

    async def take(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        await self._wait_for(_Take(source, items, cursor))

    async def report_oversize(self, source: str, count: int) -> None:
        if count > 0:
            self._events.emit(
                StreamEventsTaken(
                    cluster=source,
                    received={str(Severity.OTHER): count},
                    dropped={OVERSIZE: count},
                )
            )

    # --- blocking ---

    def cursor_now(self, source: str) -> str:
        """Return the last event id that was stored for this source; empty: none."""
        rows = self._database.read(lambda tx: tx.rows(self._sql["cursor"], {"name": source}))
        return str(rows[0][0]) if rows else ""

    def take_now(self, source: str, items: Sequence[StreamItem], *, cursor: str) -> None:
        """Do what `take` does, for callers without an event loop. Not thread-safe."""
        take = _Take(source, items, cursor)
        self._store([take])
        if take.error is not None:
            raise take.error

    def sweep(self) -> int:
        """Expire, reconcile and delete events in small transactions. Return how many changed."""
        return self._queue_sweep.run() + self._retention.run()

    def is_expired(self, received_at: float) -> bool:
        """Return whether an event that arrived then, on the store's clock, is too old to start."""
        max_age = self._policy.max_queue_age
        if max_age is None:
            return False
        [(now,)] = self._database.read(lambda tx: tx.rows(self._sql["store_time"]))
        return float(now) - received_at >= max_age

    def close(self) -> None:
        """Stop the thread of the intake. The caller closes the leases and the store."""
        self._call.close()

    # --- the thread of the intake ---

    async def _wait_for(self, request: _Request) -> None:
        """Wait until the thread has served the request. Waiting callers share one turn of it."""
        self._waiting.append(request)
        try:
            while not request.is_done:
                await self._call.run()
        except TimeoutError:
            raise StoreError(
                f"no answer from the store within {_TIMEOUT:g} s; whether it was written is unknown"
            ) from None
        finally:
            request.is_abandoned = True  # nothing must be stored for a caller that has given up
        if request.error is not None:
            raise request.error

    def _serve(self) -> None:
        """Serve the waiting requests: first the cursors, then one transaction of takes."""
        takes: list[_Take] = []
        count = size = 0
        while count < MAX_GROUP_ITEMS and size < MAX_GROUP_CHARS:
            try:
                request = self._waiting.popleft()
            except IndexError:
                break
            if request.is_abandoned:
                continue
            if isinstance(request, _Take):
                takes.append(request)
                count += len(request.items)
                size += sum(len(item.data) for item in request.items)
            else:
                self._answer(request)
        self._store(takes)

    def _answer(self, request: _Request) -> None:
        assert isinstance(request, _CursorRequest)
        try:
            request.cursor = self.cursor_now(request.source)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            request.finish(error)
        else:
            request.finish()

    def _store(self, takes: Sequence[_Take]) -> None:
        """Store takes in one transaction. After an error that is not a StoreError, which one take
        has caused, each take gets its own transaction.
        """
        try:
            self._store_together(takes)
        except StoreError as error:
            _finish_all(takes, error)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            if len(takes) == 1:
                _finish_all(takes, error)
            for take in takes if len(takes) > 1 else ():
                if not take.is_done:
                    self._store([take])

    def _store_together(self, takes: Sequence[_Take]) -> None:
        batches: dict[str, SourceBatch] = {}
        for take in takes:
            if take.source in batches:
                continue
            try:
                batches[take.source] = self._prepare([t for t in takes if t.source == take.source])
            except SourceLeaseLostError as error:
                _finish_all([t for t in takes if t.source == take.source], error)
        if not batches:
            return
        plans = self._writer.write(list(batches.values()))
        for batch, plan in zip(batches.values(), plans, strict=True):
            lost = _lost_error(batch.source) if plan is None else None
            if plan is not None:
                self._emit(batch.source, plan)
            _finish_all([take for take in takes if take.source == batch.source], lost)

    def _prepare(self, takes: Sequence[_Take]) -> SourceBatch:
        items = [item for take in takes for item in take.items]
        return self._writer.prepare(takes[0].source, items, takes[-1].cursor)

    def _emit(self, source: str, plan: BatchPlan) -> None:
        if not plan.received:
            return
        dropped = plan.dropped
        dropped[OVERFLOW] += len(plan.removed)
        breaker_dropped = dropped.pop(OVERFLOW) if self._is_breaker_open() else 0
        self._events.emit(
            StreamEventsTaken(
                cluster=source,
                received=dict(plan.received),
                filtered=dict(plan.filtered),
                dropped={reason: count for reason, count in dropped.items() if count},
                breaker_dropped=breaker_dropped,
                queued=len(plan.queued),
            )
        )


def _finish_all(takes: Iterable[_Take], error: Exception | None) -> None:
    for take in takes:
        if not take.is_done:
            take.finish(error)


def _lost_error(source: str) -> SourceLeaseLostError:
    return SourceLeaseLostError(
        f"another runner has taken over the source {source!r}; nothing was stored"
    )
