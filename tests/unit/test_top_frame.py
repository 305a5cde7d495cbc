"""A frame of `longwatch top`: what is on the screen, and what keys do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_supervisor import down, program
from longwatch.app.live_status import Snapshot
from longwatch.cli.output import text_width
from longwatch.cli.top_frame import SORT_ORDERS, Frame, FrameStyle, ViewState, apply_key, make_frame

NOW = 1000.0
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WORKER: dict[str, Any] = {
    "program": "jobs",
    "ready": False,
    "reason": "stale",
    "stalled": False,
    "threshold": 10.0,
    "loops": [{"name": "pages", "age": 6.0, "max_age": 200.0, "holding": 1}],
}


def breaker() -> dict[str, Any]:
    return {"phase": "open", "reason": "6 failures", "cooldown_left": 60.0}


def snapshot(*programs: dict[str, Any], **facts: Any) -> Snapshot:
    response = {"pid": 7, "command": "up", "programs": list(programs)}
    return Snapshot(response=response, answered_at=NOW, **facts)


def frame(
    found: Snapshot,
    view: ViewState | None = None,
    *,
    width: int = 80,
    height: int | None = 24,
    colour: bool = False,
) -> Frame:
    style = FrameStyle(width=width, height=height, colour=colour)
    return make_frame(found, view or ViewState(), style, now=NOW, interval=2.0)


@given(
    width=st.integers(1, 120),
    height=st.integers(1, 40),
    number=st.integers(0, 12),
    scroll=st.integers(0, 50),
    colour=st.booleans(),
)
def test_a_frame_never_leaves_the_screen(
    *, width: int, height: int, number: int, scroll: int, colour: bool
) -> None:
    programs = [program(f"prögram-{index}" * 3, ready=index % 2) for index in range(number)]
    warning = {"level": "warning", "event": "program_restarted", "ts": "x" * 90}
    found = snapshot(*programs, workers=(WORKER,), warnings=(warning,) * 3, problem="no " * 40)
    lines = frame(found, ViewState(scroll=scroll), width=width, height=height, colour=colour).lines
    assert height == max(len(lines), height)
    assert all(text_width(COLOUR.sub("", line)) <= width for line in lines)


def test_the_footer_is_the_last_line_however_few_programs_there_are() -> None:
    lines = frame(snapshot(program("web"))).lines
    assert 24 == len(lines)
    assert "q quit  ↑↓ scroll  s sort  / filter  order: start" == lines[-1]


def test_a_scroll_position_stays_within_the_table() -> None:
    found = snapshot(*(program(f"p{number}") for number in range(40)))
    shown = frame(found, ViewState(scroll=1 << 30))
    assert "lines 21 to 41 of 41" == shown.lines[1]
    assert shown.lines[-2].startswith("p39 ")
    assert 20 == shown.view.scroll


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("start", ["up", "broken", "slow"]),
        ("state", ["broken", "slow", "up"]),
        ("cpu", ["slow", "up", "broken"]),
        ("memory", ["up", "broken", "slow"]),
        ("restarts", ["broken", "up", "slow"]),
        ("name", ["broken", "slow", "up"]),
    ],
)
def test_each_order_puts_first_what_it_is_about(order: str, names: list[str]) -> None:
    found = snapshot(
        program("up", cpu_percent=1.0, memory_bytes=5 << 20),
        down("broken", "broken", total_restarts=3, breaker=breaker()),
        program("slow", cpu_percent=50.0, ready=False),
    )
    shown = frame(found, ViewState(order=order)).lines
    assert names == [line.split()[0] for line in shown[3:9] if line and line[0] != " "]


def test_the_head_counts_the_states() -> None:
    found = snapshot(program("a"), program("b", ready=False), down("c", "stopped"))
    expected = "longwatch up 7  3 programs: 1 not ready, 1 up, 1 stopped  every 2 s"
    assert expected == frame(found).lines[0]


def test_a_supervisor_that_is_gone_leaves_its_table_with_its_age() -> None:
    found = replace(snapshot(program("web"), problem="it ended"), answered_at=NOW - 5)
    lines = frame(found).lines
    assert "no answer (the table is 5 s old): it ended" == lines[1]
    assert lines[4].startswith("web ")


@pytest.mark.parametrize(("seconds", "is_late"), [(4.9, False), (6.0, True)])
def test_a_supervisor_that_is_late_makes_the_table_old(seconds: float, is_late: bool) -> None:  # noqa: FBT001 - a case
    found = replace(snapshot(program("web")), answered_at=NOW - seconds)
    assert is_late == (frame(found).lines[1] == "no answer yet (the table is 6 s old)")


@pytest.mark.parametrize(("height", "number"), [(24, 3), (16, 2), (8, 1), (7, 0)])
def test_a_low_screen_keeps_the_table_and_shows_the_latest_warnings(
    height: int, number: int
) -> None:
    names = ("first", "second", "third")
    facts = {"ts": "2026-01-01T00:00:00Z", "level": "warning"}
    warnings = tuple({**facts, "event": name} for name in names)
    lines = frame(snapshot(program("web"), warnings=warnings), height=height).lines
    shown = [name for name in names if any(name in line for line in lines)]
    assert list(names[3 - number :]) == shown
    assert any(line.startswith("web ") for line in lines)


def test_a_narrow_screen_leaves_out_columns_and_keeps_what_is_ready() -> None:
    lines = frame(snapshot(program("web"), workers=(WORKER,)), width=40).lines
    assert "program  state  up for  restarts  ready" == lines[2]
    assert "web      up     90 s           0  yes" == lines[3]
    assert "worker  loop    beat  holding  ready" == lines[5]
    assert "jobs    pages  6.0 s        1  no: stale" == lines[6]


def test_a_loop_whose_beat_is_older_than_half_the_threshold_is_yellow() -> None:
    lines = frame(snapshot(program("web"), workers=(WORKER,)), colour=True).lines
    [row] = [line for line in lines if "pages" in line]
    assert "\x1b[33mjobs    pages  6.0 s    3 min        1  no: stale\x1b[0m" == row


def test_each_supervisor_has_its_table_and_the_filter_leaves_out_those_without_a_match() -> None:
    facts = [{"pid": 7, "command": "up"}, {"pid": 8, "command": "run"}]
    programs = [program("web", supervisor=7), program("job", supervisor=8)]
    found = Snapshot(response={**facts[0], "programs": programs, "supervisors": facts})
    lines = frame(found).lines
    assert "longwatch up 7, longwatch run 8  2 programs: 2 up  every 2 s" == lines[0]
    assert {"longwatch up, pid 7", "longwatch run, pid 8"} < {*lines}
    filtered = frame(found, ViewState(filter="JO")).lines
    assert ["program", "job"] == [line.split()[0] for line in filtered[2:-1] if line]


def test_names_with_control_characters_are_escaped() -> None:
    worker = {**WORKER, "program": "a\x1b[2J"}
    lines = frame(snapshot(program("b\x1b[2J"), workers=(worker,))).lines
    assert all(line.isprintable() for line in lines)


def test_the_filter_takes_keys_until_enter_and_escape_removes_it() -> None:
    view = ViewState()
    for key in ("/", "q", "s", "backspace", "enter"):
        view = apply_key(view, key, page=10)
    assert ViewState(filter="q") == view
    assert ViewState() == apply_key(view, "escape", page=10)


def test_s_goes_through_every_order_and_comes_back() -> None:
    view, seen = ViewState(), []
    for _ in SORT_ORDERS:
        view = apply_key(view, "s", page=10)
        seen.append(view.order)
    assert [*[*SORT_ORDERS][1:], "start"] == seen


@pytest.mark.parametrize(
    ("key", "scroll"),
    [("j", 6), ("down", 6), ("k", 4), ("page down", 15), ("page up", 0), ("home", 0), ("x", 5)],
)
def test_keys_scroll(key: str, scroll: int) -> None:
    assert scroll == apply_key(ViewState(scroll=5), key, page=10).scroll
