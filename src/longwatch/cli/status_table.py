"""The table of `longwatch status`, and the line about each program after a command.

The table fits the terminal: names are shortened, a narrow terminal has fewer columns, notes are
cut, and nothing is wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longwatch.cli.output import (
    GAP,
    age,
    fitting_columns,
    note_lines,
    pluralize,
    shorten_middle,
    text_width,
)
from longwatch.core.sanitize import printable

JsonObject = dict[str, Any]

HEADERS = ("program", "state", "pid", "up for", "cpu", "memory", "restarts", "ready")
MAX_REASON_CHARS = 80
_MIN_NAME_WIDTH = 8
_NUMBERS = frozenset({"pid", "cpu", "memory", "restarts"})
"""Columns that are aligned to the right."""
_DROPPED_FIRST = ("memory", "cpu", "pid", "restarts", "up for")
"""The columns that a narrow terminal does not have, the first one first."""
_GREEN, _YELLOW, _RED, _DIM = "32", "33", "31", "2"
_MEBIBYTE, _GIBIBYTE = 1 << 20, 1 << 30


def status_lines(response: JsonObject, *, now: float, width: int, colour: bool) -> list[str]:
    """The table of all programs; with several supervisors one table for each, below its command."""
    programs, supervisors = response["programs"], response.get("supervisors", [])
    if not programs:
        return ["there are no programs"]
    if len(supervisors) <= 1:
        return status_table(programs, now=now, width=width, colour=colour)
    lines: list[str] = []
    for each in supervisors:
        own = [program for program in programs if program["supervisor"] == each["pid"]]
        lines += [
            *([""] if lines else ()),
            printable(f"longwatch {each['command'] or 'supervisor'}, pid {each['pid']}"),
            *status_table(own, now=now, width=width, colour=colour),
        ]
    return lines


def status_table(
    programs: Iterable[JsonObject], *, now: float, width: int = 80, colour: bool = False
) -> list[str]:
    """A row for each program, at most `width` columns wide. Notes below the row say why the program
    is not up or not ready, and how it ended last. `now` is wall time.

    The name gets the width that the other columns leave; the middle of a longer name is cut.
    """
    found = list(programs)
    rows = [HEADERS, *(_row(facts) for facts in found)]
    columns = zip(*rows, strict=True)
    widths = {column[0]: max(map(text_width, column)) for column in columns}
    name_width = widths["program"]
    widths["program"] = min(name_width, _MIN_NAME_WIDTH)
    shown = fitting_columns(widths, width, drop=_DROPPED_FIRST)
    widths = {name: widths[name] for name in shown}
    free = width - sum(widths.values()) - len(GAP) * (len(widths) - 1)
    widths["program"] = min(name_width, widths["program"] + max(free, 0))
    lines = [_line(HEADERS, widths)]
    for facts, row in zip(found, rows[1:], strict=True):
        lines.append(_line(row, widths, _state_colour(facts) if colour else ""))
        lines += _note_lines(facts, now, width)
    return lines


def _line(row: Sequence[str], widths: Mapping[str, int], state_colour: str = "") -> str:
    """The cells of the columns that have a width."""
    cells = []
    texts = dict(zip(HEADERS, row, strict=True))
    for name, width in widths.items():
        shown = shorten_middle(texts[name], width)
        space = " " * (width - text_width(shown))
        if name == "state" and state_colour:
            shown = f"\x1b[{state_colour}m{shown}\x1b[0m"
        cells.append(space + shown if name in _NUMBERS else shown + space)
    return GAP.join(cells).rstrip()


def _note_lines(program: JsonObject, now: float, width: int) -> list[str]:
    notes = (_failed_checks(program), _note(program, now), _last_end(program["last_end"], now))
    return note_lines(printable("; ".join(filter(None, notes))).split("; "), width)


def _state_colour(program: JsonObject) -> str:
    from longwatch.app.control import is_as_desired  # noqa: PLC0415 - help must not wait for it

    state = program["state"]
    if state == "up":
        return _GREEN if program["ready"] else _YELLOW
    if state == "stopped" or (state == "ended" and is_as_desired(program)):
        return _DIM
    return _RED if state in {"broken", "ended"} else _YELLOW


def status_line(program: JsonObject) -> str:
    """The line about a program after a command."""
    name, state = program["name"], program["state"]
    pid = f", pid {program['pid']}" if program["pid"] is not None else ""
    ready = ", ready" if program["ready"] else ""
    return f"{name} is {state}{pid}{ready}" if state == "up" else f"{name} is {state}"


def _row(program: JsonObject) -> tuple[str, ...]:
    cells = (
        program["name"],
        program["state"],
        program["pid"],
        age(program["uptime"]),
        _cpu(program.get("cpu_percent")),
        _memory(program.get("memory_bytes")),
        program["total_restarts"],
        ("yes" if program["ready"] else "no") if program["up"] else "",
    )
    return tuple("" if cell is None else printable(str(cell)) for cell in cells)


def _cpu(percent: float | None) -> str:
    return "" if percent is None else f"{percent:.0f}%"


def _memory(size: int | None) -> str:
    if size is None:
        return ""
    if size < 10 * _GIBIBYTE:
        return f"{size / _MEBIBYTE:.0f} MiB"
    return f"{size / _GIBIBYTE:.0f} GiB"


def _failed_checks(program: JsonObject) -> str:
    failures = program["health_failures"] if program["up"] else 0
    return f"{pluralize(failures, 'check')} failed" if failures else ""


def _last_end(end: JsonObject | None, now: float) -> str:
    return f"last end: {end['cause']}, {_age(now - end['at'])} ago" if end else ""


def _note(program: JsonObject, now: float) -> str:
    """Why the program is not up or not ready, and what happens next; else its own status text."""
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
    """Why a container could not start; empty for a process, whose last end says why."""
    return str(program.get("last_error") or "") if program.get("kind") == "container" else ""


def _runtime_note(program: JsonObject) -> str:
    """The note about a container that is paused or whose runtime does not answer."""
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
    """Why a program that is up is not ready, from the results of its probes or its own reports."""
    if not program["up"] or program["ready"]:
        return ""
    probes, held = program.get("probes") or {}, program.get("crash_loop_restarts") or 0
    if held and all(probe["state"] == "pending" for probe in probes.values()):
        return f"crash loop: probes on hold after {pluralize(held, 'restart')}"
    reasons = (probes.get(kind, {}).get("reason") for kind in ("readiness", "liveness", "startup"))
    reason = next((reason for reason in reasons if reason), program.get("unready_reason"))
    return f"not ready: {_short(reason)}" if reason else ""


def _short(text: str) -> str:
    return printable(text, max_chars=MAX_REASON_CHARS)


def _trial(program: JsonObject) -> str:
    left = program["breaker"]["cooldown_left"]
    by_hand = f"`longwatch reset {program['name']}` starts it now"
    return by_hand if left is None else f"one trial in {_age(left)}, {by_hand}"


def _age(seconds: float) -> str:
    return age(max(seconds, 0.0))
