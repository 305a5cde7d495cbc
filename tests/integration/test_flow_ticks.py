"""Ticks fire at their time, once or again and again, whatever happens to workers and clocks. On
both databases, by a fake clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import isolated_nodes
from flow_rig import (  # noqa: F401 - fixtures
    ManualWorker,
    database_fixture,
    store_wall,
    url_fixture,
)
from longwatch.core.backoff import BackoffPolicy
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import ComputationFailedError, UsageError
from longwatch.flow import (
    Execution,
    Flow,
    Graph,
    compute,
    input,  # noqa: A004 - the contract's word
    not_,
    tick_once,
    tick_recurring,
    when,
)
from longwatch.flow.execution_state import ExecutionStatus
from longwatch.flow.nodes import Node
from longwatch.store.database import Database
from longwatch.store.scan_bound import ScanBound
from longwatch.testing import FakeClock, GraphRun, Step, check_graph, run_graph

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
NO_WAIT = BackoffPolicy(initial=0.0, cap=0.0)

Run = Callable[..., AbstractContextManager[GraphRun]]


@pytest.fixture(name="running")
def running_fixture(database: Database) -> Run:
    """Runs a graph of these nodes."""

    def start(*nodes: Node) -> AbstractContextManager[GraphRun]:
        return run_graph(Graph("ticking", version="1", nodes=nodes), database)

    return start


def keep(tick: float) -> float:
    return tick


def states(execution: Execution, node: str) -> list[tuple[str, str | None]]:
    return [(each.state, each.end_cause) for each in execution.computations() if each.node == node]


def status(run: GraphRun) -> ExecutionStatus:
    [found] = run.flow.executions()
    return found.status


def set_wall(run: GraphRun, moment: datetime) -> None:
    """Begin a test at this time, whatever the time is."""
    run.clock.jump_wall(moment.timestamp() - run.clock.wall())


def bound_of(database: Database) -> ScanBound:
    """The scan bound of the claims of the only graph."""
    query = "SELECT DISTINCT queue FROM longwatch_computations"
    [(queue,)] = database.read(lambda tx: tx.rows(query))
    return database.scan_bounds.of("longwatch_computations", queue)


def bound_after(database: Database, seconds: float) -> ScanBound:
    """Make claims look for due attempts from a later time on, as if the clock had shown it."""
    bound = bound_of(database)
    bound.low, bound.due_low = 1, store_wall(database) + seconds
    return bound


def due_times(run: GraphRun, execution: Execution, node: str, seconds: float) -> list[float]:
    """The due times of a tick that fires while time passes."""
    found: list[float] = []

    def record(step: Step, name: str) -> None:
        if step is Step.SETTLED and name == node and (value := execution.value(node)) is not None:
            found.append(value.value)

    run.on_step = record
    run.advance(seconds)
    return list(dict.fromkeys(found))


# --- once ---


def test_a_delay_fires_once_at_its_time_without_a_schedule_attempt(running: Run) -> None:
    with running(
        input("x"), tick_once("tick", ["x"], delay=HOUR), compute("after", ["tick"], keep)
    ) as run:
        began = run.clock.wall()
        execution = run.start(x=1)
        run.advance(HOUR - MINUTE)
        assert {"x": 1} == execution.values()
        assert ExecutionStatus.ACTIVE is status(run)
        run.advance(2 * MINUTE)
        assert {"x": 1, "tick": began + HOUR, "after": began + HOUR} == execution.values()
        run.advance(DAY)
        assert [("success", "done")] == states(execution, "tick")
        assert ExecutionStatus.DONE is status(run)


def test_a_tick_without_upstream_nodes_counts_from_the_start(running: Run) -> None:
    with running(tick_once("tick", delay=0)) as run:
        execution = run.start()
        run.run_ready()
        assert pytest.approx(run.clock.wall(), abs=1) == execution.values()["tick"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
@pytest.mark.parametrize("kind", ["datetime", "timedelta", "seconds"])
def test_a_function_decides_when_a_tick_fires(running: Run, kind: str, isolation: str) -> None:
    """The child process is left out here, and the result is encoded as it would."""
    tick = tick_once("tick", ["kind"], isolated_nodes.in_an_hour, isolation=isolation)
    with running(input("kind"), input("now"), tick) as run:
        began = run.clock.wall()
        execution = run.start(kind=[kind, began])
        run.advance(HOUR - MINUTE)
        assert 1 == run.runs["tick"]
        assert execution.value("tick") is None
        run.advance(2 * MINUTE)
        # the function runs a moment after the start: the fake clock may have moved meanwhile
        assert pytest.approx(began + HOUR, abs=MINUTE / 2) == execution.values()["tick"]
        assert 1 == run.runs["tick"]
        assert [("success", "done")] * 2 == states(execution, "tick")


def test_a_time_in_the_past_fires_at_once(running: Run) -> None:
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with running(tick_once("tick", (), lambda: past)) as run:
        execution = run.start()
        run.run_ready()
        assert past.timestamp() == execution.values()["tick"]


def test_a_firing_whose_time_is_past_is_due_from_its_insertion_on(
    running: Run, database: Database
) -> None:
    """Claims look for due attempts from a time of the recent past on (`store.scan_bound`)."""
    began = store_wall(database)
    with running(tick_once("tick", (), lambda: datetime(2020, 1, 1, tzinfo=UTC))) as run:
        run.start()
        run.run_ready()
    query = "SELECT ready_at FROM longwatch_computations WHERE due_at IS NOT NULL"
    [(ready_at,)] = database.read(lambda tx: tx.rows(query))
    assert ready_at >= began


def test_a_firing_is_found_at_once_although_the_clock_was_set_back(
    running: Run, database: Database
) -> None:
    """Also if claims had looked for due attempts from a later time on. Nor does the next run of the
    same store look from there on.
    """
    with running(tick_once("tick", delay=HOUR)) as run:
        execution = run.start()
        run.run_ready()
        bound = bound_after(database, DAY)
        run.clock.jump_wall(-MINUTE)
        run.run_ready()
        run.clock.jump_wall(2 * HOUR)
        run.run_ready()
        assert {"tick"} == execution.values().keys()
        assert bound is not bound_after(database, DAY)
    assert 0.0 == bound_of(database).due_low


@pytest.mark.parametrize("make", [tick_once, tick_recurring])
def test_a_schedule_that_returns_none_never_fires_and_ends_the_branch(
    running: Run, make: Callable[..., Node]
) -> None:
    tick = make("tick", ["x"], lambda x: x)
    with running(input("x"), tick, compute("after", ["tick"], keep)) as run:
        execution = run.start(x=None)
        run.advance(DAY)
        assert 1 == run.runs["tick"]
        assert {"x": None} == execution.values()
        assert ExecutionStatus.DONE is status(run)
        assert "ended: its schedule returned no further time" in str(execution.explain())
        execution.set(x=5)
        assert ExecutionStatus.ACTIVE is status(run)
        run.advance(6)
        assert {"x", "tick", "after"} == execution.values().keys()


def test_none_after_a_change_clears_the_firing_with_the_old_inputs(running: Run) -> None:
    tick = tick_once("tick", ["x"], lambda x: x)
    with running(input("x"), tick, compute("after", ["tick"], keep)) as run:
        execution = run.start(x=0)
        run.run_ready()
        assert {"x", "tick", "after"} == execution.values().keys()
        execution.set(x=None)
        run.run_ready()
        assert {"x": None} == execution.values()


def test_an_ended_tick_is_scheduled_again_once_its_gate_was_unmet(running: Run) -> None:
    """The revisions of its inputs are then the same as before."""
    answers = [None, 0.0]
    tick = tick_once("tick", not_("stop"), lambda: answers.pop(0))
    with running(input("stop"), tick) as run:
        execution = run.start()
        run.run_ready()
        execution.set(stop=True)
        execution.unset("stop")
        run.run_ready()
        assert {"tick"} == execution.values().keys()


@pytest.mark.parametrize("bad", [datetime(2026, 3, 2), float("nan"), "soon", True])  # noqa: DTZ001 - refused
def test_a_result_that_is_no_time_fails_the_tick_for_good(running: Run, bad: Any) -> None:
    with running(tick_once("tick", (), lambda: bad)) as run:
        execution = run.start()
        run.run_ready()
        assert [("failed", "permanent")] == states(execution, "tick")
        with pytest.raises(ComputationFailedError, match="return an aware datetime"):
            execution.get("tick")
        assert ExecutionStatus.FAILED is status(run)


def test_a_schedule_that_raises_is_retried_and_given_up_and_retried_by_request(
    running: Run,
) -> None:
    problems: list[Exception] = [OSError("broken"), OSError("broken"), OSError("broken")]

    def schedule() -> float:
        if problems:
            raise problems.pop()
        return MINUTE

    with running(tick_recurring("tick", (), schedule, max_attempts=2, retry=NO_WAIT)) as run:
        execution = run.start()
        run.run_ready()
        assert [("failed", "raised")] * 2 == states(execution, "tick")
        execution.retry("tick")
        run.run_ready()
        assert 4 == run.runs["tick"]
        run.advance(MINUTE + 1)
        assert {"tick"} == execution.values().keys()


def test_retry_of_a_scheduled_tick_is_refused_because_it_would_fire_later(running: Run) -> None:
    with running(tick_once("tick", delay=HOUR)) as run:
        execution = run.start()
        run.advance(HOUR / 2)
        with pytest.raises(UsageError, match="is scheduled and fires at its time; see explain"):
            execution.retry("tick")
        run.advance(HOUR / 2 + 1)
        assert {"tick"} == execution.values().keys()


def test_a_change_of_an_input_cancels_the_firing_and_schedules_it_anew(running: Run) -> None:
    tick = tick_once("tick", ["x"], lambda x: x)
    with running(input("x"), tick, compute("after", ["tick"], keep)) as run:
        execution = run.start(x=HOUR)
        run.run_ready()
        began = run.clock.wall()
        execution.set(x=2 * HOUR)
        run.advance(HOUR + MINUTE)
        assert {"x"} == execution.values().keys()
        run.advance(HOUR)
        assert pytest.approx(began + 2 * HOUR, abs=1) == execution.values()["tick"]
        ended = [("success", "done"), ("cancelled", "superseded"), *[("success", "done")] * 2]
        assert ended == states(execution, "tick")


def test_a_change_after_the_firing_fires_again_with_a_new_revision(running: Run) -> None:
    """Also if the due time is the same."""
    moment = datetime(2020, 1, 1, tzinfo=UTC)
    tick = tick_once("tick", ["x"], lambda x: moment)
    with running(input("x"), tick, compute("after", ["tick"], keep)) as run:
        execution = run.start(x=1)
        run.run_ready()
        before = execution.value("tick")
        execution.set(x=2)
        run.run_ready()
        after = execution.value("tick")
        assert before is not None
        assert after is not None
        assert before.value == after.value
        assert before.revision < after.revision
        assert 2 == run.runs["after"]


@pytest.mark.parametrize("make", [tick_once, tick_recurring])
def test_a_gate_that_is_unmet_cancels_and_clears_a_tick(
    running: Run, make: Callable[..., Node]
) -> None:
    tick = make("tick", when("x", bool), lambda: MINUTE)
    with running(input("x"), tick, compute("after", ["tick"], keep)) as run:
        execution = run.start(x=True)
        run.advance(MINUTE + 1)
        assert {"x", "tick", "after"} == execution.values().keys()
        execution.set(x=False)
        assert {"x": False} == execution.values()
        run.advance(HOUR)
        assert {"x": False} == execution.values()
        assert ExecutionStatus.DONE is status(run)
        execution.set(x=True)
        run.run_ready()
        execution.set(x=False)
        assert ("cancelled", "gate") == states(execution, "tick")[-1]


# --- again and again ---


def test_two_weeks_of_a_daily_report_take_a_moment(running: Run) -> None:
    """In the second week the clocks are put forward."""
    reports: list[datetime] = []

    def report(morning: float) -> None:
        reports.append(datetime.fromtimestamp(morning, ZoneInfo("Europe/Berlin")))

    morning = tick_recurring("morning", cron="30 9 * * *", timezone="Europe/Berlin")
    with running(morning, compute("report", ["morning"], report)) as run:
        set_wall(run, datetime(2026, 3, 20, 12, 0, tzinfo=UTC))
        run.start()
        run.advance(14 * DAY)
        assert 14 == len(reports)
        assert {(9, 30)} == {(each.hour, each.minute) for each in reports}
        days = [each.date() for each in reports]
        assert [days[0] + timedelta(days=number) for number in range(14)] == days


def test_an_interval_fires_at_its_times_and_its_value_is_fresh_between(running: Run) -> None:
    tick = tick_recurring("tick", every=MINUTE)
    with running(tick, compute("after", ["tick"], keep), input("x")) as run:
        began = run.clock.wall()
        execution = run.start()
        found = due_times(run, execution, "tick", 5 * MINUTE + 1)
        assert [pytest.approx(began + MINUTE * number) for number in range(1, 6)] == found
        assert 5 == run.runs["after"]
        assert 0 == run.runs["tick"]
        for node in ("tick", "after"):
            value = execution.value(node)
            assert value is not None
            assert value.fresh
            assert pytest.approx(began + 5 * MINUTE) == execution.get(node)
        assert ExecutionStatus.ACTIVE is status(run)


def test_a_node_after_a_recurring_tick_follows_its_other_inputs_between_firings(
    running: Run,
) -> None:
    tick = tick_recurring("tick", ["x"], every=HOUR)
    both = compute("both", ["tick", "x"], lambda x, tick: [x, tick])
    with running(input("x"), tick, both) as run:
        execution = run.start(x=1)
        run.advance(HOUR + 1)
        execution.set(x=2)
        run.run_ready()
        assert 2 == execution.get("both")[0]
        assert 2 == run.runs["both"]


@pytest.mark.parametrize("schedule", [{"every": MINUTE}, {"cron": "* * * * *"}])
def test_an_outage_is_caught_up_once(running: Run, schedule: dict[str, Any]) -> None:
    with running(tick_recurring("tick", **schedule), compute("after", ["tick"], keep)) as run:
        set_wall(run, datetime(2026, 3, 2, 12, 0, 30, tzinfo=UTC))
        execution = run.start()
        run.advance(MINUTE + 1)
        first = execution.get("tick")
        run.clock.jump_wall(100 * MINUTE)
        assert [first + MINUTE] == due_times(run, execution, "tick", 0)
        assert 2 == run.runs["after"]
        [next_due] = due_times(run, execution, "tick", MINUTE)
        assert pytest.approx(first + 101 * MINUTE) == next_due
        assert 3 == run.runs["after"]


@pytest.mark.parametrize("schedule", [{"every": MINUTE}, {"cron": "* * * * *"}])
def test_a_worker_whose_clock_is_behind_fires_no_time_twice(
    database: Database, schedule: dict[str, Any]
) -> None:
    graph = Graph("ticking", version="1", nodes=[tick_recurring("tick", **schedule)])
    began = store_wall(database) // MINUTE * MINUTE
    database.jump.wall += began - store_wall(database)
    worker = ManualWorker(database, graph, clock=FakeClock(wall=began))
    execution = worker.flow.start("ticking")
    found = []
    for _ in range(3):
        worker.write("UPDATE longwatch_computations SET ready_at = 0 WHERE lease_state = 1")
        worker.run(worker.claim())
        found.append(execution.values()["tick"])
    assert [began + MINUTE * number for number in (1, 2, 3)] == found


@pytest.mark.parametrize("ahead", [-DAY, DAY])
def test_the_clock_of_the_store_decides_when_a_tick_is_due(
    database: Database, ahead: float
) -> None:
    """The clock of the machine is a day off: it would skip a day of firings, or fire too early."""
    graph = Graph("ticking", version="1", nodes=[tick_recurring("tick", every=MINUTE)])
    worker = ManualWorker(database, graph, clock=FakeClock(wall=store_wall(database) + ahead))
    began = store_wall(database)
    execution = worker.flow.start("ticking")
    for number in (1, 2):
        worker.write("UPDATE longwatch_computations SET ready_at = 0 WHERE lease_state = 1")
        worker.run(worker.claim())
        assert pytest.approx(began + number * MINUTE, abs=10) == execution.values()["tick"]


def test_a_function_is_asked_for_every_time_and_ends_the_tick_with_none(running: Run) -> None:
    answers = [MINUTE, timedelta(minutes=2), None]
    tick = tick_recurring("tick", (), lambda: answers.pop(0))
    with running(tick, compute("after", ["tick"], keep)) as run:
        began = run.clock.wall()
        execution = run.start()
        found = due_times(run, execution, "tick", DAY)
        expected = [pytest.approx(began + minutes * MINUTE, abs=1) for minutes in (1, 3)]
        assert expected == found
        assert 3 == run.runs["tick"]
        assert ExecutionStatus.DONE is status(run)
        assert found[-1] == execution.get("tick") == execution.get("after")


def test_a_function_that_returns_a_time_that_has_fired_is_asked_again(running: Run) -> None:
    """The clock of its machine may be behind: an endless repetition would be worse."""
    soon = datetime.now(UTC) + timedelta(hours=1)
    answers = [soon, soon, soon + timedelta(hours=1), soon]
    tick = tick_recurring("tick", (), lambda: answers.pop(0) if answers else soon)
    with running(tick) as run:
        execution = run.start()
        found = due_times(run, execution, "tick", DAY)
        assert [soon.timestamp(), soon.timestamp() + HOUR] == found
        with pytest.raises(ComputationFailedError, match="has fired already; return a later"):
            execution.get("tick", newer_than=execution.revision)
        failed = [each for each in states(execution, "tick") if each[0] == "failed"]
        assert 1 + 3 == len(failed)


def test_a_node_after_a_tick_whose_schedule_failed_keeps_its_value(running: Run) -> None:
    answers: list[Any] = [MINUTE, "nonsense"]
    tick = tick_recurring("tick", (), lambda: answers.pop(0))
    with running(tick, compute("after", ["tick"], keep)) as run:
        execution = run.start()
        run.advance(HOUR)
        assert ExecutionStatus.FAILED is status(run)
        assert execution.values()["tick"] == execution.get("after")


def test_a_function_that_asks_for_no_pause_fires_once_a_second(running: Run) -> None:
    with running(tick_recurring("tick", (), lambda: 0)) as run:
        began = run.clock.wall()
        execution = run.start()
        found = due_times(run, execution, "tick", 10.5)
        assert pytest.approx(began, abs=1) == found[0]
        assert 10 <= len(found)
        assert all(later - sooner >= 1 for sooner, later in pairwise(found))


# --- pause and resume ---


def test_a_paused_tick_does_not_fire_until_it_is_resumed(running: Run) -> None:
    with running(tick_recurring("tick", every=HOUR), compute("after", ["tick"], keep)) as run:
        began = run.clock.wall()
        execution = run.start()
        run.advance(HOUR + MINUTE)
        execution.pause("tick")
        assert ExecutionStatus.IDLE is status(run)
        assert ("cancelled", "asked") == states(execution, "tick")[-1]
        assert execution.explain().describe("tick").startswith("tick is paused, last due at")
        run.advance(10 * HOUR)
        assert pytest.approx(began + HOUR) == execution.get("tick") == execution.get("after")
        revision = execution.pause("tick")
        assert revision == execution.revision
        execution.resume("tick")
        execution.resume("tick")
        assert ExecutionStatus.ACTIVE is status(run)
        found = due_times(run, execution, "tick", HOUR)
        assert [pytest.approx(began + 12 * HOUR)] == found


def test_a_tick_that_was_paused_before_its_first_firing_waits_for_resume(running: Run) -> None:
    with running(tick_recurring("tick", (), lambda: MINUTE)) as run:
        execution = run.start()
        execution.pause("tick")
        run.advance(HOUR)
        assert {} == execution.values()
        assert ExecutionStatus.IDLE is status(run)
        execution.resume("tick")
        run.advance(MINUTE + 1)
        assert 2 == run.runs["tick"]
        assert {"tick"} == execution.values().keys()


def test_a_firing_that_settles_after_the_pause_changes_nothing(database: Database) -> None:
    worker = ManualWorker(
        database, Graph("t", version="1", nodes=[tick_recurring("tick", every=1)])
    )
    execution = worker.flow.start("t")
    worker.write("UPDATE longwatch_computations SET ready_at = 0")
    claimed = worker.claim_one()
    execution.pause("tick")
    assert not worker.succeed(claimed, None)
    assert {} == execution.values()


def test_only_a_recurring_tick_can_be_paused(running: Run) -> None:
    with running(input("x"), tick_once("tick", delay=1), compute("after", ["tick"], keep)) as run:
        execution = run.start()
        for node, kind in (("x", "input"), ("tick", "tick_once"), ("after", "compute")):
            for change in (execution.pause, execution.resume):
                with pytest.raises(UsageError, match=f"is {kind}, and only a recurring tick can"):
                    change(node)
        with pytest.raises(UsageError, match="no node 'tock'"):
            execution.pause("tock")


def test_unarchive_schedules_ticks_from_then_and_catches_nothing_up(running: Run) -> None:
    nodes = [tick_recurring("tick", every=MINUTE), tick_once("once", delay=2 * DAY)]
    with running(*nodes, compute("after", ["tick"], keep)) as run:
        began = run.clock.wall()
        execution = run.start()
        run.advance(MINUTE + 1)
        execution.archive()
        run.advance(14 * DAY)
        execution.unarchive()
        run.advance(1)
        assert began + MINUTE == pytest.approx(execution.get("tick"))
        run.advance(MINUTE)
        assert began + 14 * DAY + 2 * MINUTE == pytest.approx(execution.get("tick"))
        assert 2 == run.runs["after"]
        assert "once is scheduled: it fires at" in execution.explain().describe("once")


def test_cancel_ends_a_tick(running: Run) -> None:
    with running(tick_recurring("tick", every=MINUTE)) as run:
        execution = run.start()
        execution.cancel()
        run.advance(HOUR)
        assert {} == execution.values()
        with pytest.raises(UsageError, match="was cancelled"):
            execution.pause("tick")


def test_an_explanation_says_when_a_tick_fires(running: Run) -> None:
    with running(tick_once("tick", delay=3 * HOUR), tick_recurring("again", every=DAY)) as run:
        execution = run.start()
        due = datetime.fromtimestamp(run.clock.wall() + 3 * HOUR, UTC)
        expected = f"tick is scheduled: it fires at {due:%Y-%m-%d %H:%M:%S} UTC, in 3 hours"
        assert expected == execution.explain().describe("tick")
        run.advance(DAY + MINUTE)
        found = execution.explain().describe("again")
        assert "again is up to date, last due at " in found
        assert found.endswith(", in 23 h 59 min")
        run.clock.jump_wall(2 * DAY)
        assert "fires as soon as a worker is free, was due at " in str(execution.explain())


# --- workers ---


@pytest.mark.parametrize("step", list(Step))
@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_firing_survives_the_death_of_its_worker_and_is_never_doubled(
    running: Run, step: Step, place: str
) -> None:
    seen: list[float] = []

    def see(tick: float) -> None:
        seen.append(tick)

    with running(tick_recurring("tick", every=HOUR), compute("after", ["tick"], see)) as run:
        began = run.clock.wall()
        run.start()
        run.crash_at(step, node="tick", on_other_host=place == "elsewhere")
        run.advance(3 * HOUR + MINUTE)
        expected = [pytest.approx(began + HOUR * number) for number in (1, 2, 3)]
        assert expected == seen
        assert not any(run.settle_late())
        assert (step is not Step.RENEWED) == len(run.crashes)


@pytest.mark.parametrize("place", ["here", "elsewhere"])
def test_a_firing_is_never_given_up_because_its_workers_died(running: Run, place: str) -> None:
    """It runs no code that could have ended them."""
    with running(tick_once("tick", delay=HOUR, max_attempts=1)) as run:
        began = run.clock.wall()
        execution = run.start()
        run.crash_at("begun", node="tick", times=6, on_other_host=place == "elsewhere")
        run.advance(DAY)
        assert 6 == len(run.crashes)
        assert {"tick": pytest.approx(began + HOUR)} == execution.values()
        assert [("success", "done")] == states(execution, "tick")


def test_a_graph_with_ticks_survives_a_crash_at_every_step(database: Database) -> None:
    nodes = [
        input("x"),
        tick_once("wait", ["x"], lambda x: x),
        tick_once("more", ["wait"], delay=MINUTE),
        compute("after", ["more"], lambda more: more),
    ]
    graph = Graph("ticking", version="1", nodes=nodes)
    check_graph(graph, lambda run: run.start(x=HOUR), store=database)


def fire_all(worker: ManualWorker, owner: int, want: int) -> Counter[str]:
    """Claim and settle due ticks in batches until none is left; how often each was settled."""
    fired: Counter[str] = Counter()
    claimed = worker.claim(want, owner=owner)
    while claimed:
        settlements = [Settlement(each.claim, RowOutcome.DONE) for each in claimed]
        names = [f"{each.item.id}/{each.item.node}" for each in claimed]
        result = worker.source.exchange(settlements, owner=owner, limit=want, lease_seconds=0.0)
        fired.update(name for name, ok in zip(names, result.settled, strict=True) if ok)
        claimed = result.claimed
    return fired


def test_thousands_of_due_ticks_fire_exactly_once_after_an_outage(database: Database) -> None:
    """10,000 ticks: 100 executions of 100 ticks each."""
    names = [f"tick_{number}" for number in range(100)]
    nodes = [tick_recurring(name, every=HOUR) for name in names]
    clock = FakeClock(wall=store_wall(database))
    worker = ManualWorker(database, Graph("many", version="1", nodes=nodes), clock=clock)
    executions = [worker.flow.start("many") for _ in range(100)]
    assert [] == worker.claim()
    for outage in (HOUR + 1, 50 * HOUR):
        clock.advance(outage)
        database.jump.wall += outage
        fired = fire_all(worker, worker.owner, 1000)
        assert len(names) * len(executions) == len(fired)
        assert {1} == set(fired.values())
    assert [] == worker.claim()
    for execution in executions[:3]:
        assert {2} == set(
            Counter(
                each.node for each in execution.computations() if each.state == "success"
            ).values()
        )
        assert ["not_set"] * len(names) == [
            each.state for each in execution.computations()[-len(names) :]
        ]


def test_two_workers_share_due_ticks_and_double_none(url: str, database: Database) -> None:
    nodes = [tick_once(f"tick_{number}", delay=0) for number in range(20)]
    graph = Graph("many", version="1", nodes=nodes)
    with Flow(database, [graph]) as flow:
        executions = [flow.start("many") for _ in range(10)]
        with flow.worker(concurrency=4), Flow(url, [graph]) as other, other.worker(concurrency=4):
            for execution in executions:
                for node in nodes:
                    execution.get(node.name, timeout=60)
        for execution in executions:
            assert [("success", "done")] * len(nodes) == [
                (each.state, each.end_cause) for each in execution.computations()
            ]


def test_a_worker_wakes_for_a_tick_that_is_due_soon(database: Database) -> None:
    """Nothing else happens meanwhile. By the real clock: without a wakeup it would take longer than
    the timeout.
    """
    graph = Graph("soon", version="1", nodes=[tick_recurring("tick", every=1)])
    with Flow(database, [graph]) as flow, flow.worker():
        execution = flow.start("soon")
        first = execution.get("tick", timeout=60)
        second = execution.get("tick", newer_than=execution.revision, timeout=60)
        assert first < second
        fired = [each for each in execution.computations() if each.state == "success"]
        early = [each for each in fired[:2] if (each.started_at or 0.0) < each.created_at + 0.5]
        assert [] == early  # a firing is not leased as it is inserted


@pytest.fixture(name="isolated")
def isolated_fixture(database: Database) -> Iterator[Flow]:
    def tick(name: str, function: Callable[..., Any]) -> Node:
        return tick_once(name, ["kind"], function, isolation="process", max_attempts=1)

    nodes = [
        input("kind"),
        tick("tick", isolated_nodes.an_hour_ago),
        tick("naive", isolated_nodes.naive_time),
    ]
    with Flow(database, [Graph("apart", version="1", nodes=nodes)]) as flow:
        yield flow


def test_the_schedule_of_a_tick_runs_in_a_child_process(isolated: Flow) -> None:
    with isolated.worker():
        for kind in ("datetime", "timedelta", "seconds"):
            began = datetime.now(UTC).timestamp()
            execution = isolated.start("apart", kind=[kind, began])
            found = execution.get("tick", timeout=60)
            assert began - HOUR - 1 <= found <= datetime.now(UTC).timestamp() - HOUR + 1
            with pytest.raises(ComputationFailedError, match="has no time zone"):
                execution.get("naive", timeout=60)
