"""Sweeps the queues of a runner: expires, reconciles and reopens events without a run.

    expire      An event that has waited longer than MAX_QUEUE_AGE_SECONDS and was never started is
                removed. Outcome `expired`.
    reconcile   An open event whose message is gone gets its outcome: `dead-lettered` with the
                reason of the dead letter, or `dropped` with the reason `purged` if an operator
                removed the message.
    reopen      An event whose dead letter was replayed is in the mailbox again, so its outcome is
                cleared and its age counts from now.

A sweep reads first. Each transaction changes one small batch, so other writers never wait long.
Several runners may sweep at once: only one of them changes, and counts, each row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longwatch.core.events.base import Events
from longwatch.core.events.runner import QueuedEventExpired
from longwatch.runner.event_queue import EndedEvent, EventQueue, end_events
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries

BATCH = 200
MAX_BATCHES = 100
"""The most events of one kind and queue in one sweep. The next sweep continues."""
MAX_EXPIRED_SHOWN = 3
"""The most events of one queue that the log shows for a sweep."""
PURGED = "purged"


class QueueSweep:
    """Sweeps the queues of a runner. Blocks on the store. Any thread may call it, one at a time."""

    def __init__(
        self,
        database: Database,
        queues: Mapping[str, EventQueue],
        *,
        max_age: float | None,
        events: Events,
    ) -> None:
        self._database = database
        self._queues = queues
        self._max_age = max_age
        self._events = events
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)

    def run(self) -> int:
        """Sweep every queue. Return how many events have changed."""
        return sum(self._sweep_queue(source, queue) for source, queue in self._queues.items())

    def _sweep_queue(self, source: str, queue: EventQueue) -> int:
        number = queue.number
        changed = _repeat(lambda: self._reopen(number))
        changed += _repeat(lambda: self._reconcile(source))
        return changed + self._expire(source, queue, number)

    def _reopen(self, number: int) -> int:
        parameters = {"queue": number, "limit": BATCH}
        found = self._read("find_returned_messages", parameters)

        def work(tx: Transaction) -> int:
            """Skip a message that is claimed or settled meanwhile: its run ends the event."""
            returned = [{"id": event_id} for (event_id,) in found]
            waiting = [each for each in returned if tx.execute(self._sql["restart_age"], each)]
            return sum(tx.execute(self._sql["reopen"], each) for each in waiting)

        return self._database.write(work) if found else 0

    def _reconcile(self, source: str) -> int:
        parameters = {"source": source, "limit": BATCH}
        if not self._read("find_lost_messages", parameters):
            return 0

        def work(tx: Transaction) -> int:
            ended = [
                EndedEvent(event_id, "dropped", PURGED)
                if reason is None
                else EndedEvent(event_id, "dead-lettered", reason)
                for event_id, reason in tx.rows(self._sql["find_lost_messages"], parameters)
            ]
            return end_events(tx, self._sql["end_events"], ended) if ended else 0

        return self._database.write(work)

    def _expire(self, source: str, queue: EventQueue, number: int) -> int:
        max_age = self._max_age
        if max_age is None:
            return 0
        expired: list[tuple[str, float]] = []
        overdue = {"queue": number, "max_age": float(max_age)}

        def expire_batch() -> int:
            if not self._read("find_overdue", overdue):
                return 0
            found = self._database.write(
                lambda tx: queue.expire(tx, number, max_age=max_age, limit=BATCH)
            )
            expired.extend(found)
            return len(found)

        try:
            return _repeat(expire_batch)
        finally:
            self._emit_expired(source, expired)

    def _emit_expired(self, source: str, expired: list[tuple[str, float]]) -> None:
        """Emit a few of the expired events, and how many there are."""
        shown = expired[:MAX_EXPIRED_SHOWN]
        for index, (event_id, age) in enumerate(shown):
            is_last = index == len(shown) - 1
            count = len(expired) - index if is_last else 1
            self._events.emit(
                QueuedEventExpired(cluster=source, event_id=event_id, age=age, count=count)
            )

    def _read(self, query: str, parameters: Mapping[str, object]) -> list[tuple[object, ...]]:
        return self._database.read(lambda tx: tx.rows(self._sql[query], parameters))


def _repeat(sweep_batch: Callable[[], int]) -> int:
    """Sweep batches until one is not full. Return how many events have changed."""
    changed = 0
    for _ in range(MAX_BATCHES):
        count = sweep_batch()
        changed += count
        if count < BATCH:
            break
    return changed
