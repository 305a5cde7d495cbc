"""`/`: what is unhealthy and why, then everything else in numbers."""

from __future__ import annotations

from dataclasses import replace

from longwatch.page.data import ControlView, PageData
from longwatch.page.program_facts import BAD, Problem, by_urgency, counts_by_kind, problem_of
from longwatch.page.view import View, ViewRequest, path_to

MAX_PROBLEMS = 50
_EVENTS = 12


def overview(page: PageData, request: ViewRequest) -> View:
    seen = page.control.status()
    problems = by_urgency([*program_problems(seen), *store_problems(page)])
    processes = [each for each in seen.programs if each["kind"] != "container"]
    containers = [each for each in seen.programs if each["kind"] == "container"]
    facts = {
        "control": seen,
        "has_state": page.state is not None,
        "problems": problems[:MAX_PROBLEMS],
        "problem_count": len(problems),
        "programs": len(processes),
        "program_counts": counts_by_kind(processes),
        "containers": len(containers),
        "container_counts": counts_by_kind(containers),
        "events": page.events.latest(_EVENTS, level="warning"),
        "query": request.query,
    }
    return View("Overview", "overview.html", facts)


def program_problems(seen: ControlView) -> list[Problem]:
    """The programs that are not as they should be, each with a link."""
    return [
        replace(problem, href=path_to("programs", problem.subject))
        for program in seen.programs
        if (problem := problem_of(program)) is not None
    ]


def store_problems(page: PageData) -> list[Problem]:
    """The stores that do not answer."""
    return [
        Problem(
            kind=BAD,
            subject=each.entry.shown,
            what="store does not answer",
            why=each.reason,
            since=each.since,
        )
        for each in page.stores.problems()
    ]
