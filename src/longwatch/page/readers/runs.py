"""The event sources, runs and stream events of a runner's store."""

from __future__ import annotations

from dataclasses import dataclass

from longwatch.app.mailboxes import has_mailboxes
from longwatch.mailbox.url import mailbox_stats
from longwatch.page.readers.texts import MAX_SHOWN_CHARS, ShownText, show_body, show_text
from longwatch.page.view import NotFoundError
from longwatch.runner.event_store import EventRecord, EventStore, SourceStatus
from longwatch.runner.run_store import RUNNING, RunRecord, RunStore
from longwatch.store.database import Database

PAGE_SIZE = 50
MAX_RUNNING = 100
STATUSES = (RUNNING, "success", "failure", "timeout", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """An event source. `state` is that of its connection; `stopped` if no runner holds it."""

    name: str
    state: str
    since: float | None
    last_event_at: float | None
    reconnects: int
    queued: int
    running: int
    dead: int
    error: str

    @property
    def is_down(self) -> bool:
        """Whether a runner holds the source, and the last attempt to connect to it has failed."""
        return self.state == "waiting" or (self.state == "connecting" and bool(self.error))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run in a list."""

    id: str
    source: str
    event: str
    attempt: int
    status: str
    cause: str
    error: str
    started_at: float
    ended_at: float | None
    is_cancel_requested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs a list shows. `before` is the id of the last run of the page before."""

    source: str = ""
    status: str = ""
    before: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """One page of runs, the newest first. `next`: the id for the next page; empty on the last."""

    found: tuple[RunRow, ...] = ()
    next: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetail:
    """A run and its event. `can_retry`: the event has ended, and was kept in a form that an agent
    can run for.
    """

    row: RunRow
    record: RunRecord
    event: EventRecord | None
    data: ShownText | None
    output: ShownText | None
    other_runs: tuple[RunRow, ...]
    can_retry: bool


def has_runner(database: Database) -> bool:
    """Whether a runner has used this store."""
    return has_mailboxes(database) and bool(EventStore(database).sources())


def read_sources(database: Database) -> list[SourceRow]:
    """The sources of a store, those that are down first."""
    if not has_mailboxes(database):
        return []
    found = EventStore(database).sources()
    dead = {name: stats.dead for name, stats in mailbox_stats(database)} if found else {}
    rows = [_source(each, dead.get(f"runner/{each.name}", 0)) for each in found]
    return sorted(rows, key=lambda row: (not row.is_down, row.name))


def read_runs(database: Database, wanted: RunFilter, *, limit: int = PAGE_SIZE) -> RunPage:
    """One page of the runs that match."""
    if not has_mailboxes(database):
        return RunPage()
    found = RunStore(database).runs(
        source=wanted.source or None,
        status=wanted.status if wanted.status in STATUSES else None,
        before=wanted.before or None,
        limit=limit + 1,
    )
    shown = tuple(map(_row, found[:limit]))
    return RunPage(found=shown, next=shown[-1].id if len(found) > limit else "")


def running_runs(database: Database) -> tuple[RunRow, ...]:
    """The runs that have not ended, the newest first."""
    return read_runs(database, RunFilter(status=RUNNING), limit=MAX_RUNNING).found


def read_run(database: Database, run_id: str) -> RunDetail:
    """One run with its event. Raises NotFoundError if there is none."""
    runs, events = RunStore(database), EventStore(database)
    record = runs.run(run_id) if has_mailboxes(database) else None
    if record is None:
        raise NotFoundError(f"there is no run {run_id}; it may be older than the retention")
    event = events.event(record.event)
    others = runs.runs(event=record.event, limit=PAGE_SIZE)
    return RunDetail(
        row=_row(record),
        record=record._replace(output=None, artifacts=record.artifacts[:100]),
        event=None if event is None else event._replace(data=""),
        data=None if event is None else show_body(event.data.encode()),
        output=show_text(record.output) if record.output else None,
        other_runs=tuple(_row(each) for each in others if each.id != run_id),
        can_retry=event is not None and event.outcome is not None,
    )


def retry_run(database: Database, run_id: str) -> str:
    """Queue the event of a run again; returns the id of the event. Raises UsageError if it is
    queued or runs already.
    """
    return EventStore(database).retry(_required(database, run_id).event).id


def cancel_run(database: Database, run_id: str) -> bool:
    """Request the end of a run; False if it has ended already."""
    _required(database, run_id)
    return RunStore(database).request_cancel(run_id)


def _required(database: Database, run_id: str) -> RunRecord:
    record = RunStore(database).run(run_id) if has_mailboxes(database) else None
    if record is None:
        raise NotFoundError(f"there is no run {run_id}; it may be older than the retention")
    return record


def _source(status: SourceStatus, dead: int) -> SourceRow:
    return SourceRow(
        name=status.name,
        state=(status.state or "connecting") if status.is_held else "stopped",
        since=status.state_since if status.is_held else None,
        last_event_at=status.last_event_at,
        reconnects=status.reconnects,
        queued=status.queue_depth,
        running=status.running,
        dead=dead,
        error=show_text(status.error, limit=MAX_SHOWN_CHARS).text if status.is_held else "",
    )


def _row(record: RunRecord) -> RunRow:
    return RunRow(
        id=record.id,
        source=record.source,
        event=record.event,
        attempt=record.attempt,
        status=record.status,
        cause=record.cause or "",
        error=show_text(record.error or "", limit=300).text,
        started_at=record.started_at,
        ended_at=record.ended_at,
        is_cancel_requested=record.is_cancel_requested,
    )
