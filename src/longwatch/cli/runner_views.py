"""Sources, events and runs of a runner as text and as JSON. The keys of JSON are API."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from longwatch.cli import output
from longwatch.cli.json_views import utc
from longwatch.core.sanitize import shorten

if TYPE_CHECKING:
    from longwatch.runner.event_store import EventRecord, SourceStatus
    from longwatch.runner.run_store import RunRecord

JsonObject = dict[str, Any]

SOURCE_HEAD = ("source", "state", "for", "last event", "reconnects", "queued", "running", "error")
RUN_HEAD = ("run", "source", "attempt", "status", "cause", "began", "took")
DEAD_HEAD = ("event", "source", "received", "severity", "reason", "data")
MAX_DATA_CHARS = 80
MAX_ERROR_CHARS = 60


OUTCOMES = ("open", "run", "expired", "filtered", "dead-lettered", "dropped")
"""The outcomes of events, as a filter; `open`: queued or running."""
STATUSES = ("running", "success", "failure", "timeout", "cancelled")
"""The statuses of runs, as a filter."""


def source_json(source: SourceStatus) -> JsonObject:
    return {
        "source": source.name,
        "state": source_state(source),
        "since": _moment(source.state_since),
        "last_event_id": source.last_event_id,
        "last_event_at": _moment(source.last_event_at),
        "reconnects": source.reconnects,
        "error": source.error,
        "queue_depth": source.queue_depth,
        "running": source.running,
    }


def source_row(source: SourceStatus) -> tuple[object, ...]:
    held = source.is_held
    return (
        source.name,
        source_state(source),
        _age(source.state_since) if held else "",
        _age(source.last_event_at),
        source.reconnects,
        source.queue_depth,
        source.running,
        shorten(source.error, MAX_ERROR_CHARS) if held else "",
    )


def source_state(source: SourceStatus) -> str:
    """The state of its connection; `stopped` if no runner holds the source."""
    return source.state or "connecting" if source.is_held else "stopped"


def event_json(event: EventRecord) -> JsonObject:
    return {
        "event": event.id,
        "source": event.source,
        "stream_id": event.stream_id,
        "received_at": utc(event.received_at),
        "severity": event.severity,
        "outcome": event.outcome,
        "reason": event.reason,
        "ended_at": _moment(event.ended_at),
        "data": event.data,
    }


def event_line(event: EventRecord) -> str:
    outcome = event.outcome or "open"
    reason = f" ({event.reason})" if event.reason else ""
    return (
        f"{utc(event.received_at)}  {event.id}  {event.source}  {event.severity}  "
        f"{outcome}{reason}  {shorten(event.data, MAX_DATA_CHARS)}"
    )


def dead_row(event: EventRecord) -> tuple[object, ...]:
    return (
        event.id,
        event.source,
        utc(event.received_at),
        event.severity,
        event.reason,
        shorten(event.data, MAX_DATA_CHARS),
    )


def run_json(run: RunRecord, *, event: EventRecord | None = None) -> JsonObject:
    facts = {"run": run.id, **run._asdict()}
    del facts["id"]
    facts["cancel_requested"] = facts.pop("is_cancel_requested")
    facts["started_at"], facts["ended_at"] = utc(run.started_at), _moment(run.ended_at)
    facts["artifacts"] = [
        {"path": artifact.path, "bytes": artifact.bytes} for artifact in run.artifacts
    ]
    return {**facts, **({} if event is None else {"data": event.data})}


def run_row(run: RunRecord) -> tuple[object, ...]:
    return (
        run.id,
        run.source,
        run.attempt,
        run.status,
        run.cause,
        utc(run.started_at),
        "" if run.ended_at is None else f"{run.ended_at - run.started_at:.1f} s",
    )


def run_lines(run: RunRecord, event: EventRecord | None) -> list[str]:
    facts = run_json(run)
    text = facts.pop("output") or ""
    facts["artifacts"] = ", ".join(
        f"{each['path']} ({each['bytes']})" for each in facts["artifacts"]
    )
    data = [] if event is None else ["", "event", *_pretty(event.data)]
    wrote = ["", "the end of what it wrote", *text.splitlines()] if text else []
    return [*output.key_value_lines(facts), *data, *wrote]


def _pretty(data: str) -> list[str]:
    try:
        return json.dumps(json.loads(data), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        return data.splitlines()


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else utc(seconds)


def _age(moment: float | None) -> str:
    return "" if moment is None else output.age(max(time.time() - moment, 0.0))
