"""`/workers`: worker processes with the age of their beats, and saved stacks."""

from __future__ import annotations

from longwatch.page.data import PageData
from longwatch.page.event_rows import stacks_name
from longwatch.page.view import View, ViewRequest
from longwatch.page.worker_facts import is_late, worker_badge

ROWS = 100
_STACKS = 20


def workers(page: PageData, request: ViewRequest) -> View:
    found = page.control.workers()
    pages = max(-(-len(found) // ROWS), 1)
    number = min(request.number("page"), pages)
    saved = page.logs.stack_files()
    names = {each.name for each in saved}
    known = {stacks_name(record): record for record in page.events.records() if stacks_name(record)}
    facts = {
        "control": page.control.status(),
        "workers": [
            {
                **each,
                "badge": worker_badge(each),
                "loops": [{**loop, "is_late": is_late(loop, each)} for loop in each["loops"]],
                "stacks": (each["crash_file"] or "").rpartition("/")[2],
            }
            for each in found[(number - 1) * ROWS : number * ROWS]
        ],
        "total": len(found),
        "saved_names": names,
        "saved": [(each, known.get(each.name)) for each in saved[:_STACKS]],
        "more_saved": max(len(saved) - _STACKS, 0),
        "page": number,
        "pages": pages,
        "path": request.path,
        "query": request.query,
    }
    return View("Workers", "workers.html", facts)


def stacks(page: PageData, request: ViewRequest) -> View:
    """`/stacks/FILE`: a file of saved stacks."""
    name = request.parameters["file"]
    return View(f"Stacks {name}", "stacks.html", {"name": name, "log": page.logs.stacks(name)})
