"""What the status page reads of executions, on every database, without the code of their graphs."""

from __future__ import annotations

from pathlib import Path

import pytest

from flow_rig import ManualWorker, database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.flow import Execution, Graph, not_, when
from longwatch.page.readers.execution_lists import ExecutionFilter, read_executions, read_graphs
from longwatch.page.readers.executions import (
    MAX_VALUE_CHARS,
    NodeRow,
    read_execution,
    retry_nodes,
)
from longwatch.page.view import NotFoundError
from longwatch.store.database import Database
from longwatch.store.sqlite.database import SqliteDatabase


def letters() -> Graph:
    """Nodes of most kinds."""
    graph = Graph("letters", version="1")
    for name in ("a", "approved", "items"):
        graph.input(name)
    graph.compute(after=["a"], name="draft", max_attempts=1)(lambda a: a)
    graph.compute(after=["draft", not_("approved")], name="ask")(lambda draft: draft)
    graph.compute(after=["draft", when("approved", bool, text="is_true")], name="final")(
        lambda draft: draft
    )
    graph.map("each", over="items", function=lambda item: item, max_attempts=1)
    graph.mutate(after=["final"], writes="a", name="correct")(lambda final: final)
    graph.historian("past", of=["draft"])
    return graph


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> ManualWorker:
    return ManualWorker(database, letters())


def node(database: Database, execution: Execution, name: str) -> NodeRow:
    [found] = [each for each in read_execution(database, execution.id).nodes if each.name == name]
    return found


def test_graphs_are_counted_by_state(worker: ManualWorker, database: Database) -> None:
    worker.flow.start("letters", a=1)
    worker.run_all()
    worker.flow.start("letters").cancel()
    [found] = read_graphs(database)
    assert ("letters", 2) == (found.graph, found.total)
    assert {"idle": 1, "cancelled": 1} == {k: v for k, v in found.by_state.items() if v}


def test_a_store_without_executions_stays_empty(tmp_path: Path) -> None:
    with SqliteDatabase(tmp_path / "none.db") as database:
        assert [] == read_graphs(database)
        assert () == read_executions(database, ExecutionFilter()).found
        with pytest.raises(NotFoundError, match="there is no execution gone"):
            read_execution(database, "gone")
    assert [] == list(tmp_path.iterdir())


class TestLists:
    def test_pages_follow_each_other(self, worker: ManualWorker, database: Database) -> None:
        ids = [worker.flow.start("letters").id for _ in range(7)]
        seen, after = [], ""
        for _ in range(3):
            page = read_executions(database, ExecutionFilter(after=after), limit=3)
            seen.append([each.id for each in page.found])
            after = page.next
        assert [ids[6:3:-1], ids[3:0:-1], ids[:1]] == seen
        assert not after

    def test_filters(self, worker: ManualWorker, database: Database) -> None:
        red = worker.flow.start("letters", {"a": 1}, metadata={"team": "red", "size": 3})
        worker.flow.start("letters", metadata={"team": "blue"}).cancel()
        for wanted in (
            ExecutionFilter(text=red.id),
            ExecutionFilter(text="team=red"),
            ExecutionFilter(text="size = 3"),
            ExecutionFilter(graph="letters", state="waiting"),
        ):
            assert [red.id] == [each.id for each in read_executions(database, wanted).found]
        for wanted in (
            ExecutionFilter(text="team=green"),
            ExecutionFilter(text="<script>"),
            ExecutionFilter(state="done"),
        ):
            assert () == read_executions(database, wanted).found

    @pytest.mark.parametrize(
        "wanted",
        [
            ExecutionFilter(graph="letter"),
            ExecutionFilter(state="broken"),
            ExecutionFilter(after="no cursor"),
            ExecutionFilter(text="\0=1"),
        ],
    )
    def test_a_wrong_filter_is_explained(
        self, worker: ManualWorker, database: Database, wanted: ExecutionFilter
    ) -> None:
        worker.flow.start("letters")
        page = read_executions(database, wanted)
        assert page.problem or not page.found


class TestDetail:
    def test_every_node_has_its_state_and_its_reason(
        self, worker: ManualWorker, database: Database
    ) -> None:
        execution = worker.flow.start("letters", a="<b>", items=[1, 2, 3])
        worker.run_all()
        found = read_execution(database, execution.id)
        assert {
            "a": "set",
            "approved": "unset",
            "items": "set",
            "draft": "fresh",
            "ask": "fresh",
            "final": "blocked",
            "each": "fresh",
            "correct": "blocked",
            "past": "set",
        } == {each.name: each.state for each in found.nodes}
        states = {each.node: each.state for each in execution.explain().nodes}
        assert states == {each.name: each.state for each in found.nodes}
        assert "waiting for input `approved`" in node(database, execution, "final").text
        assert "recording the changes of draft" == node(database, execution, "past").text
        assert "3 of 3" in found.picture
        assert "<b>" not in found.picture

    def test_without_the_code_it_says_what_is_inferred(
        self, worker: ManualWorker, database: Database
    ) -> None:
        execution = worker.flow.start("letters", a=1, approved=False)
        worker.run_all()
        found = read_execution(database, execution.id)
        assert "inferred" in found.note
        assert "is_true" in node(database, execution, "final").text

    def test_a_graph_without_a_definition_shows_what_was_used(
        self, worker: ManualWorker, database: Database
    ) -> None:
        execution = worker.flow.start("letters", a=1)
        worker.run_all()
        worker.write("DELETE FROM longwatch_graphs")
        found = read_execution(database, execution.id)
        assert "no definition" in found.note
        assert {"a", "draft", "ask"} <= {each.name for each in found.nodes}
        worker.write(
            "INSERT INTO longwatch_graphs (graph, version, nodes) VALUES ('letters', '1', '[')"
        )
        assert "no definition" in read_execution(database, execution.id).note

    def test_a_long_value_is_cut(self, worker: ManualWorker, database: Database) -> None:
        execution = worker.flow.start("letters", a="x" * 100_000, items=list(range(20_000)))
        shown = node(database, execution, "a").value_text
        assert shown is not None
        assert (100_002, True) == (shown.size, shown.is_cut)
        assert len(shown.text) <= MAX_VALUE_CHARS
        assert "set" == node(database, execution, "items").state

    def test_secrets_in_values_are_masked(self, worker: ManualWorker, database: Database) -> None:
        execution = worker.flow.start("letters", a={"password": "hunter2"})
        row = node(database, execution, "a")
        assert row.value_text is not None
        assert "hunter2" not in row.value + row.value_text.text

    def test_failures_have_errors_and_history(
        self, worker: ManualWorker, database: Database
    ) -> None:
        execution = worker.flow.start("letters", a=1, items=[1, 2])
        while leased := worker.claim():
            for each in leased:
                worker.give_up(each, "hopeless: <b>")
        found = read_execution(database, execution.id)
        assert ("draft",) == found.failed_nodes
        command = f"longwatch flow retry MODULE:FLOW {execution.id} each"
        assert command == node(database, execution, "each").retry_command
        assert "hopeless: <b>" == node(database, execution, "draft").error
        assert [("each", 0), ("each", 1)] == [
            (each.node, each.index) for each in found.failed_elements
        ]
        assert {"a", "items", "draft", "each"} == {each.node for each in found.history}
        assert ["failed"] == [each.what for each in found.history if each.node == "draft"]

    def test_open_attempts_are_bounded(self, worker: ManualWorker, database: Database) -> None:
        execution = worker.flow.start("letters", items=list(range(150)))
        worker.claim(5)
        found = read_execution(database, execution.id)
        assert (100, True) == (len(found.open_attempts), found.has_more_attempts)
        assert 5 == sum(each.state == "running" for each in found.open_attempts)

    def test_failed_nodes_are_retried(self, worker: ManualWorker, database: Database) -> None:
        execution = worker.flow.start("letters", a=1)
        worker.exhaust(execution, "draft")
        assert ("draft",) == retry_nodes(database, execution.id).retried
        assert "waiting" == node(database, execution, "draft").state
        assert not node(database, execution, "draft").can_retry
        worker.run_all()
        assert "fresh" == node(database, execution, "draft").state
