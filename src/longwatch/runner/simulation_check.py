"""The reconciliation of a simulation: each event that was sent has one row with one outcome.

What can be wrong
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
    """How the events of one source that were sent and that are stored compare."""

    source: str
    sent: int
    outcomes: dict[str, int] = field(default_factory=dict)
    missing: int = 0
    twice: int = 0
    open: int = 0
    unsent: int = 0
    running: int = 0
    examples: tuple[str, ...] = ()
    """Ids of events that are missing or stored twice, a few."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is expected to change any more but what is wrong for good."""
        return not (self.missing or self.open or self.running)

    @property
    def is_right(self) -> bool:
        return self.is_settled and not (self.twice or self.unsent)


def reconcile(sent: Iterable[SentEvent], database: Database) -> list[SourceReconciliation]:
    """Compare what was sent with what a store has, source by source. Blocks on the store."""
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
    """Compare the events of one source. An event is known by its id and its data."""
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
    """The hash by which a runner knows the data of an event."""
    return blake2b(data.encode(), digest_size=HASH_BYTES).digest()
