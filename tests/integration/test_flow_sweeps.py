"""Sweeps: who makes them and how often, that one error keeps nobody else, and what they cost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from flow_rig import NO_SUCH_PID, PATIENCE, Desk, database_fixture, on_postgres, url_fixture  # noqa: F401 - fixtures
from longwatch.core.events import AttemptAbandoned, Events
from longwatch.flow import Flow, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow import sweeping as module
from longwatch.flow.records import Mine, Records
from longwatch.flow.source import FlowSource
from longwatch.flow.sweeping import STALLED_EVERY, SWEEP_EVERY, Sweeping
from longwatch.host.errand import Errand
from longwatch.store.claims import Claim
from longwatch.store.database import Database, Transaction
from longwatch.testing import FakeClock, RecordingObserver

SILENT = 300.0
"""Longer than any heartbeat may be missing."""


def len_of(url: str) -> int:
    return len(url)


def scrape() -> Graph:
    return Graph("scrape", version="1", nodes=[input("url"), compute("pages", ["url"], len_of)])


@pytest.fixture
def desk(database: Database) -> Desk:
    return Desk(database, scrape())


def silent(desk: Desk, count: int) -> list[Any]:
    """Executions whose attempt has gone silent."""
    made = [desk.flow.start("scrape", url="abc") for _ in range(count)]
    assert count == len(desk.take(count))
    desk.database.jump.lease += SILENT
    return made


def sweeper(desk: Desk, **settings: Any) -> tuple[FlowSource, FakeClock]:
    """Those of another worker, by a clock of its own."""
    clock = FakeClock()
    return FlowSource(desk.database, desk.flow.registry, clock=clock, **settings), clock


class TestPages:
    @pytest.mark.parametrize("way", ["silent", "dead"])
    def test_one_bad_row_never_stops_a_page(self, desk: Desk, way: str) -> None:
        owner = desk.enter(pid=NO_SUCH_PID) if way == "dead" else desk.owner
        good, bad, last = [desk.flow.start("scrape", url="abc") for _ in range(3)]
        assert 3 == len(desk.take(owner=owner))
        desk.database.jump.lease += SILENT if way == "silent" else 0.0
        desk.write("DELETE FROM longwatch_executions WHERE id = :id", id=bad.id)
        assert 2 == desk.flow.sweep()
        assert [("cancelled",)] == desk.rows(
            "SELECT state FROM longwatch_computations WHERE execution = :number", number=bad._number
        )
        assert [["abandoned", "not_set"]] * 2 == [
            [each.state for each in execution.computations()] for execution in (good, last)
        ]

    def test_one_whose_inputs_cannot_be_read_is_no_bad_row(self, desk: Desk) -> None:
        first, second = silent(desk, 2)
        desk.write("UPDATE longwatch_computations SET computed_with = '{broken' WHERE seq = 1")
        assert 2 == desk.flow.sweep()
        assert "abandoned" == second.computations()[0].state
        assert [("abandoned",), ("not_set",)] == desk.rows(
            "SELECT state FROM longwatch_computations AS c JOIN longwatch_executions AS e ON "
            "e.execution = c.execution"
            " WHERE id = :id ORDER BY seq",
            id=first.id,
        )

    def test_those_of_a_graph_that_is_not_known_here_are_swept_too(self, desk: Desk) -> None:
        [execution] = silent(desk, 1)
        assert 1 == Flow(desk.database).sweep()
        assert ["abandoned", "not_set"] == [each.state for each in execution.computations()]

    def test_several_pages_are_swept_at_once(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE", 2)
        executions = silent(desk, 5)
        assert 5 == desk.flow.sweep()
        assert all("abandoned" == execution.computations()[0].state for execution in executions)

    def test_each_is_told_once(self, desk: Desk) -> None:
        executions = silent(desk, 2)
        observer = RecordingObserver()
        source, _ = sweeper(desk, events=Events(observer))
        assert (2, 0) == (source.sweep(), source.sweep())
        told = {
            (each.execution, each.node, each.attempt, each.cause)
            for each in observer.of(AttemptAbandoned)
        }
        assert {(execution.id, "pages", 1, "heartbeat") for execution in executions} == told


@on_postgres
@pytest.mark.parametrize("way", ["silent", "dead"])
def test_sweepers_that_meet_take_each_row_once(desk: Desk, way: str) -> None:
    owner = desk.enter(pid=NO_SUCH_PID) if way == "dead" else desk.owner
    executions = [desk.flow.start("scrape", url="abc") for _ in range(40)]
    assert 40 == len(desk.take(owner=owner))
    desk.database.jump.lease += SILENT if way == "silent" else 0.0
    together, counts, sources = threading.Barrier(4), [], [sweeper(desk)[0] for _ in range(4)]

    def sweep(source: FlowSource) -> None:
        together.wait(PATIENCE)
        counts.append(source.sweeping.make_all())

    errands = [Errand(partial(sweep, source), name="sweep") for source in sources]
    for errand in errands:
        errand.start()
    assert all(errand.over.block(PATIENCE) for errand in errands)
    assert (4, 40) == (len(counts), sum(counts))
    assert [["abandoned", "not_set"]] * 40 == [
        [each.state for each in execution.computations()] for execution in executions
    ]


@on_postgres
def test_one_that_cannot_have_the_executions_leaves_their_attempts_to_who_has_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(desk, 3)
    free_claims, asked, counts = Records.free_claims, list[int](), list[int]()
    other = Errand(lambda: counts.append(sweeper(desk)[0].sweeping.make_all()), name="sweep")

    def meanwhile(self: Records, tx: Transaction, claims: Sequence[Claim]) -> dict[Claim, Mine]:
        asked.append(len(claims))
        if len(asked) == 1:
            other.start()
            assert other.over.block(PATIENCE)
        return free_claims(self, tx, claims)

    monkeypatch.setattr(Records, "free_claims", meanwhile)
    assert (3, [0], [3, 0]) == (desk.flow.sweep(), counts, asked)


@on_postgres
def test_what_was_renewed_between_the_look_and_the_lock_is_left_alone(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    [execution] = silent(desk, 1)
    bring_back = Sweeping._bring_back

    def late(self: Sweeping, lost: Any, *, recheck: bool) -> int:
        assert 1 == len(lost) == desk.source.renew(owner=desk.owner, duration=1.0)
        return bring_back(self, lost, recheck=recheck)

    monkeypatch.setattr(Sweeping, "_bring_back", late)
    assert 0 == desk.flow.sweep()
    assert ["computing"] == [each.state for each in execution.computations()]


class TestSpacing:
    def test_of_two_workers_one_makes_the_sweep(self, desk: Desk) -> None:
        (first, _), (second, _) = sweeper(desk), sweeper(desk)
        first.sweep()
        second.sweep()
        assert ["stalled", "abandoned"] == [run.sweep for run in desk.flow.sweeps()]

    def test_the_next_is_made_by_whoever_comes_first_when_it_is_due(self, desk: Desk) -> None:
        (first, its_clock), (second, other_clock) = sweeper(desk), sweeper(desk)
        first.sweep()
        second.sweep()
        for clock in (its_clock, other_clock):
            clock.advance(SWEEP_EVERY)
        second.sweep()
        assert 2 == len(desk.flow.sweeps())
        desk.database.jump.wall += SWEEP_EVERY
        other_clock.advance(SWEEP_EVERY)
        second.sweep()
        first.sweep()
        assert ["abandoned", "stalled", "abandoned"] == [run.sweep for run in desk.flow.sweeps()]

    def test_a_worker_does_not_ask_before_it_is_due(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, _ = sweeper(desk)
        source.sweep()
        writes: list[object] = []
        monkeypatch.setattr(desk.database, "write", writes.append)
        assert 0 == source.sweep()
        assert [] == writes

    def test_the_sweep_for_the_stalled_comes_less_often(self, desk: Desk) -> None:
        source, clock = sweeper(desk)
        for _ in range(3):
            source.sweep()
            clock.advance(STALLED_EVERY)
            desk.database.jump.wall += STALLED_EVERY
        assert 3 == [run.sweep for run in desk.flow.sweeps()].count("stalled")

    def test_a_wall_clock_that_was_set_back_keeps_nobody(self, desk: Desk) -> None:
        source, clock = sweeper(desk)
        source.sweep()
        desk.database.jump.wall -= 1_000_000
        clock.advance(SWEEP_EVERY)
        source.sweep()
        assert "abandoned" == desk.flow.sweeps()[0].sweep
        assert 3 == len(desk.flow.sweeps())

    @pytest.mark.usefixtures("desk")
    def test_the_dead_are_found_at_every_look(self, desk: Desk) -> None:
        source, _ = sweeper(desk)
        source.sweep()
        desk.flow.start("scrape", url="abc")
        desk.take_one(owner=desk.enter(pid=NO_SUCH_PID))
        assert 1 == source.sweep()

    def test_a_dead_worker_that_holds_nothing_is_forgotten(self, desk: Desk) -> None:
        owner = desk.enter(pid=NO_SUCH_PID)
        desk.flow.sweep()
        assert owner not in {row[0] for row in desk.rows("SELECT owner FROM longwatch_owners")}
        assert desk.owner in {row[0] for row in desk.rows("SELECT owner FROM longwatch_owners")}


class TestRecord:
    def test_says_what_each_came_to(self, desk: Desk) -> None:
        silent(desk, 3)
        desk.flow.sweep()
        stalled, abandoned = desk.flow.sweeps()
        assert ("abandoned", 3, None) == (abandoned.sweep, abandoned.found, abandoned.error)
        assert ("stalled", 0, None) == (stalled.sweep, stalled.found, stalled.error)
        assert abandoned.began_at <= stalled.began_at
        assert 0 <= abandoned.lasted < PATIENCE
        assert 1 == len(desk.flow.sweeps(limit=1))

    def test_is_kept_short(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_KEPT_RUNS", 3)
        for _ in range(4):
            desk.flow.sweep()
        assert 3 == len(desk.flow.sweeps())

    def test_says_what_went_wrong(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Sweeping, "_abandoned", _broken)
        with pytest.raises(ArithmeticError):
            desk.flow.sweep()
        stalled, abandoned = desk.flow.sweeps()
        assert ("abandoned", 0, "ArithmeticError: broken") == (
            abandoned.sweep,
            abandoned.found,
            abandoned.error,
        )
        assert ("stalled", None) == (stalled.sweep, stalled.error)


def _broken(_: object) -> int:
    raise ArithmeticError("broken")


class TestErrors:
    def test_of_one_sweep_do_not_starve_the_others(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = desk.flow.start("scrape", url="abc")
        desk.write("DELETE FROM longwatch_computations")
        [execution] = silent(desk, 1)
        monkeypatch.setattr(Sweeping, "bury_the_dead", _broken)
        for act in (desk.flow.sweep, desk.source.sweep):
            with pytest.raises(ArithmeticError):
                act()
        assert ["abandoned", "not_set"] == [each.state for each in execution.computations()]
        assert ["not_set"] == [each.state for each in quiet.computations()]

    def test_of_the_timed_ones_do_not_either(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = desk.flow.start("scrape", url="abc")
        desk.write("DELETE FROM longwatch_computations")
        monkeypatch.setattr(Sweeping, "_abandoned", _broken)
        with pytest.raises(ArithmeticError):
            desk.source.sweep()
        assert ["not_set"] == [each.state for each in quiet.computations()]
        dead = desk.enter(pid=NO_SUCH_PID)
        desk.take_one(owner=dead)
        desk.source.sweep()
        assert "abandoned" == quiet.computations()[0].state


class TestStalled:
    def test_what_nobody_goes_on_with_is_gone_on_with(self, desk: Desk) -> None:
        execution = desk.flow.start("scrape", url="abc")
        desk.write("DELETE FROM longwatch_computations")
        assert 1 == desk.flow.sweep()
        assert {"pages": 1} == desk.run_all()
        assert 3 == execution.get("pages", timeout=0)
        assert 0 == desk.flow.sweep()

    def test_not_what_was_cancelled_or_is_of_a_graph_that_is_not_known(self, desk: Desk) -> None:
        desk.flow.start("scrape", url="abc").cancel()
        desk.flow.start("scrape", url="abc")
        desk.write("DELETE FROM longwatch_computations")
        assert 0 == Flow(desk.database).sweep()
        assert 1 == desk.flow.sweep()

    def test_all_are_come_to_a_page_at_a_time(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE", 2)
        for _ in range(5):
            desk.flow.start("scrape", url="abc")
        desk.write("DELETE FROM longwatch_computations")
        assert [2, 2, 1, 0] == [desk.flow.sweep() for _ in range(4)]
        desk.write("DELETE FROM longwatch_computations")
        assert [2, 2, 1, 0] == [desk.flow.sweep() for _ in range(4)]


def test_a_sweep_looks_at_what_is_leased_and_not_at_all_there_was(desk: Desk) -> None:
    """The plan of its query, over a table of attempts that have ended."""
    desk.flow.start("scrape", url="abc")
    desk.take()
    series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    desk.write(
        "INSERT INTO longwatch_computations"
        " (lane, held, execution, node, state, attempt, computed_with, abandon_after, "
        "max_attempts, created_at)"
        f" {series} SELECT 1, 3, i, 'pages', 'success', 1, '{{}}', 1, 3, 0 FROM n"
    )
    desk.write("ANALYZE longwatch_computations")
    words = "EXPLAIN" if desk.database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
    rows = desk.rows(
        f"{words} {desk.source.records.sql['lapsed']}",
        boot="",
        seen=desk.source.records.listed([]),
        limit=200,
    )
    plan = "\n".join(str(row) for row in rows)
    assert "longwatch_computations_leased" in plan
    assert "Seq Scan on longwatch_computations" not in plan
    assert "SCAN leased\n" not in plan
