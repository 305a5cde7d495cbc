"""Writes the mailbox of one event source, for the intake.

Every method but `number` runs in a transaction that the caller opened. A message has the id of its
event, and its body names the event. The event's data stays in the table of events. Messages that
wait count towards SOURCE_QUEUE_SIZE, those that run do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.records import NewMessage
from longwatch.mailbox.sql_dead_letters import SqlDeadLetters
from longwatch.mailbox.sql_queue import SqlQueueFinder
from longwatch.mailbox.sql_sender import SqlSender
from longwatch.runner.policy import RunnerPolicy, SourceSpec
from longwatch.store.claims import Claims
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries


class EndedEvent(NamedTuple):
    """An event and its outcome."""

    id: str
    outcome: str
    reason: str = ""


class RemovedMessage(NamedTuple):
    """A message that a full queue has dropped."""

    seq: int
    id: str
    fault_key: str | None


def mailbox_limits(policy: RunnerPolicy) -> MailboxLimits:
    """Return the limits of the mailboxes of a runner. The intake limits how many events wait."""
    return MailboxLimits(max_failures=policy.max_attempts, dead_retention=policy.event_retention)


def event_message(event_id: str) -> NewMessage:
    """Return the message of an event."""
    return NewMessage(id=event_id, body=b'{"event":"%s"}' % event_id.encode())


def end_events(tx: Transaction, sql: str, ended: Iterable[EndedEvent]) -> int:
    """Set the outcomes of open events. Return how many were open."""
    return tx.execute_many(sql, [event._asdict() for event in ended])


class EventQueue:
    """The mailbox of one source."""

    def __init__(self, database: Database, source: SourceSpec, policy: RunnerPolicy) -> None:
        limits = mailbox_limits(policy)
        self.source = source.name
        sql = load_queries("longwatch.mailbox", "queries", database.dialect)
        claims = Claims(
            dialect=database.dialect, table="longwatch_messages", owners=database.owners
        )
        dead_letters = SqlDeadLetters(source.mailbox, sql, claims)
        self._sender = SqlSender(source.mailbox, sql, dead_letters, max_size=None)
        self._finder = SqlQueueFinder(database, source.mailbox, sql, limits)
        self._sql = load_queries("longwatch.runner", "queries", database.dialect)

    @property
    def number(self) -> int:
        """Return the queue number. Inserts the mailbox if it does not exist. Blocks."""
        return self._finder.find().number

    def forget_number(self) -> None:
        """Forget the queue number, so that the next call looks it up again."""
        self._finder.forget()

    def put(self, tx: Transaction, queue: int, event_ids: Sequence[str]) -> None:
        self._sender.put(tx, queue, [event_message(event_id) for event_id in event_ids])

    def drop_oldest(
        self, tx: Transaction, queue: int, count: int, *, reason: str, error: str
    ) -> list[RemovedMessage]:
        """Dead-letter the oldest waiting messages. The outcome of their events is `dropped`."""
        rows = tx.rows(self._sql["find_oldest"], {"queue": queue, "limit": count})
        removed = [RemovedMessage(*row) for row in rows]
        if removed:
            letters = [{"seq": each.seq, "reason": reason, "error": error} for each in removed]
            tx.defer_many(self._sql["dead_letter_messages"], letters)
            self._delete(tx, [each.seq for each in removed])
            ended = [EndedEvent(each.id, "dropped", reason)._asdict() for each in removed]
            tx.defer_many(self._sql["end_events"], ended)
        return removed

    def expire(
        self, tx: Transaction, queue: int, *, max_age: float, limit: int
    ) -> list[tuple[str, float]]:
        """Remove messages that have waited too long and were never started, and end their events.
        Return the id and age of each.
        """
        parameters = {"queue": queue, "max_age": float(max_age), "limit": limit}
        rows = tx.rows(self._sql["lock_overdue"], parameters)
        if rows:
            self._delete(tx, [seq for seq, _, _ in rows])
            end_events(tx, self._sql["end_events"], [EndedEvent(row[1], "expired") for row in rows])
        return [(event_id, float(age)) for _, event_id, age in rows]

    def _delete(self, tx: Transaction, seqs: Iterable[int]) -> None:
        tx.execute_many(self._sql["delete_messages"], [{"seq": seq} for seq in seqs])
