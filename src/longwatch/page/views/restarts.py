"""`/restarts`: restarts and failures of the last day, and what is down since when."""

from __future__ import annotations

from collections import Counter

from longwatch.page.charts import bar_chart
from longwatch.page.data import PageData
from longwatch.page.history import HourCount
from longwatch.page.program_facts import badge_of, down_since, problem_of
from longwatch.page.view import View, ViewRequest

ROWS = 50
_MAX_DOWN = 100


def restarts(page: PageData, request: ViewRequest) -> View:
    hours = page.events.hours()
    moments = [hour for hour, _ in hours]
    restarted = [count.restarts.total() for _, count in hours]
    failed = [count.failures.total() for _, count in hours]
    ranked = _ranked(hours)
    pages = max(-(-len(ranked) // ROWS), 1)
    number = min(request.number("page"), pages)
    seen = page.control.status()
    down = [each for each in seen.programs if down_since(each) is not None]
    facts = {
        "control": seen,
        "chart": bar_chart(moments, [restarted, failed], height=120),
        "by_hour": list(zip(moments, restarted, failed, strict=True)),
        "restarts": sum(restarted),
        "failures": sum(failed),
        "programs": [
            (name, totals, _program_chart(hours, name))
            for name, totals in ranked[(number - 1) * ROWS : number * ROWS]
        ],
        "down": [
            {
                "program": each,
                "badge": badge_of(each),
                "since": down_since(each),
                "problem": problem_of(each),
            }
            for each in sorted(down, key=lambda each: down_since(each) or 0.0)[:_MAX_DOWN]
        ],
        "down_count": len(down),
        "supervisors": {each["pid"]: each for each in seen.supervisors},
        "page": number,
        "pages": pages,
        "path": request.path,
        "query": request.query,
        "is_read": page.events.is_read,
    }
    return View("Restarts", "restarts.html", facts)


def _ranked(hours: list[tuple[int, HourCount]]) -> list[tuple[str, tuple[int, int]]]:
    """The programs with their restarts and failures, most failures first."""
    restarted: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for _, count in hours:
        restarted.update(count.restarts)
        failed.update(count.failures)
    totals = {name: (restarted[name], failed[name]) for name in {*restarted, *failed}}
    return sorted(totals.items(), key=lambda each: (-each[1][1], -each[1][0], each[0]))


def _program_chart(hours: list[tuple[int, HourCount]], name: str) -> object:
    failures = [count.failures[name] for _, count in hours]
    return bar_chart([hour for hour, _ in hours], [failures], height=20)
