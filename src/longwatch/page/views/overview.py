"""`/`: what is unhealthy and why, then everything else in numbers."""

from __future__ import annotations

from longwatch.page.data import PageData
from longwatch.page.event_rows import event_rows
from longwatch.page.overview_parts import PARTS
from longwatch.page.program_facts import by_urgency
from longwatch.page.view import View, ViewRequest

MAX_PROBLEMS = 50
_EVENTS = 12


def overview(page: PageData, request: ViewRequest) -> View:
    del request
    seen = page.control.status()
    parts = [part(page) for part in PARTS]
    problems = by_urgency(problem for part in parts for problem in part.problems)
    facts = {
        "control": seen,
        "has_state": page.state is not None,
        "problems": problems[:MAX_PROBLEMS],
        "problem_count": len(problems),
        "tiles": [tile for part in parts for tile in part.tiles],
        "events": event_rows(page.events.latest(_EVENTS, level="warning")),
        "is_read": page.events.is_read,
    }
    return View("Overview", "overview.html", facts)
