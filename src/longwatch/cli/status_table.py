"""How programs stand, in words: the table of `longwatch status`, and one line about each program
after a command.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from longwatch.cli.output import age, pluralize, table
from longwatch.core.sanitize import printable

JsonObject = dict[str, Any]

HEADERS = ("program", "state", "pid", "up for", "restarts", "ready", "last end", "")
MAX_REASON_CHARS = 80


def status_table(programs: Iterable[JsonObject], *, now: float) -> list[str]:
    """The table; `now` is wall time."""
    return table(HEADERS, (_row(facts, now) for facts in programs))


def status_line(program: JsonObject) -> str:
    """One program, after something was done to it."""
    name, state = program["name"], program["state"]
    pid = f", pid {program['pid']}" if program["pid"] is not None else ""
    ready = ", ready" if program["ready"] else ""
    return f"{name} is {state}{pid}{ready}" if state == "up" else f"{name} is {state}"


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
    """Why it is not up or not ready, and what comes next; what it says of itself if it is."""
    match program["state"]:
        case "broken":
            return f"{program['breaker']['reason']}; {_trial(program)}"
        case "waiting" if program["next_start"] is not None:
            wait = f"starts again in {_age(program['next_start'] - now)}"
            return f"{wait}: {_short(_start_error(program))}" if _start_error(program) else wait
        case "pending" if program["waiting_for"]:
            return f"waits for {', '.join(program['waiting_for'])}"
        case "ended":
            return str((program["last_end"] or {}).get("verdict", ""))
        case _:
            said = str(program["status_text"] or "")
            return _runtime_note(program) or _unready_note(program) or said


def _start_error(program: JsonObject) -> str:
    """What a container was refused with; the end of a process says it all."""
    return str(program.get("last_error") or "") if program.get("kind") == "container" else ""


def _runtime_note(program: JsonObject) -> str:
    """What only the runtime knows of a container."""
    container = program.get("container") or {}
    match container.get("status"):
        case "unknown":
            reason = container.get("reason") or "no reason was given"
            return f"runtime does not answer: {_short(reason)}"
        case "paused":
            return "paused"
        case _:
            return ""


def _unready_note(program: JsonObject) -> str:
    """Why one that is up is not ready, as far as its probes say."""
    if not program["up"] or program["ready"]:
        return ""
    probes, held = program.get("probes") or {}, program.get("crash_loop_restarts") or 0
    if held and all(probe["state"] == "pending" for probe in probes.values()):
        return f"crash loop: probes on hold after {pluralize(held, 'restart')}"
    reasons = (probes.get(kind, {}).get("reason") for kind in ("readiness", "liveness", "startup"))
    reason = next((reason for reason in reasons if reason), "")
    return f"not ready: {_short(reason)}" if reason else ""


def _short(text: str) -> str:
    return printable(text, max_chars=MAX_REASON_CHARS)


def _trial(program: JsonObject) -> str:
    left = program["breaker"]["cooldown_left"]
    by_hand = f"`longwatch reset {program['name']}` starts it now"
    return by_hand if left is None else f"one trial in {_age(left)}, {by_hand}"


def _age(seconds: float) -> str:
    return age(max(seconds, 0.0))
