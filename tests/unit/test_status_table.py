from __future__ import annotations

from typing import Any

import pytest

from longwatch.cli.output import shorten_middle, text_width
from longwatch.cli.status_table import (
    HEADERS,
    MAX_REASON_CHARS,
    status_line,
    status_lines,
    status_table,
)

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
    """What is below its row."""
    return "; ".join(
        line.strip() for line in status_table([container(**facts)], now=NOW, width=200)[2:]
    )


def test_a_container_without_a_pid_has_an_empty_column() -> None:
    head, row = status_table([container()], now=NOW)

    assert [*HEADERS] == [word.strip() for word in head.split("  ") if word.strip()]
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
    "reports it itself": (
        {"ready": False, "unready_reason": "unreachable", "status_text": "1 loop"},
        "not ready: unreachable",
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


def test_a_row_has_the_share_of_a_core_and_the_memory_of_the_tree() -> None:
    used = container(pid=7, cpu_percent=312.4, memory_bytes=300 << 20)

    _, row = status_table([used], now=NOW)

    assert ["agent", "up", "7", "5", "s", "312%", "300", "MiB", "0", "yes"] == row.split()


def test_large_memory_is_told_in_gibibytes() -> None:
    assert "12 GiB" in status_table([container(memory_bytes=12 << 30)], now=NOW)[1]


def test_the_last_end_and_failed_checks_are_below_the_row() -> None:
    end = {"cause": "exit 1", "at": NOW - 300}

    assert "2 checks failed; last end: exit 1, 5 min ago" == note(health_failures=2, last_end=end)


@pytest.mark.parametrize("name", ["n" * 200, "部" * 60, "e\u0301" * 90])
def test_no_line_is_wider_than_80_columns_whatever_the_names_and_notes_are(name: str) -> None:
    """With every other column as wide as it gets."""
    programs = [
        container(
            name=f"{name}-{number}",
            state="starting",
            pid=4_194_304,
            uptime=200_000.0,
            cpu_percent=12_345.6,
            memory_bytes=9999 << 20,
            total_restarts=12_345,
            health_failures=3,
            status_text=name,
            last_end={"cause": "signal 15", "at": 0.0},
        )
        for number in (1, 2)
    ]

    lines = status_table(programs, now=NOW, width=80)

    assert max(map(text_width, lines)) <= 80
    assert [1, 1] == [
        sum(f"-{number} starting" in " ".join(line.split()) for line in lines) for number in (1, 2)
    ]


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("worker-12", 9, "worker-12"),
        ("worker-number-12", 9, "work…r-12"),
        ("部部部部部", 6, "部…部"),
        ("ab", 1, "…"),
    ],
)
def test_a_long_name_loses_its_middle(name: str, width: int, shown: str) -> None:
    assert shown == shorten_middle(name, width)


def test_notes_share_a_line_only_if_they_fit_in_it() -> None:
    end = {"cause": "exit 1", "at": NOW}
    facts = container(status_text="x" * 60, last_end=end)

    assert ["  " + "x" * 60, "  last end: exit 1, 0 s ago"] == status_table([facts], now=NOW)[2:]


BROKEN = {"state": "broken", "up": False, "ready": False}
ENDED = {"state": "ended", "up": False, "ready": False}
COLOURS: dict[str, tuple[dict[str, Any], str]] = {
    "ready": ({}, "32"),
    "not ready": ({"ready": False}, "33"),
    "starting": ({"state": "starting", "up": False, "ready": False}, "33"),
    "waiting": ({"state": "waiting", "up": False, "ready": False}, "33"),
    "broken": (BROKEN, "31"),
    "ended badly": ({**ENDED, "last_end": {"cause": "", "at": 0, "verdict": "fatal"}}, "31"),
    "ended well": ({**ENDED, "last_end": {"cause": "", "at": 0, "verdict": "clean_exit"}}, "2"),
    "stopped": ({"state": "stopped", "up": False, "ready": False}, "2"),
}


@pytest.mark.parametrize("case", COLOURS)
def test_the_colour_says_whether_a_state_is_good(case: str) -> None:
    facts, colour = COLOURS[case]
    plain = status_table([container(**facts)], now=NOW)
    state = container(**facts)["state"]

    coloured = status_table([container(**facts)], now=NOW, colour=True)

    assert f"\x1b[{colour}m{state}\x1b[0m" in coloured[1]
    assert plain == [
        line.replace(f"\x1b[{colour}m", "").replace("\x1b[0m", "") for line in coloured
    ]


def test_several_supervisors_have_a_table_each() -> None:
    response = {
        "supervisors": [{"command": "run", "pid": 1}, {"command": "", "pid": 2}],
        "programs": [
            container(name="web", supervisor=1, status_text=""),
            container(name="job", supervisor=2),
        ],
    }

    lines = status_lines(response, now=NOW, width=80, colour=False)

    assert ["longwatch run, pid 1", "longwatch supervisor, pid 2"] == [
        line for line in lines if line.startswith("longwatch ")
    ]
    assert lines.index("longwatch run, pid 1") + 2 == _row_of("web", lines)
    assert lines.index("longwatch supervisor, pid 2") + 2 == _row_of("job", lines)


def _row_of(name: str, lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if line.startswith(name))


def test_the_cure_of_a_broken_program_is_not_cut() -> None:
    breaker = {"phase": "open", "reason": "6 failures in 60 s", "cooldown_left": 300.0}
    facts = container(**BROKEN, name="a-name-of-some-length", breaker=breaker)

    assert [
        "  6 failures in 60 s",
        "  one trial in 5 min, `longwatch reset a-name-of-some-length` starts it now",
    ] == status_table([facts], now=NOW)[2:]
