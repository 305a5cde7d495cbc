"""How programs stand, in words: the table of `longwatch status`, and one line about each program
after a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longwatch.cli.output import age, pluralize, table

JsonObject = dict[str, Any]

HEADERS = ("program", "state", "pid", "up for", "restarts", "ready", "last end", "")


def status_table(programs: Iterable[JsonObject], *, now: float) -> list[str]:
    """The table; `now` is wall time."""
    return table(HEADERS, (_row(facts, now) for facts in programs))


def status_line(program: JsonObject) -> str:
    """One program, after something was done to it."""
    name, state, pid = program["name"], program["state"], program["pid"]
    ready = ", ready" if program["ready"] else ""
    return f"{name} is {state}, pid {pid}{ready}" if state == "up" else f"{name} is {state}"


def _row(program: JsonObject, now: float) -> tuple[object, ...]:
    return (
        program["name"],
        program["state"],
        program["pid"],
        age(program["uptime"]),
        program["total_restarts"],
        _readiness(program),
        _last_end(program["last_end"], now),
        _note(program, now),
    )


def _readiness(program: JsonObject) -> str:
    if not program["up"]:
        return ""
    failures = program["health_failures"]
    ready = "yes" if program["ready"] else "no"
    return f"{ready}, {pluralize(failures, 'check')} failed" if failures else ready


def _last_end(end: JsonObject | None, now: float) -> str:
    return f"{end['cause']}, {_age(now - end['at'])} ago" if end else ""


def _note(program: JsonObject, now: float) -> str:
    """Why it is not up, and what comes next; what it says of itself if it is."""
    match program["state"]:
        case "broken":
            return f"{program['breaker']['reason']}; {_trial(program)}"
        case "waiting" if program["next_start"] is not None:
            return f"starts again in {_age(program['next_start'] - now)}"
        case "pending" if program["waiting_for"]:
            return f"waits for {', '.join(program['waiting_for'])}"
        case "ended":
            return str((program["last_end"] or {}).get("verdict", ""))
        case _:
            return str(program["status_text"] or "")


def _trial(program: JsonObject) -> str:
    left = program["breaker"]["cooldown_left"]
    by_hand = f"`longwatch reset {program['name']}` starts it now"
    return by_hand if left is None else f"one trial in {_age(left)}, {by_hand}"


def _age(seconds: float) -> str:
    return age(max(seconds, 0.0))
