"""Sweeps: who makes them and how often, that one error keeps nobody else, and what they cost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from flow_rig import NO_SUCH_PID, TIMEOUT, ManualWorker, database_fixture, on_postgres, url_fixture  # noqa: F401 - fixtures
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.flow import Flow, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow import sweeper as module
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.records import Records, ValidClaim
from longwatch.flow.sweeper import STALLED_INTERVAL, SWEEP_INTERVAL, FlowSweeper
from longwatch.host.background_thread import BackgroundThread
from longwatch.store.claims import Claim
from longwatch.store.database import Database, Transaction
from longwatch.testing import FakeClock, RecordingObserver

SILENT = 300.0
"""Longer than any heartbeat may be missing."""


def url_length(url: str) -> int:
    return len(url)


def scrape() -> Graph:
    return Graph("scrape", version="1", nodes=[input("url"), compute("pages", ["url"], url_length)])


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(database, scrape())


def silent(worker: ManualWorker, count: int) -> list[Any]:
    """Executions whose attempt has gone silent."""
    made = [worker.flow.start("scrape", url="abc") for _ in range(count)]
    assert count == len(worker.claim(count))
    worker.database.jump.lease += SILENT
    return made


def sweeper(worker: ManualWorker, **settings: Any) -> tuple[FlowClaimSource, FakeClock]:
    """Those of another worker, by a clock of its own."""
    clock = FakeClock()
    return FlowClaimSource(worker.database, worker.flow.registry, clock=clock, **settings), clock


class TestPages:
    @pytest.mark.parametrize("way", ["silent", "dead"])
    def test_one_bad_row_never_stops_a_page(self, worker: ManualWorker, way: str) -> None:
        owner = worker.register_owner(pid=NO_SUCH_PID) if way == "dead" else worker.owner
        good, bad, last = [worker.flow.start("scrape", url="abc") for _ in range(3)]
        assert 3 == len(worker.claim(owner=owner))
        worker.database.jump.lease += SILENT if way == "silent" else 0.0
        worker.write("DELETE FROM longwatch_executions WHERE id = :id", id=bad.id)
        assert 2 == worker.flow.sweep()
        assert [("cancelled",)] == worker.rows(
            "SELECT state FROM longwatch_computations WHERE execution = :number", number=bad._number
        )
        assert [["abandoned", "not_set"]] * 2 == [
            [each.state for each in execution.computations()] for execution in (good, last)
        ]

    def test_one_whose_inputs_cannot_be_read_is_no_bad_row(self, worker: ManualWorker) -> None:
        first, second = silent(worker, 2)
        worker.write("UPDATE longwatch_computations SET computed_with = '{broken' WHERE seq = 1")
        assert 2 == worker.flow.sweep()
        assert "abandoned" == second.computations()[0].state
        assert [("abandoned",), ("not_set",)] == worker.rows(
            "SELECT c.state FROM longwatch_computations AS c JOIN longwatch_executions AS e ON "
            "e.execution = c.execution"
            " WHERE id = :id ORDER BY seq",
            id=first.id,
        )

    def test_those_of_a_graph_that_is_not_known_here_are_swept_too(
        self, worker: ManualWorker
    ) -> None:
        [execution] = silent(worker, 1)
        assert 1 == Flow(worker.database).sweep()
        assert ["abandoned", "not_set"] == [each.state for each in execution.computations()]

    def test_several_pages_are_swept_at_once(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_SIZE", 2)
        executions = silent(worker, 5)
        assert 5 == worker.flow.sweep()
        assert all("abandoned" == execution.computations()[0].state for execution in executions)

    def test_each_is_told_once(self, worker: ManualWorker) -> None:
        executions = silent(worker, 2)
        observer = RecordingObserver()
        source, _ = sweeper(worker, events=Events(observer))
        assert (2, 0) == (source.sweep(), source.sweep())
        told = {
            (each.execution, each.node, each.attempt, each.cause)
            for each in observer.of(AttemptAbandoned)
        }
        assert {(execution.id, "pages", 1, "heartbeat") for execution in executions} == told


@on_postgres
@pytest.mark.parametrize("way", ["silent", "dead"])
def test_sweepers_that_meet_take_each_row_once(worker: ManualWorker, way: str) -> None:
    owner = worker.register_owner(pid=NO_SUCH_PID) if way == "dead" else worker.owner
    executions = [worker.flow.start("scrape", url="abc") for _ in range(40)]
    assert 40 == len(worker.claim(owner=owner))
    worker.database.jump.lease += SILENT if way == "silent" else 0.0
    together, counts, sources = threading.Barrier(4), [], [sweeper(worker)[0] for _ in range(4)]

    def sweep(source: FlowClaimSource) -> None:
        together.wait(TIMEOUT)
        counts.append(source.sweeper.sweep_all())

    threads = [BackgroundThread(partial(sweep, source), name="sweep") for source in sources]
    for thread in threads:
        thread.start()
    assert all(thread.done.block(TIMEOUT) for thread in threads)
    assert (4, 40) == (len(counts), sum(counts))
    assert [["abandoned", "not_set"]] * 40 == [
        [each.state for each in execution.computations()] for execution in executions
    ]


@on_postgres
def test_one_that_cannot_have_the_executions_leaves_their_attempts_to_who_has_them(
    worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent(worker, 3)
    free_claims, asked, counts = Records.unlocked_claims, list[int](), list[int]()
    other = BackgroundThread(
        lambda: counts.append(sweeper(worker)[0].sweeper.sweep_all()), name="sweep"
    )

    def meanwhile(
        self: Records, tx: Transaction, claims: Sequence[Claim]
    ) -> dict[Claim, ValidClaim]:
        asked.append(len(claims))
        if len(asked) == 1:
            other.start()
            assert other.done.block(TIMEOUT)
        return free_claims(self, tx, claims)

    monkeypatch.setattr(Records, "unlocked_claims", meanwhile)
    assert (3, [0], [3, 0]) == (worker.flow.sweep(), counts, asked)


def test_what_was_renewed_between_the_look_and_the_lock_is_left_alone(
    worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    [execution] = silent(worker, 1)
    bring_back = FlowSweeper._reclaim

    def late(self: FlowSweeper, lost: Any) -> int:
        assert 1 == len(lost) == worker.source.renew(owner=worker.owner, lease_seconds=1.0)
        return bring_back(self, lost)

    monkeypatch.setattr(FlowSweeper, "_reclaim", late)
    assert 0 == worker.flow.sweep()
    assert ["computing"] == [each.state for each in execution.computations()]


class TestSpacing:
    def test_of_two_workers_one_makes_the_sweep(self, worker: ManualWorker) -> None:
        (first, _), (second, _) = sweeper(worker), sweeper(worker)
        first.sweep()
        second.sweep()
        assert ["stalled", "abandoned"] == [run.sweep for run in worker.flow.sweeps()]

    def test_the_next_is_made_by_whoever_comes_first_when_it_is_due(
        self, worker: ManualWorker
    ) -> None:
        (first, its_clock), (second, other_clock) = sweeper(worker), sweeper(worker)
        first.sweep()
        second.sweep()
        for clock in (its_clock, other_clock):
            clock.advance(SWEEP_INTERVAL)
        second.sweep()
        assert 2 == len(worker.flow.sweeps())
        worker.database.jump.wall += SWEEP_INTERVAL
        other_clock.advance(SWEEP_INTERVAL)
        second.sweep()
        first.sweep()
        assert ["abandoned", "stalled", "abandoned"] == [run.sweep for run in worker.flow.sweeps()]

    def test_a_worker_does_not_ask_before_it_is_due(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, _ = sweeper(worker)
        source.sweep()
        writes: list[object] = []
        monkeypatch.setattr(worker.database, "write", writes.append)
        assert 0 == source.sweep()
        assert [] == writes

    def test_the_sweep_for_the_stalled_comes_less_often(self, worker: ManualWorker) -> None:
        source, clock = sweeper(worker)
        for _ in range(3):
            source.sweep()
            clock.advance(STALLED_INTERVAL)
            worker.database.jump.wall += STALLED_INTERVAL
        assert 3 == [run.sweep for run in worker.flow.sweeps()].count("stalled")

    def test_a_wall_clock_that_was_set_back_keeps_nobody(self, worker: ManualWorker) -> None:
        source, clock = sweeper(worker)
        source.sweep()
        worker.database.jump.wall -= 1_000_000
        clock.advance(SWEEP_INTERVAL)
        source.sweep()
        assert "abandoned" == worker.flow.sweeps()[0].sweep
        assert 3 == len(worker.flow.sweeps())

    @pytest.mark.usefixtures("worker")
    def test_the_dead_are_found_at_every_look(self, worker: ManualWorker) -> None:
        source, _ = sweeper(worker)
        source.sweep()
        worker.flow.start("scrape", url="abc")
        worker.claim_one(owner=worker.register_owner(pid=NO_SUCH_PID))
        assert 1 == source.sweep()

    def test_a_dead_worker_that_holds_nothing_is_forgotten(self, worker: ManualWorker) -> None:
        owner = worker.register_owner(pid=NO_SUCH_PID)
        worker.flow.sweep()
        assert owner not in {row[0] for row in worker.rows("SELECT owner FROM longwatch_owners")}
        assert worker.owner in {row[0] for row in worker.rows("SELECT owner FROM longwatch_owners")}


class TestRecord:
    def test_says_what_each_came_to(self, worker: ManualWorker) -> None:
        silent(worker, 3)
        worker.flow.sweep()
        stalled, abandoned = worker.flow.sweeps()
        assert ("abandoned", 3, None) == (abandoned.sweep, abandoned.row_count, abandoned.error)
        assert ("stalled", 0, None) == (stalled.sweep, stalled.row_count, stalled.error)
        assert abandoned.started_at <= stalled.started_at
        assert 0 <= abandoned.seconds < TIMEOUT
        assert 1 == len(worker.flow.sweeps(limit=1))

    def test_is_kept_short(self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_MAX_RUNS", 3)
        for _ in range(4):
            worker.flow.sweep()
        assert 3 == len(worker.flow.sweeps())

    def test_says_what_went_wrong(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(FlowSweeper, "_reclaim_lapsed", _broken)
        with pytest.raises(ArithmeticError):
            worker.flow.sweep()
        stalled, abandoned = worker.flow.sweeps()
        assert ("abandoned", 0, "ArithmeticError: broken") == (
            abandoned.sweep,
            abandoned.row_count,
            abandoned.error,
        )
        assert ("stalled", None) == (stalled.sweep, stalled.error)


def _broken(*_: object, **__: object) -> int:
    raise ArithmeticError("broken")


class TestErrors:
    def test_of_one_sweep_do_not_starve_the_others(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        [execution] = silent(worker, 1)
        monkeypatch.setattr(FlowSweeper, "reclaim_from_dead_owners", _broken)
        for act in (worker.flow.sweep, worker.source.sweep):
            with pytest.raises(ArithmeticError):
                act()
        assert ["abandoned", "not_set"] == [each.state for each in execution.computations()]
        assert ["not_set"] == [each.state for each in quiet.computations()]

    def test_of_the_timed_ones_do_not_either(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quiet = worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        monkeypatch.setattr(FlowSweeper, "_reclaim_lapsed", _broken)
        with pytest.raises(ArithmeticError):
            worker.source.sweep()
        assert ["not_set"] == [each.state for each in quiet.computations()]
        dead = worker.register_owner(pid=NO_SUCH_PID)
        worker.claim_one(owner=dead)
        worker.source.sweep()
        assert "abandoned" == quiet.computations()[0].state


class TestStalled:
    def test_what_nobody_goes_on_with_is_gone_on_with(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        assert 1 == worker.flow.sweep()
        assert {"pages": 1} == worker.run_all()
        assert 3 == execution.get("pages", timeout=0)
        assert 0 == worker.flow.sweep()

    def test_not_what_was_cancelled_or_is_of_a_graph_that_is_not_known(
        self, worker: ManualWorker
    ) -> None:
        worker.flow.start("scrape", url="abc").cancel()
        worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        assert 0 == Flow(worker.database).sweep()
        assert 1 == worker.flow.sweep()

    def test_all_are_come_to_a_page_at_a_time(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_SIZE", 2)
        for _ in range(5):
            worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        assert [5, 0] == [worker.flow.sweep() for _ in range(2)]

    def test_a_sweep_that_took_its_time_is_continued_by_the_next(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_SIZE", 2)
        monkeypatch.setattr(module, "STALLED_SECONDS", 0.0)
        for _ in range(5):
            worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        assert [2, 2, 1, 0] == [worker.flow.sweep() for _ in range(4)]
        worker.write("DELETE FROM longwatch_computations")
        assert [0, 1, 2, 2] == sorted(worker.flow.sweep() for _ in range(4))

    def test_an_execution_that_cannot_be_propagated_keeps_no_other_page(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PAGE_SIZE", 1)
        bad, good = (worker.flow.start("scrape", url=url) for url in ("bad", "good"))
        worker.write("DELETE FROM longwatch_computations")

        propagate = worker.flow.registry.propagate

        def propagate_good(tx: Transaction, state: ExecutionState) -> None:
            if state.id == bad.id:
                raise ArithmeticError
            propagate(tx, state)

        monkeypatch.setattr(worker.flow.registry, "propagate", propagate_good)
        with pytest.raises(ArithmeticError):
            worker.flow.sweep()
        assert ([], 1) == (bad.computations(), len(good.computations()))

    def test_executions_that_are_done_idle_or_failed_are_not_looked_at(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for _ in range(2):
            worker.flow.start("scrape", url="abc")
        done, failed = worker.claim()
        worker.succeed(done, 3)
        worker.give_up(failed)
        worker.flow.start("scrape")
        assert {"done", "failed", "idle"} == {each.state for each in worker.flow.executions()}
        loaded: list[Any] = []
        load = Records.load_unlocked

        def load_noting(records: Records, tx: Transaction, numbers: Any) -> Any:
            loaded.append(numbers)
            return load(records, tx, numbers)

        monkeypatch.setattr(Records, "load_unlocked", load_noting)
        assert 0 == worker.flow.sweep()
        assert [] == loaded
        worker.flow.start("scrape", url="abc")
        worker.write("DELETE FROM longwatch_computations")
        assert 1 == worker.flow.sweep()
        [[number]] = loaded
        assert [(number,)] == worker.rows("SELECT max(execution) FROM longwatch_executions")


def test_a_sweep_looks_at_what_is_leased_and_not_at_all_there_was(worker: ManualWorker) -> None:
    """The plan of its query, over a table of attempts that have ended."""
    worker.flow.start("scrape", url="abc")
    worker.claim()
    series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    worker.write(
        "INSERT INTO longwatch_computations"
        " (queue, lease_state, execution, node, state, attempt, computed_with, abandon_after, "
        "max_attempts, created_at)"
        f" {series} SELECT 1, 3, i, 'pages', 'success', 1, '{{}}', 1, 3, 0 FROM n"
    )
    worker.write("ANALYZE longwatch_computations")
    words = "EXPLAIN" if worker.database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
    rows = worker.rows(
        f"{words} {worker.source.records.sql['lapsed_leases']}",
        boot="",
        skip=worker.source.records.array_parameter([]),
        skip_owners=worker.source.records.array_parameter([]),
        limit=200,
    )
    plan = "\n".join(str(row) for row in rows)
    assert "longwatch_computations_leased" in plan
    assert "Seq Scan on longwatch_computations" not in plan
    assert "SCAN leased\n" not in plan


def test_the_sweep_for_stalled_executions_reads_none_that_are_settled(worker: ManualWorker) -> None:
    """The plan of its query, over a table of finished executions."""
    series = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)"
    worker.write(
        "INSERT INTO longwatch_executions"
        " (id, graph, version, known_nodes, settled_nodes, state, created_at, updated_at)"
        f" {series} SELECT 'e' || i, 'scrape', '1', 1, 1, 3, 0, 0 FROM n"
    )
    worker.write("ANALYZE longwatch_executions")
    words = "EXPLAIN" if worker.database.dialect == "postgresql" else "EXPLAIN QUERY PLAN"
    query = worker.source.records.sql["unsettled_executions"]
    parameters = {
        "graph": "scrape",
        "version": "1",
        "nodes": 1,
        "after_nodes": 0,
        "after": 0,
        "limit": 200,
    }
    assert [] == worker.rows(query, **parameters)
    plan = "\n".join(str(row) for row in worker.rows(f"{words} {query}", **parameters))
    assert "longwatch_executions_settled" in plan
    assert "settled_nodes" in plan
    assert "TEMP B-TREE" not in plan
    assert "Sort" not in plan
