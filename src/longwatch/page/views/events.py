"""`/events`: the log of events, by program and level; `/logs` and `/logs/NAME`: ends of logs."""

from __future__ import annotations

from longwatch.page.data import PageData
from longwatch.page.event_rows import event_rows
from longwatch.page.history import MAX_RECORDS
from longwatch.page.view import View, ViewRequest

ROWS = 100
LEVELS = ("debug", "info", "warning", "error")
LINES = (200, 1000, 5000)
MAX_LIVE_LINES = 1000
"""A longer tail is not live: each change would send all of it."""


def events(page: PageData, request: ViewRequest) -> View:
    query = request.query
    level = query.get("level", "") if query.get("level") in LEVELS else "info"
    program, text = query.get("program", "")[:200], query.get("text", "")[:200]
    found = page.events.records(program=program, level=level, text=text)
    pages = max(-(-len(found) // ROWS), 1)
    number = min(request.number("page"), pages)
    facts = {
        "rows": event_rows(found[(number - 1) * ROWS : number * ROWS]),
        "found": len(found),
        "levels": LEVELS,
        "level": level,
        "program": program,
        "text": text,
        "most": MAX_RECORDS,
        "is_read": page.events.is_read,
        "has_state": page.state is not None,
        "page": number,
        "pages": pages,
        "path": request.path,
        "query": request.query,
    }
    return View("Events", "events.html", facts)


def log(page: PageData, request: ViewRequest) -> View:
    name = request.parameters["name"]
    lines = request.number("lines", LINES[0], most=LINES[-1])
    facts = {
        "name": name,
        "log": page.logs.tail(name, lines),
        "lines": lines,
        "choices": LINES,
        "is_live": lines <= MAX_LIVE_LINES,
        "path": request.path,
        "query": request.query,
    }
    return View(f"Log of {name}", "log.html", facts)


def logs(page: PageData, request: ViewRequest) -> View:
    del request
    return View("Logs", "logs.html", {"names": page.logs.names()})
