"""The run records of a store, and the outcomes of the events that were run.

A run is open from `begin` until its end is written. These write the end:

    its runner       in the transaction that settles the message (`settle`)
    its runner       alone, if the lease is lost and there is no message to settle (`end`)
    another runner   when it begins the next run of the event, or gives the event up
    a later start    for the runs of a runner that certainly is dead (`survivors.py`)
    a sweep          when the message is not leased to its runner any more (`end_lost_runs`)

Each of them ends open runs only, so the first counts. An end by others than its runner is
`lease_lost`, or `cancelled` if it was to be cancelled.

A cancel that was accepted holds, also if the runner of the run does not live to see it: no further
run of the event begins. The transaction that ends the run dead-letters the event as `cancelled`:

    its runner       if the run ended by itself and the event would be queued again (`settle`);
                     the run keeps its own end
    a later start    with the message that the dead runner has left leased
    a sweep          if the message waits
    the next claim   which begins no run, and settles the message instead (`begin`); until then the
                     run stays open, because only the claimant may settle
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from longwatch.engine.claim_source import GivenUp, Settlement
from longwatch.host.incarnation import Incarnation, boot_id
from longwatch.runner.run_end import CANCELLED, EventOutcome, RunEnd, RunSettlement
from longwatch.runner.workspace import Artifact
from longwatch.store.claims import Claim
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries

CANCEL_CHANNEL = "runner-cancel"
RUNNING = "running"
"""The status of an open run in filters and lists."""
_LOST_ERROR = "its runner ended, or lost the lease of the event"
_CANCELLED_ERROR = "it was to be cancelled when its runner ended, or lost the lease of the event"
_COLUMNS = (
    "id, event, source, attempt, started_at, ended_at, coalesce(status, 'running'), cause, error, "
    "output, artifacts, cpu_seconds, max_rss, pid, workspace, cancel_requested"
)


class QueuedEvent(NamedTuple):
    """A queued stream event. `age`: seconds since it was queued. `runs`: how many runs it has had.
    `recent_runs`: those since it was last queued, which an operator may have done again.
    """

    source: str
    data: str
    severity: str
    received_at: float
    age: float
    runs: int
    recent_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run that is about to begin."""

    id: str
    event: str
    source: str
    attempt: int
    workspace: str


class RunRecord(NamedTuple):
    """One run, for the command line. `status` is `running` until it has ended."""

    id: str
    event: str
    source: str
    attempt: int
    started_at: float
    ended_at: float | None
    status: str
    cause: str | None
    error: str | None
    output: str | None
    artifacts: tuple[Artifact, ...]
    cpu_seconds: float | None
    max_rss: int | None
    pid: int | None
    workspace: str
    is_cancel_requested: bool


class OpenRun(NamedTuple):
    """A run without an end, and the owner that runs it: None if the owner is deleted."""

    id: str
    source: str
    pid: int | None
    pid_start: int | None
    incarnation: Incarnation | None


class CancelledEventError(Exception):
    """An earlier run of the event is to be cancelled: settle the event as that, and run nothing."""


class OldRun(NamedTuple):
    """A run that is older than the retention."""

    seq: int
    id: str
    workspace: str


class RunStore:
    """Reads and writes runs. Every method blocks on the store. Methods that take a transaction do
    nothing but SQL. Thread-safe.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sql = load_queries(
            "longwatch.runner", "run_queries", database.dialect, columns=_COLUMNS
        )
        self._queue_sql = load_queries("longwatch.runner", "queries", database.dialect)

    # --- the life of a run ---

    def find_event(self, event_id: str) -> QueuedEvent | None:
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_event"], {"id": event_id}))
        return QueuedEvent(*rows[0]) if rows else None

    def begin(self, run: NewRun, claim: Claim) -> bool:
        """Insert an open run, and end earlier runs of the event that were left open. Return False
        if the claim no longer matches, so that the run must not start. Raises CancelledEventError
        if an earlier run is to be cancelled.
        """
        facts = {
            **claim._asdict(),
            "id": run.id,
            "source": run.source,
            "attempt": run.attempt,
            "workspace": run.workspace,
            "boot": boot_id(),
        }

        def work(tx: Transaction) -> bool | None:
            if run.attempt > 1:
                self._end_lost_of_event(tx, run.event)
                if tx.rows(self._sql["find_cancelled_of_event"], {"event": run.event}):
                    return None
            return tx.execute(self._sql["begin"], facts) == 1

        has_begun = self._database.write(work)
        if has_begun is None:
            raise CancelledEventError(_CANCELLED_ERROR)
        return has_begun

    def record_pid(self, run_id: str, *, pid: int, start: int) -> None:
        facts = {"id": run_id, "pid": pid, "pid_start": start or None}
        self._database.write(lambda tx: tx.execute(self._sql["record_pid"], facts))

    def end(self, run_id: str, end: RunEnd) -> None:
        """End a run whose message belongs to another runner now."""
        self._database.write(lambda tx: self._end(tx, run_id, end))

    # --- inside the transactions of a claim source ---

    def settle(self, tx: Transaction, settled: Sequence[tuple[Settlement, bool]]) -> None:
        """Write the ends of runs and the outcomes of their events in the transaction that settles
        the messages. A run whose settlement was refused ends as `lease_lost`.
        """
        for settlement, is_settled in settled:
            if settlement.result is None:
                continue
            decided = msgspec.json.decode(settlement.result, type=RunSettlement)
            if (end := decided.end) is not None:
                self._end(tx, decided.run, end if is_settled else end.lost())
            if is_settled and decided.outcome is not None:
                self._end_cancelled_of_event(tx, decided.event)
                self._set_outcome(tx, decided.event, decided.outcome, decided.reason)
            elif is_settled and tx.rows(self._sql["is_cancel_requested"], {"id": decided.run}):
                self._dead_letter_cancelled(tx, decided.event)

    def give_up(self, tx: Transaction, given_up: Sequence[GivenUp]) -> None:
        """Set the outcomes of events whose messages their mailboxes have dead-lettered."""
        for each in given_up:
            self._end_lost_of_event(tx, each.message_id)
            self._end_cancelled_of_event(tx, each.message_id)
            self._set_outcome(tx, each.message_id, EventOutcome.DEAD_LETTERED, each.reason)

    # --- runs that were left open ---

    def open_runs(self) -> list[OpenRun]:
        """Return the open runs of this boot of this machine."""
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_open"], {"boot": boot_id()}))
        return [
            OpenRun(run_id, source, pid, start, None if text is None else Incarnation.parse(text))
            for run_id, source, pid, start, text in rows
        ]

    def end_lost(self, run_id: str) -> bool:
        """End one open run whose runner certainly is dead. Return False if it has ended, or if the
        claimant of its event will end it.
        """
        facts = {"id": run_id, "error": _LOST_ERROR}

        def work(tx: Transaction) -> bool:
            if tx.execute(self._sql["end_lost"], facts) == 1:
                return True
            cancelled = tx.rows(self._sql["find_cancelled_run"], {"id": run_id})
            return any(self._cancel_lost(tx, event, owner=owner) for event, owner in cancelled)

        return self._database.write(work)

    def end_lost_runs(self) -> int:
        """End all open runs whose runner has lost their lease. Return how many."""
        if not self._database.read(lambda tx: tx.rows(self._sql["has_lost"])):
            return 0
        facts = {"error": _LOST_ERROR}

        def work(tx: Transaction) -> int:
            ended = tx.execute(self._sql["end_all_lost"], facts)
            cancelled = tx.rows(self._sql["find_all_cancelled"])
            return ended + sum(self._cancel_lost(tx, event) for (event,) in cancelled)

        return self._database.write(work)

    # --- cancel ---

    def request_cancel(self, run_id: str) -> bool:
        """Request that the runner of an open run, in any process, ends it. Return False if there is
        no such run, or it has ended.
        """

        def work(tx: Transaction) -> bool:
            tx.notify(CANCEL_CHANNEL)
            return tx.execute(self._sql["request_cancel"], {"id": run_id}) == 1

        return self._database.write(work)

    def cancel_requests(self) -> list[str]:
        """Return the open runs of all runners that are to be cancelled."""
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_cancelled"]))
        return [run_id for (run_id,) in rows]

    # --- for the command line ---

    def runs(
        self,
        *,
        source: str | None = None,
        event: str | None = None,
        status: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[RunRecord]:
        """Return the newest runs that match. `status`: success, failure, timeout, cancelled or
        running. `before`: only runs that began before the run of this id.
        """
        facts = {
            "source": source,
            "event": event,
            "status": status,
            "before": before,
            "limit": limit,
        }
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_runs"], facts))
        return [_run_record(row) for row in rows]

    def run(self, run_id: str) -> RunRecord | None:
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_run"], {"id": run_id}))
        return _run_record(rows[0]) if rows else None

    # --- retention ---

    def old_runs(self, *, retention: float, after: int, limit: int) -> list[OldRun]:
        """Return ended runs older than the retention, by number, with numbers above `after`."""
        facts = {"retention": retention, "after": after, "limit": limit}
        rows = self._database.read(lambda tx: tx.rows(self._sql["find_old"], facts))
        return [OldRun(*row) for row in rows]

    def delete(self, run_ids: Sequence[str]) -> None:
        def work(tx: Transaction) -> None:
            for each in run_ids:
                tx.execute(self._sql["delete_run"], {"id": each})

        self._database.write(work)

    # --- statements ---

    def _end(self, tx: Transaction, run_id: str, end: RunEnd) -> None:
        facts = msgspec.structs.asdict(end)
        artifacts = msgspec.json.encode(facts.pop("artifacts")).decode()
        tx.execute(self._sql["end"], {**facts, "id": run_id, "artifacts": artifacts})

    def _end_lost_of_event(self, tx: Transaction, event: str) -> None:
        tx.execute(self._sql["end_lost_of_event"], {"event": event, "error": _LOST_ERROR})

    def _end_cancelled_of_event(self, tx: Transaction, event: str) -> int:
        facts = {"event": event, "error": _CANCELLED_ERROR}
        return tx.execute(self._sql["end_cancelled_of_event"], facts)

    def _cancel_lost(self, tx: Transaction, event: str, *, owner: int | None = None) -> int:
        """End the open runs of an event that are to be cancelled, and the event with them. Return
        how many runs; 0 if the message is leased to an owner other than `owner`, which ends them.
        """
        is_dead_lettered = self._dead_letter_cancelled(tx, event, owner=owner)
        if not is_dead_lettered and tx.rows(self._sql["has_message"], {"event": event}):
            return 0
        return self._end_cancelled_of_event(tx, event)

    def _dead_letter_cancelled(
        self, tx: Transaction, event: str, *, owner: int | None = None
    ) -> bool:
        """Dead-letter the message of an event, if it waits or is leased to this owner."""
        rows = tx.rows(self._sql["lock_message"], {"event": event, "owner": owner})
        for (seq,) in rows:
            letter = {"seq": seq, "reason": CANCELLED, "error": _CANCELLED_ERROR}
            tx.execute_many(self._queue_sql["dead_letter_messages"], [letter])
            tx.execute_many(self._queue_sql["delete_messages"], [{"seq": seq}])
            self._set_outcome(tx, event, EventOutcome.DEAD_LETTERED, CANCELLED)
        return bool(rows)

    def _set_outcome(self, tx: Transaction, event: str, outcome: str, reason: str) -> None:
        facts = {"event": event, "outcome": outcome, "reason": reason}
        tx.execute(self._sql["set_outcome"], facts)


def _run_record(row: tuple[Any, ...]) -> RunRecord:
    record = RunRecord(*row)
    artifacts = msgspec.json.decode(row[10] or "[]", type=tuple[Artifact, ...])
    return record._replace(
        artifacts=artifacts, is_cancel_requested=bool(record.is_cancel_requested)
    )
