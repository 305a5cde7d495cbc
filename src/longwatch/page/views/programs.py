"""`/programs` and `/containers`: everything that is kept up, by text and state, page by page."""

from __future__ import annotations

from typing import Any

from longwatch.page.data import PageData
from longwatch.page.program_facts import (
    badge_of,
    counts_by_health,
    down_since,
    health_of,
    problem_of,
)
from longwatch.page.view import View, ViewRequest

ROWS = 100
STATES = {
    "": "all",
    "bad": "unhealthy",
    "ok": "up",
    "info": "starting",
    "off": "stopped or ended",
}


def programs(page: PageData, request: ViewRequest) -> View:
    return _listing(page, request, "Programs", containers=False)


def containers(page: PageData, request: ViewRequest) -> View:
    return _listing(page, request, "Containers", containers=True)


def _listing(page: PageData, request: ViewRequest, title: str, *, containers: bool) -> View:
    seen = page.control.status()
    known = [each for each in seen.programs if (each["kind"] == "container") is containers]
    text, state = request.query.get("text", "")[:200], request.query.get("state", "")
    matching = [each for each in known if _matches(each, text, state)]
    pages = max(-(-len(matching) // ROWS), 1)
    number = min(request.number("page"), pages)
    shown = matching[(number - 1) * ROWS : number * ROWS]
    usage = page.control.usage([each["name"] for each in shown if each["up"]])
    facts = {
        "control": seen,
        "usage": usage,
        "rows": [_row(each) for each in shown],
        "total": len(known),
        "matching": len(matching),
        "counts": counts_by_health(known),
        "states": STATES,
        "text": text,
        "state": state,
        "page": number,
        "pages": pages,
        "path": request.path,
        "query": request.query,
        "is_containers": containers,
        "several": len(seen.supervisors) > 1,
        "supervisors": {
            each["pid"]: each.get("command") or "supervisor" for each in seen.supervisors
        },
    }
    return View(title, "programs.html", facts)


def _matches(program: dict[str, Any], text: str, state: str) -> bool:
    words = f"{program['name']} {program.get('group') or ''} {program.get('image') or ''}".lower()
    if text.lower() not in words:
        return False
    return not state or health_of(program) == state


def _row(program: dict[str, Any]) -> dict[str, Any]:
    problem = problem_of(program)
    started = program.get("last_start")
    return {
        "program": program,
        "badge": badge_of(program),
        "since": started if program["up"] else None,
        "down_since": down_since(program),
        "why": "" if problem is None else problem.why,
        "next": "" if problem is None else problem.next,
        "next_at": None if problem is None else problem.next_at,
    }
