"""Graphs whose nodes change while their executions live, and executions that all callers share."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    scrape_graph,
    url_fixture,
)
from flow_singleton_process import ids, shared_graph, start_processes
from longwatch.errors import GraphError, UsageError
from longwatch.flow import (
    Flow,
    Graph,
    and_,
    compute,
    input,  # noqa: A004 - the contract's word
    not_,
    or_,
    when,
)
from longwatch.store.database import Database

AT_ONCE = 10
UNDER_LOAD = 60


def graph_of(*nodes: Any) -> Graph:
    return Graph("scrape", version="1", nodes=[input("url"), *nodes])


def pages(after: Any = ("url",)) -> Any:
    return compute("pages", after, lambda **_: 3)


def titles(after: Any = ("pages",)) -> Any:
    return compute("titles", after, lambda **_: ["title"])


def use(database: Database, graph: Graph) -> None:
    Flow(database, [graph]).registry.registered()


class TestAChangedGraph:
    def test_names_every_changed_node_as_it_was_and_is_and_asks_for_a_version(
        self, database: Database
    ) -> None:
        use(database, graph_of(pages(), titles()))
        with pytest.raises(GraphError) as raised:
            use(database, graph_of(input("titles"), pages(["url", "titles"])))
        text = str(raised.value)
        assert "graph 'scrape' differs from version '1' in the store" in text
        assert "node 'titles' was `" in text
        assert "node 'pages' was `" in text
        assert "Give the graph a new version" in text

    def test_names_a_node_that_was_renamed(self, database: Database) -> None:
        use(database, graph_of(pages(), titles()))
        with pytest.raises(GraphError, match=r"node 'titles', which was `.*`, is gone"):
            use(database, graph_of(pages(), compute("headings", ["pages"], lambda pages: pages)))

    def test_leaves_the_store_as_it_was_when_it_is_refused(self, database: Database) -> None:
        use(database, graph_of(pages(), titles()))
        with pytest.raises(GraphError):
            use(database, graph_of(pages(), titles(["url"]), input("more")))
        use(database, graph_of(pages(), titles()))

    def test_is_another_graph_in_a_new_version(self, database: Database) -> None:
        use(database, scrape_graph(version="1"))
        use(database, Graph("scrape", version="2", nodes=[input("pages")]))

    def test_may_get_nodes_and_have_fewer_as_an_older_release_has(self, database: Database) -> None:
        for graph in (
            graph_of(pages()),
            graph_of(pages(), titles()),
            graph_of(pages()),
            graph_of(pages(), titles()),
        ):
            use(database, graph)

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (["a", "b", "c"], ["c", "a", "b"]),
            (["a", "b"], ["b", "a", "b"]),
            (["a", "b", "c"], ["c", and_("b", "a")]),
            (or_("a", and_("b", "c")), or_(and_("c", "b"), "a")),
            (or_("a", "b", "c"), or_(or_("c"), or_("b", "a"))),
            (not_(or_("a", "b")), not_(or_("b", "a"))),
            (when("a", bool), [and_(when("a", bool))]),
            (or_("a", "b"), [and_(or_("b", "a"))]),
            (["a", or_(or_("b", "c"))], [or_("c", "b"), "a"]),
            (when("a", lambda a: a), when("a", lambda a: a > 1)),
        ],
    )
    def test_may_write_the_same_gate_in_another_way(
        self, database: Database, before: Any, after: Any
    ) -> None:
        for gate in (before, after):
            use(database, graph_of(*map(input, "abc"), pages(gate)))

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (["a", "b"], or_("a", "b")),
            (["a", "b", "c"], ["a", or_(or_("b", "c"))]),
            (or_("a", "b", "c"), or_("a", and_(and_("b", "c")))),
            (["a", or_("b", "c")], or_(and_("a", "b"), "c")),
            (not_("a"), "a"),
            (and_(not_("a"), "b"), not_(and_("a", "b"))),
            (when("a", bool), "a"),
            (when("a", bool, text="is on"), when("a", bool, text="is off")),
        ],
    )
    def test_may_not_have_another_gate(self, database: Database, before: Any, after: Any) -> None:
        use(database, graph_of(*map(input, "abc"), pages(before)))
        with pytest.raises(GraphError, match="node 'pages' was `"):
            use(database, graph_of(*map(input, "abc"), pages(after)))

    @pytest.mark.parametrize("damaged", ["", "[]", '{"url": 1}', '{"url": "inp'])
    def test_is_refused_with_a_cure_if_the_stored_one_is_damaged(
        self, database: Database, damaged: str
    ) -> None:
        worker = ManualWorker(database)
        use(database, graph_of(pages()))
        worker.write("UPDATE longwatch_graphs SET nodes = :nodes", nodes=damaged)
        with pytest.raises(GraphError, match=r"damaged definition of graph 'scrape' .* delete it"):
            use(database, graph_of(pages()))
        worker.write("DELETE FROM longwatch_graphs")
        use(database, graph_of(pages()))

    def test_may_have_other_options(self, database: Database) -> None:
        use(database, scrape_graph())
        use(database, scrape_graph(max_attempts=9, abandon_after_seconds=5))

    def test_is_refused_before_an_execution_starts(self, database: Database) -> None:
        use(database, graph_of(pages(), titles()))
        changed = Flow(database, [graph_of(pages(), titles(["url"]))])
        with pytest.raises(GraphError):
            changed.start("scrape", url="abc")
        assert [] == changed.executions()


class TestAddedNodes:
    def test_are_registered_by_all_releases_that_come_at_once(
        self, database: Database, url: str
    ) -> None:
        use(database, graph_of(pages()))

        def come(number: int) -> str:
            with Flow(url, [graph_of(pages(), input(f"more{number % 2}"))]) as flow:
                try:
                    flow.registry.registered()
                except GraphError as error:
                    return "is gone" if "is gone" in str(error) else str(error)
            return "registered"

        calls = [BackgroundCall(partial(come, number)) for number in range(AT_ONCE)]
        results = [call.wait() for call in calls]
        # Two releases that each lack the node of the other: the first one to come wins.
        assert {"registered": AT_ONCE // 2, "is gone": AT_ONCE // 2} == {
            each: results.count(each) for each in set(results)
        }

    def test_are_computed_in_every_execution_under_load(self, database: Database, url: str) -> None:
        old_graph = graph_of(pages())
        new_graph = graph_of(pages(), titles())
        use(database, old_graph)

        def start_all() -> list[str]:
            with Flow(url, [old_graph]) as old, old.worker(concurrency=4):
                return [old.start("scrape", url="abc").id for _ in range(UNDER_LOAD)]

        def release() -> str:
            with Flow(url, [graph_of(pages(), titles())]) as flow:
                flow.registry.registered()
                return "released"

        starting = BackgroundCall(start_all)
        releases = [BackgroundCall(release) for _ in range(3)]
        assert ["released"] * 3 == [each.wait() for each in releases]
        with Flow(url, [new_graph]) as new, new.worker(concurrency=4):
            started = starting.wait()
            assert UNDER_LOAD == len(started)
            values = [new.execution(each).get("titles", timeout=TIMEOUT) for each in started]
        assert [["title"]] * UNDER_LOAD == values


class TestFindOrStart:
    def test_finds_what_it_has_started_with_its_own_inputs(self, database: Database) -> None:
        worker = ManualWorker(database, shared_graph())
        first = worker.flow.find_or_start("shared", number=1)
        second = worker.flow.find_or_start("shared", number=2)
        assert first.id == second.id
        assert {"double": 1} == worker.run_all()
        assert 2 == second.get("double", wait=False)

    def test_differs_from_executions_of_start(self, database: Database) -> None:
        flow = Flow(database, [shared_graph()])
        started = {flow.start("shared").id, flow.start("shared", idempotency_key="shared").id}
        assert flow.find_or_start("shared").id not in started

    def test_has_an_execution_of_each_version(self, database: Database) -> None:
        flow = Flow(database, [shared_graph("1"), shared_graph("2")])
        found = [flow.find_or_start("shared", version=version) for version in ("1", "2", "1")]
        assert ["1", "2", "1"] == [each.version for each in found]
        assert found[0].id == found[2].id != found[1].id

    def test_replaces_a_cancelled_execution(self, database: Database) -> None:
        flow = Flow(database, [shared_graph()])
        cancelled = flow.find_or_start("shared", number=1)
        cancelled.cancel()
        replacement = flow.find_or_start("shared", number=2)
        assert cancelled.id != replacement.id == flow.find_or_start("shared").id

    def test_starts_one_execution_for_processes_that_come_at_once(self, url: str) -> None:
        with Flow(url, [shared_graph()], auto_migrate=True) as flow:
            flow.executions()
            found = ids(start_processes(url, AT_ONCE), timeout=TIMEOUT)
            assert [flow.executions()[0].id] * AT_ONCE == found
            assert 1 == len(flow.executions())

    def test_refuses_an_unknown_input(self, database: Database) -> None:
        with pytest.raises(UsageError):
            Flow(database, [shared_graph()]).find_or_start("shared", double=1)
