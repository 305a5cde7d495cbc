"""Statistics of graphs, on every database."""

from __future__ import annotations

from typing import Any

import pytest

from flow_rig import ManualWorker, database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.errors import UnknownGraphError
from longwatch.flow import DurationStatistics, Flow, Graph, NodeStatistics, statistics
from longwatch.store.database import Database, Transaction


def letters(version: str = "1", *, extra: str = "") -> Graph:
    """Two inputs, and two nodes one after the other."""
    graph = Graph("letters", version=version)
    graph.input("a")
    graph.input("approved")
    graph.compute(after=["a"], name="draft", max_attempts=1)(lambda a: a)
    graph.compute(after=["draft", "approved"], name="final", max_attempts=1)(lambda draft: draft)
    if extra:
        graph.compute(after=["final"], name=extra)(lambda final: final)
    return graph


def numbers() -> Graph:
    graph = Graph("numbers", version="1")
    graph.input("a")
    graph.compute(after=["a"], name="draft")(lambda a: a)
    return graph


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> ManualWorker:
    return ManualWorker(database, letters(), numbers())


def node(worker: ManualWorker, name: str, graph: str = "letters") -> NodeStatistics:
    [found] = [each for each in worker.flow.statistics(graph).nodes if each.node == name]
    return found


def counts(worker: ManualWorker, name: str) -> tuple[int, int, int, int]:
    """In how many executions it is set, failed, running, waiting."""
    found = node(worker, name)
    return found.set, found.failed, found.running, found.waiting


def executions(worker: ManualWorker, graph: str = "letters") -> dict[str, int]:
    """The states in which there are executions."""
    by_state = worker.flow.statistics(graph).executions
    return {state: count for state, count in by_state.items() if count}


def compute_many(worker: ManualWorker, graph: str, *durations: float) -> None:
    """Compute the draft of one execution after the other, in so many seconds each."""
    for seconds in durations:
        worker.flow.start(graph, a=1)
        leased = worker.claim_one()
        worker.run([leased])
        worker.write(
            "UPDATE longwatch_computations SET started_at = 1000, ended_at = :ended "
            "WHERE seq = :seq",
            seq=leased.claim.seq,
            ended=1000 + seconds,
        )


class TestExecutions:
    def test_are_counted_by_the_states_that_ls_shows(self, worker: ManualWorker) -> None:
        start = worker.flow.start
        start("letters")  # idle: waits for its inputs
        start("letters", a=1)  # idle after its draft: waits for the approval
        start("letters", a=1, approved=1)
        worker.run_all()
        start("letters", a=1)
        worker.give_up(worker.claim_one())
        start("letters").cancel()
        start("letters", a=1)
        start("letters", a=1)
        worker.claim()  # both run
        start("letters", a=1)  # waiting
        start("numbers", a=1)
        expected = {
            "running": 2,
            "waiting": 1,
            "idle": 2,
            "failed": 1,
            "done": 1,
            "cancelled": 1,
            "archived": 0,
        }
        assert expected == worker.flow.statistics("letters").executions
        assert 8 == worker.flow.statistics("letters").total
        listed = [each.state for each in worker.flow.executions(graph="letters")]
        assert {state: listed.count(state) for state in expected} == expected

    def test_of_an_archived_one(self, worker: ManualWorker) -> None:
        worker.flow.start("letters")
        worker.write("UPDATE longwatch_executions SET state = 5")
        assert {"archived": 1} == executions(worker)

    def test_of_all_versions_are_counted_together(self, database: Database) -> None:
        worker = ManualWorker(database, letters("1"), letters("2", extra="sent"))
        worker.flow.start("letters", version="1")
        worker.flow.start("letters", version="2")
        assert {"idle": 2} == executions(worker)
        names = [each.node for each in worker.flow.statistics("letters").nodes]
        assert ["a", "approved", "draft", "final", "sent"] == names


class TestNodes:
    def test_of_a_new_graph_are_all_there_in_topological_order(self, worker: ManualWorker) -> None:
        expected = tuple(map(NodeStatistics, ("a", "approved", "draft", "final")))
        assert expected == worker.flow.statistics("letters").nodes

    def test_say_how_far_executions_get(self, worker: ManualWorker) -> None:
        for inputs in ({}, {"a": 1}, {"a": 1}, {"a": 1, "approved": 1}):
            worker.flow.start("letters", inputs)
        worker.flow.start("numbers", a=1)
        worker.run_all()
        sets = [each.set for each in worker.flow.statistics("letters").nodes]
        assert [3, 1, 3, 1] == sets

    def test_count_what_was_given_up_runs_and_waits(self, worker: ManualWorker) -> None:
        worker.flow.start("letters", a=1)
        worker.give_up(worker.claim_one())
        for _ in range(5):
            worker.flow.start("letters", a=1)
        worker.claim(2)
        assert (0, 1, 2, 3) == counts(worker, "draft")
        worker.claim()
        worker.flow.start("numbers", a=1)
        worker.claim_one()
        worker.flow.start("numbers", a=1)
        assert (0, 1, 5, 0) == counts(worker, "draft")
        assert (0, 0, 0, 0) == counts(worker, "final")

    def test_count_an_attempt_that_waits_for_its_time(self, worker: ManualWorker) -> None:
        graph = Graph("retried", version="1")
        graph.input("a")
        graph.compute(after=["a"], name="draft", max_attempts=3)(lambda a: a)
        worker = ManualWorker(worker.database, graph)
        worker.flow.start("retried", a=1)
        worker.fail(worker.claim_one(), delay=60.0)
        assert 1 == node(worker, "draft", "retried").waiting

    def test_count_an_execution_once_for_all_elements_of_a_map(self, worker: ManualWorker) -> None:
        """The open attempt of a map has `pending`; workers compute its elements."""
        worker.flow.start("letters", a=1)
        worker.write(
            "INSERT INTO longwatch_computations (queue, lease_state, execution, node, attempt, "
            "computed_with, abandon_after, max_attempts, created_at, element) "
            "SELECT queue, free.state, execution, node, 1, '{}', 1, 1, 0, 7 "
            "FROM longwatch_computations, "
            "(SELECT 0 AS state UNION ALL SELECT 0 UNION ALL SELECT 1) AS free"
        )
        worker.write(
            "UPDATE longwatch_computations SET lease_state = 1, pending = 3 WHERE element IS NULL"
        )
        assert (0, 0, 0, 1) == counts(worker, "draft")
        worker.write("UPDATE longwatch_computations SET lease_state = 2 WHERE element IS NOT NULL")
        assert (0, 0, 1, 0) == counts(worker, "draft")

    def test_with_a_queue_of_their_own_are_counted(self, database: Database) -> None:
        graph = Graph("capped", version="1")
        graph.input("a")
        graph.compute(after=["a"], name="draft", max_running=1)(lambda a: a)
        worker = ManualWorker(database, graph)
        worker.flow.start("capped", a=1)
        worker.flow.start("capped", a=1)
        worker.claim(1)
        found = node(worker, "draft", "capped")
        assert (1, 1) == (found.running, found.waiting)

    def test_that_the_graph_has_no_more_follow_those_it_has(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("letters", a=1)
        worker.run_all()
        worker.write("UPDATE longwatch_values SET node = 'former' WHERE node = 'draft'")
        names = [each.node for each in worker.flow.statistics("letters").nodes]
        assert ["a", "approved", "draft", "final", "former"] == names
        assert execution.graph == "letters"


class TestDurations:
    def test_are_those_of_successful_attempts(self, worker: ManualWorker) -> None:
        compute_many(worker, "letters", *range(1, 21))
        compute_many(worker, "numbers", 500.0)
        worker.flow.start("letters", a=1)
        worker.give_up(worker.claim_one())
        expected = DurationStatistics(count=20, mean=10.5, p50=10.0, p95=19.0, max=20.0)
        assert expected == node(worker, "draft").durations
        assert 1 == getattr(node(worker, "draft", "numbers").durations, "count", None)

    def test_of_a_node_that_was_never_computed_are_none(self, worker: ManualWorker) -> None:
        compute_many(worker, "letters", 1.0)
        assert [None, None, None] == [
            node(worker, name).durations for name in ("a", "approved", "final")
        ]

    def test_are_measured_by_the_clock_of_the_store(self, worker: ManualWorker) -> None:
        worker.flow.start("letters", a=1)
        worker.run_all()
        found = node(worker, "draft").durations
        assert found is not None
        assert (1, True) == (found.count, 0 <= found.max < 3600)

    def test_are_not_negative_after_the_clock_was_set_back(self, worker: ManualWorker) -> None:
        compute_many(worker, "letters", -5.0)
        assert DurationStatistics(1, 0.0, 0.0, 0.0, 0.0) == node(worker, "draft").durations

    def test_of_the_firing_of_a_tick_are_left_out(self, worker: ManualWorker) -> None:
        compute_many(worker, "letters", 5.0)
        worker.write("UPDATE longwatch_computations SET due_at = 1")
        assert node(worker, "draft").durations is None

    def test_are_read_of_the_newest_attempts_of_each_node(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "MAX_SAMPLES", 2)
        compute_many(worker, "letters", 9.0, 9.0, 1.0, 3.0)
        assert DurationStatistics(2, 2.0, 1.0, 3.0, 3.0) == node(worker, "draft").durations

    def test_of_a_rare_node_are_found_in_older_pages(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "MAX_SAMPLES", 2)
        monkeypatch.setattr(statistics, "PAGE_ATTEMPTS", 2)
        compute_many(worker, "letters", 4.0)
        compute_many(worker, "numbers", 1.0, 1.0, 1.0)
        compute_many(worker, "letters", 2.0)
        assert DurationStatistics(2, 3.0, 2.0, 4.0, 4.0) == node(worker, "draft").durations

    def test_of_older_pages_fill_the_samples_only_up(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "MAX_SAMPLES", 3)
        monkeypatch.setattr(statistics, "PAGE_ATTEMPTS", 2)
        compute_many(worker, "letters", 9.0, 3.0, 2.0, 1.0)
        assert DurationStatistics(3, 2.0, 2.0, 3.0, 3.0) == node(worker, "draft").durations

    def test_are_read_of_a_bounded_number_of_attempts(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "PAGE_ATTEMPTS", 2)
        monkeypatch.setattr(statistics, "MAX_PAGES", 2)
        compute_many(worker, "letters", *range(1, 11))
        found = node(worker, "draft").durations
        assert found is not None
        assert (4, 10.0) == (found.count, found.max)

    def test_need_no_more_pages_after_every_node_has_its_samples(
        self, worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(statistics, "MAX_SAMPLES", 2)
        monkeypatch.setattr(statistics, "PAGE_ATTEMPTS", 2)
        compute_many(worker, "letters", *range(1, 11))
        read = worker.database.read(lambda tx: _pages_read(tx, worker))
        assert 1 == read


def _pages_read(tx: Transaction, worker: ManualWorker) -> int:
    """How many pages of durations the statistics read."""
    read: list[str] = []

    class Counting:
        def rows(self, sql: str, *parameters: Any) -> Any:
            read.append(sql)
            return tx.rows(sql, *parameters)

    counting: Any = Counting()
    records, graphs = worker.flow.records, worker.flow.registry.graphs.values()
    statistics.read_statistics(counting, records, "letters", graphs)
    return read.count(records.sql["attempt_durations"])


class TestWithoutCode:
    def test_the_nodes_that_most_executions_have_come_first(self, worker: ManualWorker) -> None:
        worker.flow.start("letters", approved=1)
        worker.flow.start("letters", a=1, approved=1)
        worker.flow.start("letters", a=1, approved=1)
        worker.run_all()
        found = Flow(worker.database).statistics("letters")
        assert [("approved", 3), ("a", 2), ("draft", 2), ("final", 2)] == [
            (each.node, each.set) for each in found.nodes
        ]
        assert {"done": 2, "idle": 1} == {
            state: count for state, count in found.executions.items() if count
        }

    def test_an_unknown_graph_is_refused_with_the_nearest_name(self, worker: ManualWorker) -> None:
        worker.flow.start("letters")
        with pytest.raises(UnknownGraphError) as refused:
            Flow(worker.database).statistics("leters")
        assert "there is no graph 'leters' in the store; did you mean letters?" == str(
            refused.value
        )
