"""Decides on batches of stream events and stores them, for several sources in one transaction.

The transaction, in this order:

    fence     The row of each source is updated with the last event id, if this runner still holds
              its lease. A source that is lost is left out; the others are stored.
    ask       Which of the ids that the server gave are stored? How many events wait? Which faults
              are in the window? The last two are asked only when they are not known.
    decide    `decide_batch` decides on each event, without I/O.
    write     All events, their messages, dead letters for events that are not queued, and the
              removal of the oldest messages of a full queue.

The writer remembers the window of faults of a source, and an upper bound of its waiting events.
This memory belongs to one lease, because another runner may have queued events in between. It
changes only after the commit. After an error it is cleared, because the stored state is unknown.

Only the intake adds messages that matter here, so the number that was counted plus the number
added since is an upper bound. The queue is counted again when that bound reaches the size.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from longwatch.core.sanitize import is_storable, sanitize
from longwatch.runner.event_filter import (
    DUPLICATE,
    MALFORMED,
    OVERFLOW,
    OVERSIZE,
    EventFilter,
    FaultWindow,
)
from longwatch.runner.event_queue import EventQueue, RemovedMessage
from longwatch.runner.policy import OverflowPolicy, RunnerPolicy, SourceSpec
from longwatch.runner.seams import StreamItem
from longwatch.runner.source_lease import SourceLeases
from longwatch.runner.stream_event import HASH_BYTES, StreamEvent, parse_event
from longwatch.store.claims import Claim
from longwatch.store.database import Database, Row, Transaction
from longwatch.store.named_sql import load_queries

MAX_STREAM_ID_CHARS = 200
"""The longest id that is stored as it is. A longer one is stored as its hash, to fit an index."""
MAX_CURSOR_CHARS = 8192
"""More bytes than servers accept in a header."""
_ID_RANDOM_BYTES = 8

Question = tuple[str, Mapping[str, object]]


class NewEvent(NamedTuple):
    """An event to store. Its id is made before the transaction, so that a repeated transaction
    stores the same event.
    """

    id: str
    stream_id: str | None
    event: StreamEvent


@dataclass(slots=True)
class SourceMemory:
    """The remembered state of a source under one lease; None: not known."""

    claim: Claim
    window: FaultWindow | None = None
    waiting: int | None = None


@dataclass(slots=True)
class SourceBatch:
    """The items of one source to store, and the state that its decision needs."""

    source: str
    cursor: str
    events: list[NewEvent]
    claim: Claim
    memory: SourceMemory
    queue: int


@dataclass(slots=True)
class BatchPlan:
    """The decisions on the events of one batch."""

    now: float = 0.0
    rows: list[dict[str, object]] = field(default_factory=list)
    dead_letters: list[dict[str, object]] = field(default_factory=list)
    queued: list[NewEvent] = field(default_factory=list)
    fresh: set[str] = field(default_factory=set)
    window: FaultWindow | None = None
    waiting: int = 0
    excess: int = 0
    removed: list[RemovedMessage] = field(default_factory=list)
    received: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)


class EventIds:
    """Makes ids like those of mailboxes: 32 hex digits, the time first. Each is higher than the one
    before.
    """

    def __init__(self) -> None:
        self._last = 0

    def make(self, count: int) -> list[str]:
        first = max(time.time_ns() // 1000, self._last + 1)
        self._last = first + count - 1
        chance = os.urandom(_ID_RANDOM_BYTES * count).hex()
        width = 2 * _ID_RANDOM_BYTES
        return [f"{first + n:016x}{chance[width * n : width * (n + 1)]}" for n in range(count)]


class EventWriter:
    """Stores batches. Not thread-safe; blocks on the store."""

    def __init__(
        self,
        database: Database,
        sources: Sequence[SourceSpec],
        policy: RunnerPolicy,
        leases: SourceLeases,
    ) -> None:
        self._database = database
        self._policy = policy
        self._leases = leases
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)
        self.queues = {spec.name: EventQueue(database, spec, policy) for spec in sources}
        self._filters = {
            spec.name: EventFilter(policy, is_enabled=spec.enabled) for spec in sources
        }
        self._memories: dict[str, SourceMemory] = {}
        self._ids = EventIds()

    def prepare(self, source: str, items: Sequence[StreamItem], cursor: str) -> SourceBatch:
        """Parse the items of one source. Raises SourceLeaseLostError if this runner does not hold
        it.
        """
        claim = self._leases.claim_of(source)
        memory = self._memories.get(source)
        if memory is None or memory.claim != claim:
            memory = self._memories[source] = SourceMemory(claim)
        max_bytes = self._policy.max_event_bytes
        events = [
            NewEvent(event_id, _stream_id(item.id), parse_event(item.data, max_bytes=max_bytes))
            for event_id, item in zip(self._ids.make(len(items)), items, strict=True)
        ]
        queue = self.queues[source].number
        return SourceBatch(
            source, sanitize(cursor, max_length=MAX_CURSOR_CHARS), events, claim, memory, queue
        )

    def write(self, batches: Sequence[SourceBatch]) -> list[BatchPlan | None]:
        """Store batches of different sources in one transaction. Return None for a source whose
        lease is lost. After an error it is unknown whether anything was stored.
        """
        # In the order of the rows, so that two transactions lock them in the same order.
        ordered = sorted(batches, key=lambda batch: batch.claim.seq)
        try:
            plans = self._database.write(lambda tx: self._store(tx, ordered))
        except BaseException:
            for batch in ordered:
                self.forget(batch.source)
            raise
        for batch, plan in zip(ordered, plans, strict=True):
            if plan is None:
                self.forget(batch.source)
                self._leases.forget(batch.source, batch.claim)
            else:
                _remember(batch.memory, plan)
        by_source = dict(zip((batch.source for batch in ordered), plans, strict=True))
        return [by_source[batch.source] for batch in batches]

    def forget(self, source: str) -> None:
        """Clear the memory of a source, so that the next batch asks the store again."""
        self._memories.pop(source, None)
        self.queues[source].forget_number()

    # --- inside a transaction ---

    def _store(self, tx: Transaction, batches: Sequence[SourceBatch]) -> list[BatchPlan | None]:
        questions = [self._questions(batch) for batch in batches]
        answers = iter(tx.rows_many([each for asked in questions for each in asked.values()]))
        plans: list[BatchPlan | None] = []
        for batch, asked in zip(batches, questions, strict=True):
            found = {name: next(answers) for name in asked}
            plans.append(self._decide(batch, found) if found["fence"] else None)
        self._write_plans(tx, batches, plans)
        return plans

    def _questions(self, batch: SourceBatch) -> dict[str, Question]:
        """Return the statements that the decision needs, the fence first."""
        stream_ids = [event.stream_id for event in batch.events if event.stream_id is not None]
        asked: dict[str, Mapping[str, object]] = {
            "fence": {
                **batch.claim._asdict(),
                "cursor": batch.cursor,
                "items": len(batch.events),
                "lease_seconds": self._leases.lease_seconds,
            }
        }
        if stream_ids:
            asked["find_stored"] = {"source": batch.source, "stream_ids": self._array(stream_ids)}
        if batch.memory.window is None and self._policy.dedup_window > 0:
            asked["load_window"] = {
                "source": batch.source,
                "window": float(self._policy.dedup_window),
            }
        size = self._policy.source_queue_size
        waiting = batch.memory.waiting
        if waiting is None or waiting + len(batch.events) > size:
            asked["count_waiting"] = {"queue": batch.queue, "limit": size + 1}
        return {name: (self._sql[name], parameters) for name, parameters in asked.items()}

    def _array(self, texts: list[str]) -> object:
        return texts if self._database.dialect == "postgresql" else json.dumps(texts)

    def _decide(self, batch: SourceBatch, found: Mapping[str, Sequence[Row]]) -> BatchPlan:
        window = batch.memory.window
        if window is None:
            window = FaultWindow(
                self._policy.dedup_window, map(_window_entry, found.get("load_window", ()))
            )
        waiting = found["count_waiting"][0][0] if "count_waiting" in found else batch.memory.waiting
        stored = {
            (stream_id, bytes(data_hash)) for stream_id, data_hash in found.get("find_stored", ())
        }
        plan = BatchPlan(now=float(found["fence"][0][0]), window=window, waiting=int(waiting or 0))
        decide_batch(plan, batch, self._filters[batch.source], stored, self._policy)
        return plan

    def _write_plans(
        self,
        tx: Transaction,
        batches: Sequence[SourceBatch],
        plans: Sequence[BatchPlan | None],
    ) -> None:
        present = [(batch, plan) for batch, plan in zip(batches, plans, strict=True) if plan]
        if rows := [row for _, plan in present for row in plan.rows]:
            tx.defer_many(self._sql["insert_events"], rows)
        for batch, plan in present:
            queue = self.queues[batch.source]
            if plan.excess:
                plan.removed = queue.drop_oldest(
                    tx, batch.queue, plan.excess, reason=OVERFLOW, error=self._overflow_text
                )
            if plan.queued:
                queue.put(tx, batch.queue, [event.id for event in plan.queued])
        if letters := [letter for _, plan in present for letter in plan.dead_letters]:
            tx.defer_many(self._sql["insert_dead_letters"], letters)

    @property
    def _overflow_text(self) -> str:
        return _overflow_text(self._policy)


def decide_batch(
    plan: BatchPlan,
    batch: SourceBatch,
    event_filter: EventFilter,
    stored: set[tuple[str, bytes]],
    policy: RunnerPolicy,
) -> None:
    """Decide on each event in order. `stored` are the events stored before, by id and hash."""
    assert plan.window is not None
    for new in batch.events:
        event = new.event
        plan.received[event.severity] += 1
        if new.stream_id is not None:
            sent = new.stream_id, event.data_hash
            if sent in stored:
                plan.filtered[DUPLICATE] += 1
                continue
            stored.add(sent)
        reason = event_filter.reason(event, plan.window, plan.fresh, plan.now)
        if reason is None:
            _queue_event(plan, batch, new, policy)
        elif event.is_oversize:
            plan.dropped[OVERSIZE] += 1
            plan.rows.append(_row(batch, new, "dropped", OVERSIZE))
        elif reason == MALFORMED:
            plan.filtered[MALFORMED] += 1
            plan.rows.append(_row(batch, new, "dead-lettered", MALFORMED))
            plan.dead_letters.append(_dead_letter(batch, new, MALFORMED, event.problem))
        else:
            plan.filtered[reason] += 1
            plan.rows.append(_row(batch, new, "filtered", reason))
    _make_room(plan, batch, policy)


def _queue_event(plan: BatchPlan, batch: SourceBatch, new: NewEvent, policy: RunnerPolicy) -> None:
    room = policy.source_queue_size - plan.waiting
    if policy.overflow is OverflowPolicy.REJECT and len(plan.queued) >= room:
        plan.dropped[OVERFLOW] += 1
        plan.rows.append(_row(batch, new, "dropped", OVERFLOW))
        plan.dead_letters.append(_dead_letter(batch, new, OVERFLOW, _overflow_text(policy)))
        return
    plan.queued.append(new)
    if new.event.fault_key is not None:
        plan.fresh.add(new.event.fault_key)
    plan.rows.append(_row(batch, new, None, ""))


def _make_room(plan: BatchPlan, batch: SourceBatch, policy: RunnerPolicy) -> None:
    """Drop the oldest events if too many wait: first stored ones, then the first of this batch."""
    over = plan.waiting + len(plan.queued) - policy.source_queue_size
    if policy.overflow is OverflowPolicy.REJECT or over <= 0:
        return
    plan.excess = min(over, plan.waiting)
    surplus = over - plan.excess
    if surplus:
        dropped, plan.queued = plan.queued[:surplus], plan.queued[surplus:]
        plan.dropped[OVERFLOW] += surplus
        plan.fresh = {new.event.fault_key for new in plan.queued if new.event.fault_key is not None}
        ids = {new.id for new in dropped}
        for row in plan.rows:
            if row["id"] in ids:
                row.update(outcome="dropped", reason=OVERFLOW)
        plan.dead_letters += [
            _dead_letter(batch, new, OVERFLOW, _overflow_text(policy)) for new in dropped
        ]


def _dead_letter(batch: SourceBatch, new: NewEvent, reason: str, error: str) -> dict[str, object]:
    return {
        "queue": batch.queue,
        "id": new.id,
        "reason": reason,
        "error": error,
        "body": new.event.data.encode(),
    }


def _row(batch: SourceBatch, new: NewEvent, outcome: str | None, reason: str) -> dict[str, object]:
    event = new.event
    return {
        "id": new.id,
        "source": batch.source,
        "stream_id": new.stream_id,
        "data_hash": event.data_hash,
        "severity": event.severity,
        "fault_key": event.fault_key,
        "data": event.data,
        "outcome": outcome,
        "reason": reason,
    }


def _remember(memory: SourceMemory, plan: BatchPlan) -> None:
    assert plan.window is not None
    plan.window.add(plan.fresh, plan.now)
    plan.window.discard(removed.fault_key for removed in plan.removed)
    memory.window = plan.window
    memory.waiting = plan.waiting + len(plan.queued) - len(plan.removed)


def _overflow_text(policy: RunnerPolicy) -> str:
    return f"the queue was full: {policy.source_queue_size} events waited"


def _stream_id(stream_id: str | None) -> str | None:
    if stream_id is None or (len(stream_id) <= MAX_STREAM_ID_CHARS and is_storable(stream_id)):
        return stream_id
    return blake2b(stream_id.encode(errors="surrogatepass"), digest_size=HASH_BYTES).hexdigest()


def _window_entry(row: Row) -> tuple[str, Any]:
    return row[0], float(row[1])
