"""Reconciles a simulation: each event that was sent must have one row with one outcome.

Faults
    missing   it was sent and is in no row: lost
    twice     more than one row has its id and its data
    open      its row has no outcome yet: it is queued or runs
    unsent    a row has an id and data that were never sent
    running   a run has not ended
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from longwatch.runner.simulated_events import SentEvent
from longwatch.runner.stream_event import HASH_BYTES
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries

OUTCOMES = ("run", "expired", "filtered", "dead-lettered", "dropped")

StoredEvent = tuple[str | None, bytes, str | None]
"""Stream id, hash of the data, outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReconciliation:
    """The comparison of the sent and the stored events of one source."""

    source: str
    sent: int
    outcomes: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    twice: int = 0
    open: int = 0
    unsent: int = 0
    running: int = 0
    examples: tuple[str, ...] = ()
    """A few ids of events that are missing or stored twice."""

    @property
    def is_settled(self) -> bool:
        """Whether no event is missing, queued or running, so that the result is final."""
        return not (self.missing or self.open or self.running)

    @property
    def is_right(self) -> bool:
        return self.is_settled and not (self.twice or self.unsent)


def reconcile(sent: Iterable[SentEvent], database: Database) -> list[SourceReconciliation]:
    """Compare the sent events with those in a store, for each source. Blocks on the store."""
    by_source: dict[str, list[SentEvent]] = {}
    for event in sent:
        by_source.setdefault(event.source, []).append(event)
    queries = load_queries("longwatch.runner", "simulation_queries", database.dialect)

    def read(tx: Transaction) -> Iterator[SourceReconciliation]:
        for source, events in sorted(by_source.items()):
            rows = tx.rows(queries["stored_events"], {"source": source})
            [[running]] = tx.rows(queries["open_runs"], {"source": source})
            stored = [(row[0], bytes(row[1]), row[2]) for row in rows]
            yield compare(source, events, stored, running=running)

    return database.read(lambda tx: list(read(tx)))


def compare(
    source: str, sent: Iterable[SentEvent], stored: Iterable[StoredEvent], *, running: int = 0
) -> SourceReconciliation:
    """Compare the events of one source. An event is identified by its id and its data."""
    rows: Counter[tuple[str | None, bytes]] = Counter()
    outcomes: Counter[str | None] = Counter()
    for stream_id, data_hash, outcome in stored:
        rows[stream_id, data_hash] += 1
        outcomes[outcome] += 1
    keys: dict[tuple[str | None, bytes], None] = dict.fromkeys(
        (str(event.number), hash_data(event.data)) for event in sent
    )
    missing = [key for key in keys if not rows[key]]
    twice = [key for key in keys if rows[key] > 1]
    return SourceReconciliation(
        source=source,
        sent=len(keys),
        outcomes={name: outcomes[name] for name in OUTCOMES},
        missing=len(missing),
        twice=len(twice),
        open=outcomes[None],
        unsent=sum(count for key, count in rows.items() if key not in keys),
        running=running,
        examples=tuple(str(stream_id) for stream_id, _ in [*missing, *twice][:5]),
    )


def hash_data(data: str) -> bytes:
    """Return the hash by which a runner identifies the data of an event."""
    return blake2b(data.encode(), digest_size=HASH_BYTES).digest()
