"""When ticks are due: delays, intervals, cron expressions over changes of the clocks, and the
results of schedule functions.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import GraphError, PermanentError
from longwatch.flow import Flow, Graph, input, tick_once, tick_recurring  # noqa: A004 - the contract's word
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.schedules import (
    Cron,
    Delay,
    Every,
    Schedule,
    ScheduleAnswer,
    decode_answer,
    encode_answer,
    to_answer,
)

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 3, 2, 8, 0, tzinfo=UTC).timestamp()


def berlin(*parts: int, fold: int = 0) -> float:
    return datetime(*parts, tzinfo=BERLIN, fold=fold).timestamp()  # type: ignore[misc,arg-type] # year to minute


def fire_times(schedule: Schedule, start: float, end: float) -> list[float]:
    """The due times after `start` up to `end`, each computed from the one before."""
    found: list[float] = []
    now, last = start, None
    while (due := schedule.next_due(now, last)) is not None and due <= end:
        found.append(due)
        now = last = due
    return found


# --- definition ---


def never() -> None:
    return None


def test_a_delay_an_interval_and_a_cron_expression_are_schedules() -> None:
    assert Delay(90.0) == tick_once("tick", delay=90).schedule
    assert Every(1.0) == tick_recurring("tick", every=1).schedule
    found = tick_recurring("tick", cron=" 30  9 * * mon-fri ", timezone="Europe/Berlin")
    assert Cron("30 9 * * mon-fri", "Europe/Berlin") == found.schedule
    assert NodeKind.TICK_RECURRING is found.kind


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, True, "60", 1e300])
def test_a_bad_delay_is_refused_with_the_cure(bad: Any) -> None:
    with pytest.raises(GraphError, match=r"delay must be a number of seconds from 0 .* a function"):
        tick_once("tick", delay=bad)


@pytest.mark.parametrize("bad", [0, 0.5, -1, math.nan, math.inf, True, "60", 1e300])
def test_a_bad_interval_is_refused_with_the_cure(bad: Any) -> None:
    with pytest.raises(GraphError, match=r"every must be a number of seconds from 1 .* a loop"):
        tick_recurring("tick", every=bad)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("61 * * * *", "is no cron expression .Bad minute.; write minute, hour"),
        ("* * * *", "must have five fields"),
        ("0 0 9 * * *", "must have five fields"),
        ("", "must have five fields"),
        (5, "must have five fields"),
        ("0 0 30 2 *", "is no cron expression"),
    ],
)
def test_a_bad_cron_expression_is_refused_with_the_cure(bad: Any, why: str) -> None:
    with pytest.raises(GraphError, match=why):
        tick_recurring("tick", cron=bad)


@pytest.mark.parametrize("bad", ["Mars/Olympus", "Europe", "", "../etc", "/etc/passwd", None, 1])
def test_an_unknown_time_zone_is_refused_with_the_cure(bad: Any) -> None:
    with pytest.raises(GraphError, match=r"timezone .* is unknown; use a name such as"):
        tick_recurring("tick", cron="0 9 * * *", timezone=bad)


def test_a_time_zone_without_a_cron_expression_is_refused() -> None:
    with pytest.raises(GraphError, match="timezone needs cron"):
        tick_recurring("tick", every=60, timezone="Europe/Berlin")


@pytest.mark.parametrize("given", [{}, {"function": never, "delay": 5}])
def test_a_tick_once_has_exactly_one_schedule(given: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="needs exactly one of function, delay, and has"):
        tick_once("tick", **given)


@pytest.mark.parametrize("given", [{}, {"function": never, "every": 5}, {"every": 5, "cron": "x"}])
def test_a_recurring_tick_has_exactly_one_schedule(given: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="needs exactly one of function, every, cron, and has"):
        tick_recurring("tick", **given)


def test_an_option_of_the_other_kind_of_tick_is_refused_with_the_call_that_takes_it() -> None:
    """Also without a schedule, where the call returns a decorator that may never be used."""
    graph = Graph("g", version="1")
    with pytest.raises(GraphError, match=r"takes no every=; write tick_recurring\(…, every=…\)"):
        graph.tick_once("tick", every=60)
    with pytest.raises(GraphError, match=r"takes no delay=; write tick_once\(…, delay=…\)"):
        graph.tick_recurring("tick", delay=60)
    with pytest.raises(GraphError, match="takes no cron="):
        tick_once("tick", delay=5, cron="0 9 * * *")


def test_a_decorator_without_parentheses_is_refused_with_the_cure() -> None:
    graph: Any = Graph("g", version="1")
    for decorator in (graph.tick_once, graph.tick_recurring):
        with pytest.raises(GraphError, match="write the decorator with parentheses"):
            decorator(never)


@pytest.mark.parametrize("name", ["tick", None])
def test_a_flow_refuses_a_tick_that_got_neither_schedule_nor_function(name: str | None) -> None:
    graph = Graph("g", version="1")
    decorate = graph.tick_recurring(name)
    with pytest.raises(GraphError, match="of graph 'g' has no schedule; pass delay="):
        Flow("sqlite:///never.db", [graph])
    decorate(never)
    assert Flow("sqlite:///never.db", [graph]).registry.graphs


def test_a_tick_has_the_options_of_every_node_and_the_rules_for_its_function() -> None:
    assert 5 == tick_once("tick", function=never, max_attempts=5).options.max_attempts
    with pytest.raises(GraphError, match="unsafe heartbeat config"):
        tick_once("tick", delay=5, heartbeat_interval_seconds=200)
    with pytest.raises(GraphError, match="takes 'x', which is not in after=; add it to after="):
        tick_once("tick", function=lambda x: x)
    with pytest.raises(GraphError, match="cannot be imported by a child process"):
        tick_once("tick", function=lambda: 5, isolation="process")


def test_the_decorator_and_the_call_define_what_the_list_form_defines() -> None:
    graph = Graph("g", version="1", nodes=[input("x")])

    @graph.tick_once(after=["x"], max_attempts=2)
    def once(x: float) -> float:
        return x

    @graph.tick_recurring(name="again")
    def ignored() -> float:
        return 60.0

    graph.tick_once("soon", delay=5)
    graph.tick_recurring("daily", after="x", cron="0 9 * * *", timezone="Europe/Berlin")
    graph.tick_recurring("often", every=60)
    listed = Graph(
        "g",
        version="1",
        nodes=[
            input("x"),
            tick_once("once", ["x"], once, max_attempts=2),
            tick_recurring("again", (), ignored),
            tick_once("soon", delay=5),
            tick_recurring("daily", "x", cron="0 9 * * *", timezone="Europe/Berlin"),
            tick_recurring("often", every=60),
        ],
    )
    assert listed.nodes == graph.nodes


def test_a_decorator_with_a_schedule_is_refused() -> None:
    graph = Graph("g", version="1")
    with pytest.raises(GraphError, match="has a schedule and takes no function"):

        @graph.tick_recurring("tick", every=60)
        def tick() -> float:
            return 60.0


def test_a_tick_without_a_name_is_refused() -> None:
    with pytest.raises(GraphError, match="cannot be the name of a node; pass name="):
        Graph("g", version="1").tick_recurring(every=60)


# --- intervals ---


def test_an_interval_keeps_its_phase_and_leaves_out_what_was_missed() -> None:
    assert 160.0 == Every(60.0).next_due(100.0, None)
    assert 160.0 == Every(60.0).next_due(100.0, 100.0)
    assert 160.0 == Every(60.0).next_due(159.9, 100.0)
    assert 220.0 == Every(60.0).next_due(160.0, 100.0)
    assert 1000.0 == Every(60.0).next_due(999.0, 100.0)


@given(st.floats(1.0, 1e7), st.floats(1e9, 2e9), st.floats(0.0, 1e8, allow_nan=False))
def test_the_next_firing_is_always_later_and_at_most_one_interval_away(
    every: float, last: float, since: float
) -> None:
    due = Every(every).next_due(last + since, last)
    assert last + since < due <= last + since + every + 1e-3


# --- cron over changes of the clocks ---


def test_a_daily_time_that_the_clocks_skip_in_spring_fires_right_after_the_gap() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = fire_times(cron, berlin(2026, 3, 27, 12, 0), berlin(2026, 3, 31, 12, 0))
    expected = [
        berlin(2026, 3, 28, 2, 30),
        berlin(2026, 3, 29, 3, 0),
        berlin(2026, 3, 30, 2, 30),
        berlin(2026, 3, 31, 2, 30),
    ]
    assert expected == found


def test_a_daily_time_that_the_clocks_show_twice_in_autumn_fires_once() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = fire_times(cron, berlin(2026, 10, 23, 12, 0), berlin(2026, 10, 27, 12, 0))
    expected = [
        berlin(2026, 10, 24, 2, 30),
        berlin(2026, 10, 25, 2, 30),
        berlin(2026, 10, 26, 2, 30),
        berlin(2026, 10, 27, 2, 30),
    ]
    assert expected == found


@pytest.mark.parametrize("minute", [0, 10, 29, 30, 59])
def test_a_daily_time_that_fired_late_in_the_doubled_hour_does_not_fire_again(minute: int) -> None:
    """The worker fires the 02:30 of summer time after the clocks were set back to 02:00."""
    now = berlin(2026, 10, 25, 2, minute, fold=1)
    due = Cron("30 2 * * *", "Europe/Berlin").next_due(now, None)
    assert berlin(2026, 10, 26, 2, 30) == due


def test_every_day_of_ten_years_has_one_firing_whatever_the_clocks_do() -> None:
    cron = Cron("30 2 * * *", "Europe/Berlin")
    found = fire_times(cron, berlin(2026, 1, 1, 0, 0), berlin(2036, 1, 1, 0, 0))
    days = [datetime.fromtimestamp(due, BERLIN).date() for due in found]
    first = datetime(2026, 1, 1, tzinfo=UTC).date()
    assert [first + timedelta(days=number) for number in range(len(days))] == days
    assert datetime(2035, 12, 31, tzinfo=UTC).date() == days[-1]


def test_a_quarter_hour_schedule_fires_every_quarter_of_real_time_over_both_changes() -> None:
    cron = Cron("*/15 * * * *", "Europe/Berlin")
    for day in (berlin(2026, 3, 29, 0, 0), berlin(2026, 10, 25, 0, 0)):
        found = fire_times(cron, day, day + 6 * 3600)
        assert [day + 900 * number for number in range(1, 25)] == found


def test_a_moment_just_before_a_cron_time_does_not_skip_it() -> None:
    nine = datetime(2026, 3, 2, 9, 0, tzinfo=UTC).timestamp()
    assert nine == Cron("0 9 * * *").next_due(math.nextafter(nine, 0), None)
    assert nine + 86_400 == Cron("0 9 * * *").next_due(nine, None)
    assert nine + 86_400 == Cron("0 9 * * *").next_due(math.nextafter(nine, math.inf), None)


# --- the results of schedule functions ---


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, ScheduleAnswer()),
        (90, ScheduleAnswer(after=90.0)),
        (-0.5, ScheduleAnswer(after=-0.5)),
        (timedelta(hours=3), ScheduleAnswer(after=10_800.0)),
        (datetime(2026, 3, 2, 8, 0, tzinfo=UTC), ScheduleAnswer(at=NOW)),
        (datetime(2026, 3, 2, 9, 0, tzinfo=BERLIN), ScheduleAnswer(at=NOW)),
    ],
)
def test_a_result_is_a_time_or_a_duration_or_never(result: Any, expected: ScheduleAnswer) -> None:
    assert expected == to_answer("tick", result)
    assert expected == decode_answer(encode_answer(expected).decode())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300, True, "tomorrow", [5]])
def test_any_other_result_fails_for_good_with_the_cure(bad: Any) -> None:
    with pytest.raises(PermanentError, match="return an aware datetime, a timedelta or seconds"):
        to_answer("tick", bad)


def test_a_datetime_without_a_time_zone_fails_for_good_with_the_cure() -> None:
    with pytest.raises(PermanentError, match="has no time zone; return an aware datetime"):
        to_answer("tick", datetime(2026, 3, 2))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize(
    "bad",
    [
        datetime.max.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
    ],
)
def test_a_datetime_that_utc_cannot_show_fails_for_good_with_the_cure(bad: datetime) -> None:
    """Explanations show it in UTC."""
    with pytest.raises(PermanentError, match="outside the years 1 to 9999 in UTC; return"):
        to_answer("tick", bad)


def test_a_schedule_is_shown_in_words() -> None:
    nodes: list[Node] = [
        tick_once("tick", delay=90),
        tick_recurring("tick", every=3600),
        tick_recurring("tick", cron="0 9 * * *", timezone="Europe/Berlin"),
    ]
    found = [node.schedule.text for node in nodes if node.schedule is not None]
    assert ["after 1 min 30 s", "every 1 hour", "at 0 9 * * * (Europe/Berlin)"] == found
