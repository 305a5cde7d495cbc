"""Event sources and stream events as stored, for the command line and the status page."""

from __future__ import annotations

from typing import NamedTuple

from longwatch.core.sanitize import sanitize
from longwatch.errors import UsageError
from longwatch.mailbox.sql import SqlBackend
from longwatch.runner.event_filter import MALFORMED, OVERSIZE
from longwatch.runner.event_queue import event_message
from longwatch.store.database import CALL_TIMEOUT, Database, Transaction
from longwatch.store.named_sql import load_queries

OPEN = "open"
"""The outcome, in filters and counts, of an event that has none: it is queued or runs."""
MAX_ERROR_CHARS = 500


class SourceStatus(NamedTuple):
    """A source: its connection, its last event, and its queue."""

    name: str
    state: str
    state_since: float | None
    last_event_id: str
    last_event_at: float | None
    reconnects: int
    error: str
    is_held: bool
    """Whether a runner holds its lease."""
    queue_depth: int
    running: int


class EventRecord(NamedTuple):
    """A stored stream event. `outcome` None: it is queued or runs."""

    seq: int
    id: str
    source: str
    stream_id: str | None
    received_at: float
    severity: str
    fault_key: str | None
    data: str
    outcome: str | None
    reason: str
    ended_at: float | None


class OutcomeCount(NamedTuple):
    """How many events of a source have one outcome and reason."""

    source: str
    outcome: str
    reason: str
    events: int


class EventStore:
    """Reads and changes stored events. Every method blocks on the store. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)

    def sources(self, *, timeout: float = CALL_TIMEOUT) -> list[SourceStatus]:
        """Return every source that a runner has had, sorted by name."""
        rows = self._database.read(lambda tx: tx.rows(self._sql["list_sources"]), timeout=timeout)
        return [SourceStatus(*row)._replace(is_held=bool(row[7])) for row in rows]

    def queue_depths(self, *, timeout: float = CALL_TIMEOUT) -> dict[str, int]:
        """Return how many events of each source wait."""
        return {source.name: source.queue_depth for source in self.sources(timeout=timeout)}

    def report_connection(self, source: str, *, state: str, reconnects: int, error: str) -> None:
        """Store the state of the connection to a source."""
        parameters = {
            "name": source,
            "state": state,
            "reconnects": reconnects,
            "error": sanitize(error, max_length=MAX_ERROR_CHARS),
        }
        self._database.write(lambda tx: tx.execute(self._sql["report_connection"], parameters))

    def events(
        self,
        *,
        source: str | None = None,
        outcome: str | None = None,
        after: int = 0,
        limit: int = 100,
    ) -> list[EventRecord]:
        """Return the newest events, the oldest of them first. `outcome`: one outcome, or `open`.
        `after`: only events with a higher `seq`.
        """
        parameters = {"source": source, "outcome": outcome, "after": after, "limit": limit}
        rows = self._database.read(lambda tx: tx.rows(self._sql["list_events"], parameters))
        return [EventRecord(*row) for row in reversed(rows)]

    def event(self, event_id: str) -> EventRecord | None:
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_event"], {"id": event_id}))
        return EventRecord(*rows[0]) if rows else None

    def outcomes(self) -> list[OutcomeCount]:
        """Return how many events have each outcome, by source and reason."""
        rows = self._database.read(lambda tx: tx.rows(self._sql["count_outcomes"]))
        return [OutcomeCount(*row) for row in rows]

    def retry(self, event_id: str) -> EventRecord:
        """Queue an event again, as if it had just arrived, and delete its dead letter. Raises
        UsageError if it cannot be queued.
        """
        self._database.write(lambda tx: self._retry(tx, event_id))
        record = self.event(event_id)
        assert record is not None
        return record

    def _retry(self, tx: Transaction, event_id: str) -> None:
        parameters = {"id": event_id}
        rows = tx.rows(self._sql["lock_event"], parameters)
        if not rows:
            raise UsageError(
                f"no stream event has the id {event_id!r}; `longwatch runner events tail` lists "
                f"those that are kept"
            )
        source, outcome, reason = rows[0]
        if reason in {MALFORMED, OVERSIZE}:
            raise UsageError(f"the stream event {event_id} is {reason}, so no agent can run for it")
        if outcome is None or tx.rows(self._sql["find_message"], parameters):
            raise UsageError(
                f"the stream event {event_id} is queued or runs already; `longwatch runner runs ls "
                f"--event {event_id}` lists its runs"
            )
        tx.execute(self._sql["delete_dead_letter"], parameters)
        tx.execute(self._sql["reopen"], parameters)
        SqlBackend(self._database, f"runner/{source}").put([event_message(event_id)], tx=tx)
