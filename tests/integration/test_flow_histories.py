"""Historians, on each kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    store_wall,
    url_fixture,
)
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.errors import UsageError
from longwatch.flow import (
    Execution,
    Flow,
    Graph,
    compute,
    historian,
    input,  # noqa: A004 - the contract's word
    map,  # noqa: A004 - the contract's word
    mutate,
    when,
)
from longwatch.flow.histories import MAX_HISTORY_BYTES
from longwatch.store.database import Database
from longwatch.testing import FakeClock

Entry = tuple[str, int, Any]


def log_graph(*more: Any, max_entries: int = 100) -> Graph:
    """a → double; log of both."""
    return Graph(
        "log",
        version="1",
        nodes=[
            input("a"),
            input("b"),
            compute("double", when("a", bool), lambda a: a * 2),
            historian("log", ["a", "double"], max_entries=max_entries),
            *more,
        ],
    )


def entries_of(execution: Execution, name: str = "log") -> list[Entry]:
    found = execution.get(name, wait=False)
    return [(each["node"], each["revision"], each["value"]) for each in found]


class TestEntries:
    def test_are_recorded_with_the_change_newest_first(self, database: Database) -> None:
        clock = FakeClock(wall=store_wall(database))
        worker = ManualWorker(database, log_graph(), clock=clock)
        execution = worker.flow.start("log", a=1)
        at = clock.wall()
        assert [{"node": "a", "revision": 1, "value": 1, "at": at}] == execution.get("log")
        clock.advance(5)
        worker.run_all()
        execution.set(a=2)
        worker.run_all()
        assert [("double", 4, 4), ("a", 3, 2), ("double", 2, 2), ("a", 1, 1)] == entries_of(
            execution
        )
        assert at + 5 == execution.get("log")[0]["at"]

    def test_are_only_of_the_named_nodes_and_of_changes(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        execution = worker.flow.start("log", a=1)
        execution.set(b=7)
        execution.set(a=1)
        assert [("a", 1, 1)] == entries_of(execution)
        assert "log" not in worker.flow.start("log", b=1).values()

    def test_of_unset_and_cleared_values_say_so(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        execution = worker.flow.start("log", a=None)
        execution.set(a=1)
        worker.run_all()
        execution.unset("a")
        log = execution.get("log", wait=False)
        assert [
            ("double", 4, None),
            ("a", 4, None),
            ("double", 3, 2),
            ("a", 2, 1),
            ("a", 1, None),
        ] == (entries_of(execution))
        assert [True, True, None, None, None] == [each.get("unset") for each in log]

    def test_stay_when_a_gate_clears_the_nodes(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        execution = worker.flow.start("log", a=1)
        worker.run_all()
        execution.set(a=0)
        assert {"a", "log"} == set(execution.values())
        assert 4 == len(execution.get("log", wait=False))

    def test_are_also_of_mutations_that_keep_the_revision(self, database: Database) -> None:
        graph = log_graph(mutate("write", ["b"], lambda b: b, writes="a"))
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("log", a=1, b=5)
        worker.run_all()
        assert ("a", 1, 5) == entries_of(execution)[0]

    def test_count_once_for_a_propagation_that_runs_twice(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        execution = worker.flow.start("log", a=1)

        def work(tx: Any) -> None:
            [state] = worker.flow.records.load(tx, [1]).values()
            state.set_value("a", "2")
            worker.flow.registry.propagate(tx, state)
            worker.flow.registry.propagate(tx, state)
            worker.flow.records.save(tx, [state])

        database.write(work)
        assert [("a", 2, 2), ("a", 1, 1)] == entries_of(execution)

    def test_of_a_map_that_one_transaction_ends_twice_are_the_committed_value(
        self, database: Database
    ) -> None:
        """Its last element and its new list, which is empty, arrive in one batch."""
        nodes = [
            input("a"),
            compute("pages", ["a"], lambda a: a),
            map("doubled", "pages", lambda page: page * 2),
            historian("log", ["doubled"]),
        ]
        worker = ManualWorker(database, Graph("log", version="1", nodes=nodes))
        execution = worker.flow.start("log", a=[1])
        worker.run(worker.claim())
        [element] = worker.claim()
        execution.set(a=[])
        [pages] = worker.claim()
        worker.source.settle(
            [
                Settlement(element.claim, RowOutcome.DONE, result=b"2"),
                Settlement(pages.claim, RowOutcome.DONE, result=b"[]"),
            ]
        )
        doubled = execution.value("doubled")
        assert doubled is not None
        assert [] == doubled.value
        assert [("doubled", doubled.revision, [])] == entries_of(execution)

    def test_cannot_be_set_or_retried(self, database: Database) -> None:
        execution = ManualWorker(database, log_graph()).flow.start("log", a=1)
        with pytest.raises(UsageError, match="is computed"):
            execution.set(log=[])
        with pytest.raises(UsageError, match="nothing to retry"):
            execution.retry("log")


class TestBounds:
    def test_the_oldest_of_too_many_entries_are_dropped(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph(max_entries=3))
        execution = worker.flow.start("log", a=1)
        for value in (2, 3, 4, 5):
            execution.set(a=value)
        assert [("a", 5, 5), ("a", 4, 4), ("a", 3, 3)] == entries_of(execution)

    def test_the_oldest_of_too_large_entries_are_dropped(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        large = MAX_HISTORY_BYTES * 2 // 5
        execution = worker.flow.start("log", a="x" * large)
        for letter in "yz":
            execution.set(a=letter * large)
        kept = entries_of(execution)
        assert ["z", "y"] == [value[0] for _, _, value in kept]
        [(size,)] = worker.rows(
            "SELECT length(value) FROM longwatch_values WHERE node = :node", node="log"
        )
        assert size <= MAX_HISTORY_BYTES

    def test_a_value_that_is_too_large_alone_leaves_a_marker(self, database: Database) -> None:
        worker = ManualWorker(database, log_graph())
        execution = worker.flow.start("log", a=1)
        execution.set(a="x" * MAX_HISTORY_BYTES)
        assert [("a", 2, None), ("a", 1, 1)] == entries_of(execution)
        assert [True, None] == [each.get("truncated") for each in execution.get("log")]


class TestDownstream:
    def test_a_node_after_a_historian_is_computed_with_every_change(
        self, database: Database
    ) -> None:
        graph = log_graph(compute("length", ["log"], lambda log: len(log) + 0))
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("log", a=1)
        worker.run_all()
        assert 2 == execution.get("length", timeout=0)
        execution.set(a=2)
        worker.run_all()
        assert 4 == execution.get("length", timeout=0)
        assert ("done", 0) == (worker.flow.executions()[0].state, worker.flow.sweep())

    def test_a_waiting_get_returns_the_next_change(self, database: Database) -> None:
        worker = ManualWorker(
            database, log_graph(), clock=(clock := FakeClock(wall=store_wall(database)))
        )
        execution = worker.flow.start("log", a=1)
        waiting = BackgroundCall(lambda: execution.get("log", newer_than=1, timeout=TIMEOUT))
        clock.await_parked(1)
        execution.set(a=2)
        assert [2, 1] == [each["value"] for each in waiting.wait()]

    def test_workers_record_results_of_cached_executions(self, url: str) -> None:
        graph = log_graph(
            compute("third", ["double"], lambda double: double + 1),
            historian("all", ["a", "double", "third"]),
        )
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution = flow.start("log", a=1)
            assert 3 == execution.get("third", timeout=TIMEOUT)
            assert [("third", 3, 3), ("double", 2, 2), ("a", 1, 1)] == entries_of(execution, "all")


class TestExplanation:
    def test_says_what_is_recorded(self, database: Database) -> None:
        execution = ManualWorker(database, log_graph()).flow.start("log")
        assert (
            "log is recording the changes of `a` and `double`, 0 of at most 100 kept"
            == execution.explain().describe("log")
        )
        execution.set(a=0)
        assert "1 of at most 100 kept" in str(execution.explain())
