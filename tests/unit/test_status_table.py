from __future__ import annotations

from typing import Any

import pytest

from longwatch.cli.status_table import HEADERS, MAX_REASON_CHARS, status_line, status_table

NOW = 1000.0
PENDING = {"state": "pending", "failures": 0, "reason": ""}
PASSED = {"state": "success", "failures": 0, "reason": ""}


def failed(reason: str, failures: int = 1) -> dict[str, object]:
    return {"state": "failed", "failures": failures, "reason": reason}


def container(**facts: Any) -> dict[str, Any]:
    """The status of a container that is up and ready, but for these facts."""
    return {
        "name": "agent",
        "kind": "container",
        "state": "up",
        "desired": "up",
        "up": True,
        "ready": True,
        "pid": None,
        "uptime": 5.0,
        "total_restarts": 0,
        "health_failures": 0,
        "next_start": None,
        "breaker": {"phase": "closed", "reason": "", "cooldown_left": None},
        "last_end": None,
        "last_error": "",
        "waiting_for": [],
        "status_text": "",
        "probes": {},
        "crash_loop_restarts": 0,
        "container": {"id": "c1", "status": "running", "runtime": "podman 4.3.1", "reason": ""},
        **facts,
    }


def note(**facts: Any) -> str:
    """The last column of its row."""
    marked = container(**facts, last_end={"cause": "MARK", "at": NOW})
    [_, row] = status_table([marked], now=NOW)
    return row.partition("MARK, 0 s ago")[2].strip()


def test_a_container_without_a_pid_has_an_empty_column() -> None:
    head, row = status_table([container()], now=NOW)

    assert [word for word in HEADERS if word] == [word for word in head.split("  ") if word.strip()]
    assert ["agent", "up", "5", "s", "0", "yes"] == row.split()


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        ({}, "agent is up, ready"),
        ({"pid": 7}, "agent is up, pid 7, ready"),
        ({"pid": 7, "ready": False}, "agent is up, pid 7"),
        ({"ready": False}, "agent is up"),
        ({"state": "stopped", "up": False, "ready": False}, "agent is stopped"),
    ],
)
def test_one_line_names_the_pid_only_if_it_is_known(facts: dict[str, Any], line: str) -> None:
    assert line == status_line(container(**facts))


UNKNOWN = {"id": "c1", "status": "unknown", "runtime": None, "reason": "no socket"}
NOTES: dict[str, tuple[dict[str, Any], str]] = {
    "ready": ({}, ""),
    "says something": ({"status_text": "busy"}, "busy"),
    "readiness fails": (
        {"ready": False, "probes": {"liveness": PASSED, "readiness": failed("exit 1: db is gone")}},
        "not ready: exit 1: db is gone",
    ),
    "readiness before liveness": (
        {
            "ready": False,
            "probes": {"liveness": failed("no connection"), "readiness": failed("exit 3")},
        },
        "not ready: exit 3",
    ),
    "waits for liveness": (
        {"ready": False, "probes": {"liveness": failed("no connection"), "readiness": PENDING}},
        "not ready: no connection",
    ),
    "waits for startup": (
        {"ready": False, "probes": {"startup": failed("exit 2"), "liveness": PENDING}},
        "not ready: exit 2",
    ),
    "not probed yet": ({"ready": False, "probes": {"readiness": PENDING}}, ""),
    "ready though liveness failed once": ({"probes": {"liveness": failed("late")}}, ""),
    "crash loop": (
        {"ready": False, "probes": {"liveness": PENDING}, "crash_loop_restarts": 3},
        "crash loop: probes on hold after 3 restarts",
    ),
    "crash loop that is probed again": (
        {"ready": False, "probes": {"liveness": failed("exit 1")}, "crash_loop_restarts": 3},
        "not ready: exit 1",
    ),
    "paused": (
        {"ready": False, "container": {"status": "paused"}, "probes": {"readiness": failed("x")}},
        "paused",
    ),
    "unknown": ({"container": UNKNOWN}, "runtime does not answer: no socket"),
    "starts and waits for the runtime": (
        {"state": "starting", "up": False, "ready": False, "container": UNKNOWN},
        "runtime does not answer: no socket",
    ),
    "starts": ({"state": "starting", "up": False, "ready": False, "container": None}, ""),
    "waits after a refusal": (
        {"state": "waiting", "up": False, "next_start": NOW + 4, "last_error": "no such image"},
        "starts again in 4 s: no such image",
    ),
    "waits": (
        {"state": "waiting", "up": False, "next_start": NOW + 4},
        "starts again in 4 s",
    ),
    "broken": (
        {
            "state": "broken",
            "up": False,
            "breaker": {"phase": "open", "reason": "no manifest", "cooldown_left": None},
        },
        "no manifest; `longwatch reset agent` starts it now",
    ),
    "broken with a trial": (
        {
            "state": "broken",
            "up": False,
            "breaker": {"phase": "open", "reason": "6 restarts", "cooldown_left": 30.0},
        },
        "6 restarts; one trial in 30 s, `longwatch reset agent` starts it now",
    ),
    "pending": (
        {"state": "pending", "up": False, "waiting_for": ["db: ready"]},
        "waits for db: ready",
    ),
}


@pytest.mark.parametrize("case", NOTES)
def test_the_note_says_why_a_container_is_not_up_or_not_ready(case: str) -> None:
    facts, expected = NOTES[case]

    assert expected == note(**facts)


@pytest.mark.parametrize("reason", ["x" * 500, "a\nb\x1b[2J"])
def test_a_long_or_strange_reason_keeps_the_table_in_order(reason: str) -> None:
    said = note(ready=False, probes={"readiness": failed(reason)})

    assert said.isprintable()
    assert len(said) <= len("not ready: ") + MAX_REASON_CHARS


def test_a_process_that_waits_says_no_more_than_when_it_starts() -> None:
    facts = {"state": "waiting", "up": False, "next_start": NOW + 4, "last_error": "exit 1"}

    assert "starts again in 4 s" == note(kind="command", **facts)


def test_a_status_without_the_facts_of_containers_has_a_row_too() -> None:
    old = container(ready=False)
    for fact in ("kind", "last_error", "probes", "crash_loop_restarts", "container"):
        del old[fact]

    assert ["agent", "up", "5", "s", "0", "no"] == status_table([old], now=NOW)[1].split()
