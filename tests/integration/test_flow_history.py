"""The history of an execution."""

from __future__ import annotations

from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    ManualWorker,
    database_fixture,
    scrape_graph,
    url_fixture,
)
from longwatch.errors import UsageError
from longwatch.flow import Execution, Graph
from longwatch.store.database import Database
from longwatch.testing import run_graph


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    return ManualWorker(database, scrape_graph(max_attempts=2))


def changes(execution: Execution, **options: Any) -> list[tuple[Any, ...]]:
    """Of each entry: node, state, revision, value."""
    return [
        (each.node, each.state, each.revision, each.value) for each in execution.history(**options)
    ]


class TestHistory:
    def test_of_a_computed_execution_has_the_values_newest_first(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.run_all()
        assert [
            ("titles", "success", 3, ["title", "title"]),
            ("pages", "success", 2, 2),
            ("url", "set", 1, "ab"),
        ] == changes(execution)

    def test_has_the_present_value_at_the_attempt_that_computed_it(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.run_all()
        execution.set(url="abc")
        worker.run_all()
        assert [
            ("titles", "success", 6, ["title"] * 3),
            ("pages", "success", 5, 3),
            ("url", "set", 4, "abc"),
            ("titles", "success", None, None),
            ("pages", "success", None, None),
        ] == changes(execution)

    def test_tells_how_each_attempt_ended(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="ab")
        assert worker.fail(worker.claim_one(), "first")
        assert worker.fail(worker.claim_one(), "second")
        last, first, _ = execution.history()
        assert ("failed", "raised", "second", 2, {"url": 1}) == (
            last.state,
            last.end_cause,
            last.error,
            last.attempt,
            last.computed_with,
        )
        assert ("failed", "first", 1, None) == (
            first.state,
            first.error,
            first.attempt,
            first.revision,
        )

    def test_leaves_out_attempts_that_are_open(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.claim_one()
        assert [("url", "set", 1, "ab")] == changes(execution)

    def test_has_a_change_and_the_attempt_that_it_cancelled(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="ab")
        execution.set(url="abc")
        assert {("pages", "cancelled", None, None), ("url", "set", 2, "abc")} == set(
            changes(execution)
        )

    def test_has_values_that_were_unset(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.run_all()
        execution.unset("url")
        present = [each for each in changes(execution) if each[2] is not None]
        assert {(node, "unset", 4, None) for node in ("url", "pages", "titles")} == set(present)

    def test_tells_none_as_a_value_from_no_value(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url=None)
        assert [("url", "set", 1, None)] == changes(execution)

    def test_of_one_node_and_bounded_by_a_limit(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.run_all()
        assert [("pages", "success", 2, 2)] == changes(execution, node="pages")
        assert [("titles", "success", 3, ["title", "title"])] == changes(execution, limit=1)

    def test_of_another_execution_is_apart(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        worker.flow.start("scrape", url="ab")
        worker.run_all()
        assert [] == execution.history()

    def test_keeps_the_value_where_it_was_computed_when_later_attempts_fail(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="ab")
        worker.run_all()
        execution.set(url="abc")
        assert worker.fail(worker.claim_one())
        assert [("pages", "failed", None, None), ("pages", "success", 2, 2)] == changes(
            execution, node="pages"
        )

    @pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, True, "9"])
    def test_refuses_a_limit_out_of_bounds(self, worker: ManualWorker, limit: Any) -> None:
        execution = worker.flow.start("scrape")
        with pytest.raises(UsageError, match="whole number from 1 to 10000, not"):
            execution.history(limit=limit)

    def test_refuses_an_unknown_node(self, worker: ManualWorker) -> None:
        with pytest.raises(UsageError, match="has no node 'page'; did you mean pages"):
            worker.flow.start("scrape").history("page")


def test_a_tick_has_its_value_at_its_firing_not_at_its_schedule(database: Database) -> None:
    graph = Graph("hourly", version="1")

    @graph.tick_recurring()
    def tick() -> float:
        return 60.0

    with run_graph(graph, database) as run:
        execution = run.start()
        run.run_ready()
        run.advance(60)
        run.run_ready()
        found = [each for each in execution.history() if each.state == "success"]
        assert [False, True, False] == [each.revision is not None for each in found]
        assert execution.get("tick", wait=False) == found[1].value


def test_elements_of_a_map_are_left_out(database: Database) -> None:
    graph = Graph("squares", version="1")
    graph.input("numbers")
    graph.map("squared", over="numbers", function=lambda item: item * item)
    with run_graph(graph, database) as run:
        execution = run.start(numbers=[1, 2, 3])
        run.run_ready()
        assert [("squared", "success", 2, [1, 4, 9]), ("numbers", "set", 1, [1, 2, 3])] == changes(
            execution
        )
