"""`/programs/NAME`: one program: why it is as it is, its past, its log, and what can be done."""

from __future__ import annotations

from typing import Any

from longwatch.page.charts import Chart, bar_chart
from longwatch.page.data import LogEnd, PageData, SavedStacks
from longwatch.page.event_rows import event_rows, stacks_name
from longwatch.page.program_facts import (
    BAD,
    INFO,
    OFF,
    OK,
    WARN,
    Badge,
    badge_of,
    down_since,
    end_text,
    problem_of,
)
from longwatch.page.view import (
    ActionDone,
    Confirmation,
    NotFoundError,
    View,
    ViewRequest,
    path_to,
)
from longwatch.page.worker_facts import is_late, worker_badge

ACTION_SECONDS = 15.0
"""Seconds that a request may take before the page says that it is still going on."""
_EVENTS = 30
_LOG_LINES = 80
_STACKS = 10
_PROBE_BADGES = {
    "success": (OK, "passes"),
    "failed": (BAD, "fails"),
    "pending": (INFO, "pending"),
    "running": (INFO, "running"),
}
_QUESTIONS = {
    "start": ("Start {}?", "The program is started.", "Start"),
    "stop": (
        "Stop {}?",
        "The program gets its stop signal and its grace. It stays stopped until it is started.",
        "Stop",
    ),
    "restart": (
        "Restart {}?",
        "The program is stopped with its grace and started again; its failures are forgotten.",
        "Restart",
    ),
    "reset": (
        "Reset {}?",
        "Failures and breaker are forgotten; a program that waits is started now.",
        "Reset",
    ),
}
_PAST = {"start": "started", "stop": "stopped", "restart": "restarted", "reset": "reset"}


def program(page: PageData, request: ViewRequest) -> View:
    name = request.parameters["name"]
    seen = page.control.status()
    namesakes = [each for each in seen.programs if each["name"] == name]
    found = _chosen(namesakes, request.query.get("supervisor", ""))
    if found is None and name not in page.logs.names() and not page.events.latest(1, program=name):
        raise NotFoundError(f"there is no program {name}")
    facts = {
        "control": seen,
        "name": name,
        "program": found,
        "namesakes": namesakes,
        "path": request.path,
        "workers": [_worker(each) for each in page.control.workers() if each["program"] == name],
        "events": event_rows(page.events.latest(_EVENTS, program=name)),
        "stacks": _stacks(page, name),
        "log": _log(page, name),
        "log_lines": _LOG_LINES,
        "chart": _chart(page, name),
        **({} if found is None else _program_facts(page, found)),
    }
    return View(name, "program.html", facts)


def _chosen(namesakes: list[dict[str, Any]], supervisor: str) -> dict[str, Any] | None:
    """The program of the supervisor with this pid, else the one that is worst off."""
    own = [each for each in namesakes if str(each.get("supervisor")) == supervisor]
    ranked = own or sorted(namesakes, key=lambda each: problem_of(each) is None)
    return next(iter(ranked), None)


def _program_facts(page: PageData, found: dict[str, Any]) -> dict[str, object]:
    return {
        "badge": badge_of(found),
        "problem": problem_of(found),
        "down_since": down_since(found),
        "last_end": end_text(found),
        "usage": page.control.usage([found["name"]]).get(found["name"]) if found["up"] else None,
        "probes": [
            (kind, _probe_badge(probe), probe) for kind, probe in (found["probes"] or {}).items()
        ],
        "actions": _actions(found),
    }


def _probe_badge(probe: dict[str, Any]) -> Badge:
    if probe["failures"] and probe["state"] == "running":
        return Badge(kind=WARN, text="failing")
    kind, text = _PROBE_BADGES.get(probe["state"], (OFF, probe["state"]))
    return Badge(kind=kind, text=text)


def _actions(found: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """The buttons: path, name, label for screen readers, and whether it is dangerous."""
    if found["desired"] == "stopped" or found["state"] == "ended":
        names = ["start"]
    else:
        names = ["restart", "stop"]
    if found["state"] in {"broken", "waiting"} or found["breaker"]["phase"] != "closed":
        names.append("reset")
    return [
        (
            path_to("programs", found["name"], name),
            _QUESTIONS[name][2],
            _QUESTIONS[name][0].format(found["name"]).rstrip("?"),
            name == "stop",
        )
        for name in names
    ]


def _worker(worker: dict[str, Any]) -> dict[str, Any]:
    loops = [{**each, "is_late": is_late(each, worker)} for each in worker["loops"]]
    return {**worker, "badge": worker_badge(worker), "loops": loops}


def _stacks(page: PageData, name: str) -> list[SavedStacks]:
    """The saved stacks of a program. Their files have the names of groups, so its processes are
    known by the events: their pids, and the files that these name.
    """
    records = page.events.records(program=name, level="debug")
    pids = {record.get("pid") for record in records if record.get("program") == name}
    names = {stacks_name(record) for record in records}
    saved = page.logs.stack_files()
    return [each for each in saved if each.pid in pids or each.name in names][:_STACKS]


def _log(page: PageData, name: str) -> LogEnd | None:
    try:
        return page.logs.tail(name, _LOG_LINES)
    except NotFoundError:
        return None


def _chart(page: PageData, name: str) -> Chart | None:
    hours = page.events.hours()
    failures = [count.failures[name] for _, count in hours]
    restarts = [count.restarts[name] for _, count in hours]
    if not any((*failures, *restarts)):
        return None
    return bar_chart([hour for hour, _ in hours], [restarts, failures], height=40)


# --- actions ---


class ProgramAction:
    """Asks for, and does, one control command on a program."""

    def __init__(self, command: str) -> None:
        self._command = command

    def confirm(self, page: PageData, request: ViewRequest) -> Confirmation:
        name = request.parameters["name"]
        page.control.status().program(name)
        question, text, button = _QUESTIONS[self._command]
        return Confirmation(
            title=question.format(name),
            text=text,
            button=button,
            back=path_to("programs", name),
            subject=name,
            program=name,
            danger=self._command == "stop",
        )

    def run(self, page: PageData, request: ViewRequest) -> ActionDone:
        name = request.parameters["name"]
        page.control.request(self._command, name, timeout=ACTION_SECONDS)
        page.control.forget()
        return ActionDone(path_to("programs", name), f"{name} was {_PAST[self._command]}.")
