"""Why a program is unhealthy, in the words of the page."""

from __future__ import annotations

from typing import Any

import pytest

from longwatch.page.program_facts import (
    Problem,
    badge_of,
    by_urgency,
    counts_by_health,
    down_since,
    problem_of,
)

NOW = 1000.0
END = {"cause": "exit 3", "verdict": "unexpected_exit", "at": 990.0}
CLEAN = {"cause": "exit 0", "verdict": "clean_exit", "at": 990.0}
OPEN = {"phase": "open", "reason": "6 failures in 60 s", "cooldown_left": 30.0}


def program(state: str, **changes: Any) -> dict[str, Any]:
    is_up = state == "up"
    return {
        "name": "web",
        "kind": "command",
        "state": state,
        "desired": "up",
        "up": is_up,
        "ready": is_up,
        "pid": 12 if is_up else None,
        "last_start": 900.0,
        "health_failures": 0,
        "consecutive_failures": 0,
        "probes": {},
        "breaker": {"phase": "closed", "reason": "", "cooldown_left": None},
        "last_end": None,
        "last_error": "",
        "next_start": None,
        "waiting_for": [],
        "status_text": "",
        **changes,
    }


PROBE = {"liveness": {"state": "failed", "failures": 3, "reason": "connection refused"}}


@pytest.mark.parametrize(
    ("badge", "what", "why", "facts"),
    [
        ("ok", None, "", program("up")),
        ("warn", "not ready", "says it", program("up", ready=False, status_text="says it")),
        (
            "warn",
            "failing checks",
            "liveness: connection refused",
            program("up", health_failures=2, probes=PROBE),
        ),
        ("bad", "down", "exit 3 (unexpected exit)", program("waiting", last_end=END)),
        (
            "bad",
            "down",
            "exit 3 (unexpected exit): no such image",
            program("waiting", last_end=END, last_error="no such image"),
        ),
        (
            "bad",
            "breaker open",
            "6 failures in 60 s; exit 3 (unexpected exit)",
            program("broken", last_end=END, breaker=OPEN),
        ),
        (
            "warn",
            "unstable",
            "3 failures in a row, last exit 3 (unexpected exit)",
            program("up", consecutive_failures=3, last_end=END),
        ),
        ("ok", None, "", program("up", consecutive_failures=2, last_end=END)),
        ("bad", "ended", "exit 3 (unexpected exit)", program("ended", last_end=END)),
        ("off", None, "", program("ended", last_end=CLEAN)),
        ("off", None, "", program("stopped", desired="stopped", last_end=END)),
        (
            "info",
            "not started",
            "waits for db: ready",
            program("pending", waiting_for=["db: ready"]),
        ),
        ("info", None, "", program("starting", last_start=999.0)),
        ("info", "starts slowly", "", program("starting", last_start=900.0)),
        ("warn", "failing checks", "liveness: connection refused", program("up", probes=PROBE)),
        (
            "warn",
            "container paused",
            "by hand",
            program("up", container={"status": "paused", "reason": "by hand"}),
        ),
    ],
)
def test_the_badge_and_the_problem_of_each_state(
    badge: str, what: str | None, why: str, facts: dict[str, Any]
) -> None:
    found = problem_of(facts, NOW)

    assert badge == badge_of(facts).kind
    assert (what, why) == ((None, "") if found is None else (found.what, found.why))


def test_what_happens_next_is_part_of_the_problem() -> None:
    waiting = problem_of(program("waiting", last_end=END, next_start=1004.0), NOW)
    broken = problem_of(program("broken", last_end=END, breaker=OPEN), NOW)
    by_hand = problem_of(program("broken", breaker={**OPEN, "cooldown_left": None}), NOW)

    assert waiting is not None
    assert broken is not None
    assert by_hand is not None
    assert ("starts again", 1004.0, 990.0) == (waiting.next, waiting.next_at, waiting.since)
    assert ("one trial", 1030.0) == (broken.next, broken.next_at)
    assert ("starts again after a reset", None) == (by_hand.next, by_hand.next_at)


def test_a_program_is_down_since_its_last_end_if_it_should_be_up() -> None:
    assert 990.0 == down_since(program("waiting", last_end=END))
    assert down_since(program("up", last_end=END)) is None
    assert down_since(program("stopped", desired="stopped", last_end=END)) is None
    assert down_since(program("pending")) is None


def test_the_worst_comes_first() -> None:
    problems = [
        Problem(kind=kind, subject=name, what="")
        for kind, name in (("warn", "a"), ("bad", "z"), ("bad", "b"))
    ]

    assert ["b", "z", "a"] == [each.subject for each in by_urgency(problems)]


def test_everything_with_a_problem_counts_as_unhealthy() -> None:
    programs = [
        program("up"),
        program("up", ready=False),
        program("broken", breaker=OPEN),
        program("pending", waiting_for=["db: ready"]),
        program("stopped", desired="stopped"),
    ]

    counts = counts_by_health(programs)
    assert {"ok": 1, "warn": 0, "bad": 3, "info": 0, "off": 1} == counts
