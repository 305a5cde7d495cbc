"""Deletes events that are older than the retention and have their outcome.

Their dead letters have the retention of the mailbox (`MailboxLimits.dead_retention`), and the
engine's sweep deletes them. As long as an event is stored, the server may send it again without
effect.
"""

from __future__ import annotations

from longwatch.store.database import Database
from longwatch.store.named_sql import load_queries

BATCH = 500
MAX_BATCHES = 200
"""The most batches in one sweep. The next sweep continues."""


class EventRetention:
    """Deletes old events of all sources. Blocks on the store. Thread-safe."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._parameters = {"retention": float(seconds)}
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)

    def run(self) -> int:
        """Delete old events in small transactions. Return how many."""
        deleted = 0
        for _ in range(MAX_BATCHES):
            if not self._database.read(
                lambda tx: tx.rows(self._sql["has_old_events"], self._parameters)
            ):
                break
            deleted += self._database.write(
                lambda tx: tx.execute(
                    self._sql["delete_old_events"], {**self._parameters, "limit": BATCH}
                )
            )
        return deleted
