"""`/runner` and one run; retry and cancel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from longwatch.core.masking import mask_text
from longwatch.page.across_stores import ask_all, ask_database, on_database, problems_of
from longwatch.page.data import LogEnd, PageData, read_end
from longwatch.page.history import moment_of
from longwatch.page.program_facts import BAD, INFO, OFF, OK, WARN, Badge
from longwatch.page.readers.runs import (
    STATUSES,
    RunDetail,
    RunFilter,
    RunPage,
    RunRow,
    SourceRow,
    cancel_run,
    read_run,
    read_runs,
    read_sources,
    retry_run,
    running_runs,
)
from longwatch.page.stores import StoreEntry
from longwatch.page.view import (
    ActionDone,
    Confirmation,
    NotFoundError,
    View,
    ViewRequest,
    path_to,
)
from longwatch.store.database import Database

OUTPUT_LINES = 200
_BREAKER_EVENTS = {
    "work_breaker_opened": Badge(kind=BAD, text="breaker open"),
    "work_breaker_trial_started": Badge(kind=WARN, text="one trial runs"),
    "work_breaker_closed": Badge(kind=OK, text="breaker closed"),
}
_SOURCE_KINDS = {
    "connected": OK,
    "connecting": INFO,
    "waiting": BAD,
    "ended": OFF,
    "stopped": OFF,
}
_RUN_KINDS = {
    "running": INFO,
    "success": OK,
    "failure": BAD,
    "timeout": BAD,
    "cancelled": OFF,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerStoreView:
    """The sources and running runs of one store."""

    entry: StoreEntry
    sources: list[SourceRow]
    running: tuple[RunRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerState:
    """What the last event said of the work breaker of a runner."""

    badge: Badge
    program: str
    at: float
    failures: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTail:
    """The end of what a run wrote to one stream."""

    stream: str
    end: LogEnd


def runner(page: PageData, request: ViewRequest) -> View:
    """The sources and runs of all stores that a runner uses."""
    answers = ask_all(page, on_database(_sources_and_runs))
    stores = [
        RunnerStoreView(entry=answer.entry, sources=answer.result[0], running=answer.result[1])
        for answer in answers
        if answer.result and answer.result[0]
    ]
    key = request.query.get("store", "")
    chosen = next((each.entry for each in stores if not key or each.entry.key == key), None)
    query = request.query
    wanted = RunFilter(
        source=query.get("source", "")[:200],
        status=query.get("status", ""),
        before=query.get("before", "")[:100],
    )
    found = RunPage()
    if chosen is not None:
        found = ask_database(page, chosen.key, partial(read_runs, wanted=wanted))
    facts = {
        "stores": stores,
        "chosen": chosen,
        "sources": sorted(
            {row.name for each in stores if each.entry == chosen for row in each.sources}
        ),
        "statuses": STATUSES,
        "wanted": wanted,
        "found": found,
        "breakers": breakers(page),
        "problems": problems_of(answers),
        "source_badge": source_badge,
        "run_badge": run_badge,
        "path": request.path,
        "query": request.query,
    }
    return View("Runner", "runner.html", facts)


def run(page: PageData, request: ViewRequest) -> View:
    """One run: its facts, its event and the end of its output."""
    key, run_id = request.parameters["store"], request.parameters["id"]
    found = ask_database(page, key, partial(read_run, run_id=run_id))
    facts = {
        "entry": page.stores.entry(key),
        "key": key,
        "found": found,
        "row": found.row,
        "record": found.record,
        "badge": run_badge(found.row),
        "tails": output_tails(found),
        "run_badge": run_badge,
        "here_path": path_to("runner", key, "runs", run_id),
    }
    return View(f"Run {run_id}", "run.html", facts)


def source_badge(row: SourceRow) -> Badge:
    """The state of the connection of a source."""
    kind = BAD if row.is_down else _SOURCE_KINDS.get(row.state, INFO)
    return Badge(kind=kind, text="reconnecting" if row.state == "waiting" else row.state)


def run_badge(row: RunRow) -> Badge:
    """The state of a run."""
    if row.status == "running" and row.is_cancel_requested:
        return Badge(kind=WARN, text="being cancelled")
    return Badge(kind=_RUN_KINDS.get(row.status, INFO), text=row.status)


def output_tails(found: RunDetail) -> list[OutputTail]:
    """The ends of stdout and stderr, if the workspace is on this machine."""
    tails = []
    for stream in ("stdout", "stderr"):
        try:
            end = read_end(Path(found.record.workspace) / f"{stream}.log", OUTPUT_LINES)
        except (NotFoundError, ValueError):
            continue
        tails.append(OutputTail(stream=stream, end=masked_end(end)))
    return tails


def masked_end(end: LogEnd) -> LogEnd:
    return LogEnd([mask_text(line) for line in end.lines], end.size, end.cut)


def breakers(page: PageData) -> list[BreakerState]:
    """The work breakers that are not closed, by the last event of each runner."""
    last: dict[str, dict[str, Any]] = {}
    for record in page.events.records(text="work_breaker_"):
        last.setdefault(str(record.get("program", "")), record)
    return [
        BreakerState(
            badge=_BREAKER_EVENTS[str(record["event"])],
            program=program,
            at=moment_of(record),
            failures=int(record.get("failures", 0)),
        )
        for program, record in sorted(last.items())
        if record.get("event") in _BREAKER_EVENTS and record["event"] != "work_breaker_closed"
    ]


def _sources_and_runs(database: Database) -> tuple[list[SourceRow], tuple[RunRow, ...]]:
    sources = read_sources(database)
    return sources, running_runs(database) if sources else ()


# --- actions ---


def confirm_retry(page: PageData, request: ViewRequest) -> Confirmation:
    return _confirmation(
        page,
        request,
        title=f"Queue the event of run {request.parameters['id']} again?",
        text="Queues the event as if it had just arrived, with all its attempts. An agent runs "
        "for it again.",
        button="Queue again",
        danger=False,
    )


def retry(page: PageData, request: ViewRequest) -> ActionDone:
    key, run_id = request.parameters["store"], request.parameters["id"]
    event = ask_database(page, key, partial(retry_run, run_id=run_id))
    return ActionDone(path_to("runner", key, "runs", run_id), f"Event {event} is queued again.")


def confirm_cancel(page: PageData, request: ViewRequest) -> Confirmation:
    return _confirmation(
        page,
        request,
        title=f"Cancel run {request.parameters['id']}?",
        text="Ends the agent and its processes, and dead-letters the event.",
        button="Cancel the run",
        danger=True,
    )


def cancel(page: PageData, request: ViewRequest) -> ActionDone:
    key, run_id = request.parameters["store"], request.parameters["id"]
    back = path_to("runner", key, "runs", run_id)
    if not ask_database(page, key, partial(cancel_run, run_id=run_id)):
        return ActionDone(back, "The run has ended, so there is nothing to cancel.", ok=False)
    return ActionDone(back, f"Run {run_id} is being cancelled.")


def _confirmation(  # noqa: PLR0913 - the texts of a page
    page: PageData, request: ViewRequest, *, title: str, text: str, button: str, danger: bool
) -> Confirmation:
    key, run_id = request.parameters["store"], request.parameters["id"]
    entry = page.stores.entry(key)
    return Confirmation(
        title=title,
        text=f"{text} Store: {entry.shown}.",
        button=button,
        back=path_to("runner", key, "runs", run_id),
        subject=f"{entry.shown} run {run_id}",
        danger=danger,
    )
