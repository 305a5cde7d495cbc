"""What the page says about a program: its state in a word, and why it is not as it should be.

Pure: facts of the control socket in, values for templates out.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from longwatch.app.control import is_as_desired

JsonObject = dict[str, Any]

OK, WARN, BAD, OFF, INFO = "ok", "warn", "bad", "off", "info"
"""The kinds of badges. Each has its own shape and colour."""
_SLOW_START_SECONDS = 30.0
_UNSTABLE_FAILURES = 3
"""Failures in a row, none of them forgotten by a stable run, from which a program that is up is
unhealthy.
"""
_BADGES = {
    "up": (OK, "up"),
    "broken": (BAD, "breaker open"),
    "waiting": (BAD, "restarting"),
    "stopped": (OFF, "stopped"),
    "pending": (INFO, "waiting"),
}
_RANKS = {BAD: 0, WARN: 1, INFO: 2, OK: 3, OFF: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A state in a word, with its kind."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something unhealthy: what, why, since when if that is known, and what happens next. Moments
    are wall times.
    """

    kind: str
    subject: str
    what: str
    why: str = ""
    href: str = ""
    since: float | None = None
    next: str = ""
    next_at: float | None = None


def badge_of(program: JsonObject) -> Badge:
    """The state of a program."""
    state = str(program["state"])
    if state == "up" and (found := _problem_while_up(program)) is not None:
        return Badge(kind=found.kind, text=found.what)
    if state == "ended":
        return Badge(kind=OFF if is_as_desired(program) else BAD, text="ended")
    kind, text = _BADGES.get(state, (INFO, state))
    return Badge(kind=kind, text=text)


def down_since(program: JsonObject) -> float | None:
    """When a program that should be up ended last; None while it is up, or if it never was."""
    if program["up"] or program["desired"] != "up":
        return None
    end = program["last_end"]
    return end["at"] if end else None


def problem_of(program: JsonObject, now: float | None = None) -> Problem | None:
    """Why a program is not as it should be; None if it is."""
    now = time.time() if now is None else now
    found = _problem_while_up(program) if program["state"] == "up" else _problem(program, now)
    if found is None or program["desired"] != "up":
        return None
    return Problem(
        subject=program["name"],
        since=down_since(program),
        **found._asdict(),
    )


class _Finding(NamedTuple):
    """What is wrong with a program, without its name."""

    what: str
    kind: str
    why: str = ""
    next: str = ""
    next_at: float | None = None


def _problem(program: JsonObject, now: float) -> _Finding | None:
    """What is wrong with a program that is not up."""
    match program["state"]:
        case "broken":
            left = program["breaker"]["cooldown_left"]
            at = None if left is None else now + left
            following = "starts again after a reset" if at is None else "one trial"
            return _Finding("breaker open", BAD, _breaker_reason(program), following, at)
        case "waiting":
            at = program["next_start"]
            return _Finding("down", BAD, end_text(program), "starts again", at)
        case "ended" if not is_as_desired(program):
            return _Finding("ended", BAD, end_text(program))
        case "pending" if program["waiting_for"]:
            waits = ", ".join(program["waiting_for"])
            return _Finding("not started", WARN, f"waits for {waits}")
        case "starting" if now - (program.get("last_start") or now) > _SLOW_START_SECONDS:
            return _Finding("starts slowly", WARN, end_text(program))
        case _:
            return None


def _problem_while_up(program: JsonObject) -> _Finding | None:
    container, failing = program.get("container") or {}, failing_probes(program)
    if container.get("status") in {"unknown", "paused"}:
        reason = str(container.get("reason") or "")
        return _Finding(f"container {container['status']}", WARN, reason)
    if not program["ready"]:
        why = failing or program.get("unready_reason") or program["status_text"]
        return _Finding("not ready", WARN, str(why or ""))
    if program["health_failures"] or failing:
        return _Finding("failing checks", WARN, failing)
    failures = program["consecutive_failures"]
    if failures >= _UNSTABLE_FAILURES:
        return _Finding("unstable", WARN, f"{failures} failures in a row, last {end_text(program)}")
    return None


def failing_probes(program: JsonObject) -> str:
    """The reasons of failing probes, in one line."""
    probes = program.get("probes") or {}
    return "; ".join(
        f"{kind}: {probe['reason']}"
        for kind, probe in probes.items()
        if probe.get("reason") and probe.get("state") != "success"
    )


def end_text(program: JsonObject) -> str:
    """How the program ended last: `exit 3 (unexpected exit)`; for a failed start its error."""
    error, end = program.get("last_error"), program["last_end"]
    if end is None:
        return str(error or "")
    text = f"{end['cause']} ({str(end['verdict']).replace('_', ' ')})"
    return f"{text}: {error}" if error else text


def _breaker_reason(program: JsonObject) -> str:
    return "; ".join(filter(None, (str(program["breaker"]["reason"]), end_text(program))))


def by_urgency(problems: Iterable[Problem]) -> list[Problem]:
    """The worst first, then by subject."""
    return sorted(problems, key=lambda each: (_RANKS[each.kind], each.subject))


def health_of(program: JsonObject) -> str:
    """One of the kinds for lists: `bad` for everything that has a problem."""
    return BAD if problem_of(program) is not None else badge_of(program).kind


def counts_by_health(programs: Iterable[JsonObject]) -> dict[str, int]:
    """How many programs are of each kind."""
    counts = dict.fromkeys((OK, WARN, BAD, INFO, OFF), 0)
    for program in programs:
        counts[health_of(program)] += 1
    return counts
