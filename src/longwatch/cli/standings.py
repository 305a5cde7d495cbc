"""How programs stand, in words: the table of `longwatch status`, and one line about each program
after a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longwatch.cli.answer import age, counted, table

Facts = dict[str, Any]

HEAD = ("program", "state", "pid", "up for", "restarts", "ready", "last end", "")


def standings(programs: Iterable[Facts], *, now: float) -> list[str]:
    """The table; `now` is wall time."""
    return table(HEAD, (_row(facts, now) for facts in programs))


def standing(facts: Facts) -> str:
    """One program, after something was done to it."""
    name, state, pid = facts["name"], facts["state"], facts["pid"]
    ready = ", ready" if facts["ready"] else ""
    return f"{name} is {state}, pid {pid}{ready}" if state == "up" else f"{name} is {state}"


def _row(facts: Facts, now: float) -> tuple[object, ...]:
    return (
        facts["name"],
        facts["state"],
        facts["pid"],
        age(facts["uptime"]),
        facts["total_restarts"],
        _readiness(facts),
        _last_end(facts["last_end"], now),
        _note(facts, now),
    )


def _readiness(facts: Facts) -> str:
    if not facts["up"]:
        return ""
    failures = facts["health_failures"]
    told = "yes" if facts["ready"] else "no"
    return f"{told}, {counted(failures, 'check')} failed" if failures else told


def _last_end(end: Facts | None, now: float) -> str:
    return f"{end['cause']}, {_distance(now - end['at'])} ago" if end else ""


def _note(facts: Facts, now: float) -> str:
    """Why it is not up, and what comes next; what it says of itself if it is."""
    match facts["state"]:
        case "broken":
            return f"{facts['breaker']['reason']}; {_trial(facts)}"
        case "waiting" if facts["next_start"] is not None:
            return f"starts again in {_distance(facts['next_start'] - now)}"
        case "pending" if facts["waiting_for"]:
            return f"waits for {', '.join(facts['waiting_for'])}"
        case "ended":
            return str((facts["last_end"] or {}).get("verdict", ""))
        case _:
            return str(facts["status_text"] or "")


def _trial(facts: Facts) -> str:
    left = facts["breaker"]["cooldown_left"]
    by_hand = f"`longwatch reset {facts['name']}` starts it now"
    return by_hand if left is None else f"one trial in {_distance(left)}, {by_hand}"


def _distance(seconds: float) -> str:
    return age(max(seconds, 0.0))
