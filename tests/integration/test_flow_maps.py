"""Maps: each element of a list is a computation of its own, on every kind of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    NO_SUCH_PID,
    ManualWorker,
    database_fixture,
    url_fixture,
)
from longwatch.errors import ComputationFailedError, GraphError, UsageError
from longwatch.flow import Graph, compute, input, map, when  # noqa: A004 - the contract's words
from longwatch.flow.map_records import MapRecords
from longwatch.store.database import Database
from longwatch.testing import run_graph


def double_graph(function: Callable[..., Any] | None = None, **options: Any) -> Graph:
    """pages → doubled, a map; total comes after it."""
    return Graph(
        "doubling",
        version="1",
        nodes=[
            input("pages"),
            map("doubled", "pages", function or (lambda page: page * 2), **options),
            compute("total", ["doubled"], lambda doubled: len(doubled)),  # noqa: PLW0108 - a parameter names a node
        ],
    )


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> ManualWorker:
    return ManualWorker(database, double_graph())


def elements_of(worker: ManualWorker) -> list[tuple[Any, ...]]:
    return worker.rows(
        "SELECT position, is_open, is_set, failed FROM longwatch_map_elements ORDER BY position"
    )


class TestTheValue:
    def test_is_the_list_of_results_in_order(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[3, 1, 2])
        for leased in reversed(worker.claim()):
            worker.run([leased])
        assert [6, 2, 4] == execution.get("doubled", wait=False)
        assert {"total": 1} == worker.run_all()

    def test_of_an_empty_list_is_there_at_once_and_propagates(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[])
        assert [] == execution.get("doubled", wait=False)
        assert {"total": 1} == worker.run_all()

    def test_has_a_place_for_each_of_equal_elements(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=["a", "b", "a", "a"])
        assert {"doubled": 4, "total": 1} == worker.run_all()
        assert ["aa", "bb", "aa", "aa"] == execution.get("doubled", wait=False)

    def test_may_be_nested_and_null(self, database: Database) -> None:
        graph = double_graph(lambda page: {"was": page, "none": None})
        with run_graph(graph, database) as run:
            pages = [None, [1, [2]], {"b": {"c": "é\n"}}, "", 1.5, True]
            execution = run.start(pages=pages)
            run.run_ready()
            assert [{"was": page, "none": None} for page in pages] == execution.get(
                "doubled", wait=False
            )

    def test_is_null_for_each_element_of_a_function_that_returns_none(
        self, database: Database
    ) -> None:
        with run_graph(double_graph(lambda page: None), database) as run:
            execution = run.start(pages=[1, 2])
            run.run_ready()
            assert [None, None] == execution.get("doubled", wait=False)

    def test_comes_from_a_computed_list_too(self, database: Database) -> None:
        graph = Graph("chain", version="1")
        graph.input("count")
        graph.compute(after=["count"], name="pages")(lambda count: list(range(count)))
        graph.map("doubled", over="pages", function=lambda page: page * 2)
        graph.map("quadrupled", over="doubled", function=lambda page: page * 2)
        with run_graph(graph, database) as run:
            execution = run.start(count=3)
            run.run_ready()
            assert [0, 4, 8] == execution.get("quadrupled", wait=False)

    def test_elements_get_other_nodes_by_name(self, database: Database) -> None:
        graph = Graph("styled", version="1", nodes=[input("pages"), input("style")])

        @graph.map(over="pages", after=["style"])
        def styled(page: str, style: str, context: Any) -> str:
            return f"{page}{style}{context.node}"

        with run_graph(graph, database) as run:
            execution = run.start(pages=["a", "b"], style="!")
            run.run_ready()
            assert ["a!styled", "b!styled"] == execution.get("styled", wait=False)


class TestARefusedList:
    @pytest.mark.parametrize(
        ("value", "found"),
        [({"a": 1}, "an object"), ("abc", "text"), (None, "null"), (7, "a number")],
    )
    def test_of_another_type_fails_the_node_for_good(
        self, worker: ManualWorker, value: Any, found: str
    ) -> None:
        execution = worker.flow.start("doubling", pages=value)
        with pytest.raises(ComputationFailedError, match=f"needs a list in 'pages', not {found}"):
            execution.get("doubled", timeout=0)
        execution.set(pages=[1])
        worker.run_all()
        assert [2] == execution.get("doubled", wait=False)

    def test_is_explained_by_its_error_and_not_by_the_elements_of_the_list_before_it(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("doubling", pages=["a", "b"])
        worker.run_all()
        execution.set(pages=7)
        explained = str(execution.explain())
        assert "doubled: given up; change one of its inputs, or retry it" in explained
        assert "elements" not in explained
        assert "needs a list in 'pages', not a number" in explained

    def test_of_results_that_are_too_large_together_fails_the_node_for_good(
        self, database: Database
    ) -> None:
        """The limit is in bytes: these have fewer characters."""
        worker = ManualWorker(database, double_graph(lambda page: "é" * (5 << 20)))
        execution = worker.flow.start("doubling", pages=[1, 2])
        worker.run_all()
        with pytest.raises(ComputationFailedError, match="have 20,971,527 bytes or more together"):
            execution.get("doubled")

    @pytest.mark.parametrize("last", ["x", None])
    def test_of_results_that_may_not_fit_into_memory_loads_none_of_them(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, last: str | None
    ) -> None:
        """They are too large together, or an element failed so that they are not needed."""

        def fail(*_: Any) -> None:
            raise AssertionError("loaded all results")

        monkeypatch.setattr(MapRecords, "results", fail)
        worker = ManualWorker(database, double_graph())
        execution = worker.flow.start("doubling", pages=[1, 2])
        first, second = worker.claim()
        worker.succeed(first, "x" * (9 << 20))
        if last is None:
            worker.give_up(second)
        else:
            worker.succeed(second, last * (9 << 20))
        error = (
            "element 1 failed; the first: hopeless" if last is None else "bytes or more together"
        )
        with pytest.raises(ComputationFailedError, match=error):
            execution.get("doubled")
        execution.retry("doubled")

    def test_of_more_than_100_000_elements_fails_the_node_for_good(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("doubling", pages=[0] * 100_001)
        with pytest.raises(ComputationFailedError, match=r"up to 100,000 elements, .* has 100,001"):
            execution.get("doubled", timeout=0)


class TestAChangedList:
    def test_computes_only_changed_elements(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=["a", "b", "c"])
        worker.run_all()
        execution.set(pages=["c", "x", "a", "a"])
        assert {"doubled": 2, "total": 1} == worker.run_all()
        assert ["cc", "xx", "aa", "aa"] == execution.get("doubled", wait=False)
        assert 4 == len(elements_of(worker))

    def test_with_known_elements_only_has_its_value_at_once(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=["a", "b", "c"])
        worker.run_all()
        execution.set(pages=["c", "a"])
        assert ["cc", "aa"] == execution.get("doubled", wait=False)
        assert {"total": 1} == worker.run_all()

    def test_keeps_elements_whose_keys_are_in_another_order(self, database: Database) -> None:
        with run_graph(double_graph(lambda page: page["a"]), database) as run:
            execution = run.start(pages=[{"a": 1, "b": 2}])
            run.run_ready()
            execution.set(pages=[{"b": 2, "a": 1}, {"a": 3}])
            run.run_ready()
            assert [1, 3] == execution.get("doubled", wait=False)
            assert 2 == run.runs["doubled"]

    def test_while_elements_run_cancels_those_that_were_removed(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=["a", "b"])
        first, second = worker.claim()
        execution.set(pages=["b", "c"])
        assert not worker.succeed(first, "late")
        assert worker.succeed(second, "bb")
        assert {"doubled": 1, "total": 1} == worker.run_all()
        assert ["bb", "cc"] == execution.get("doubled", wait=False)

    def test_of_another_input_computes_all_elements_again(self, database: Database) -> None:
        graph = Graph("styled", version="1", nodes=[input("pages"), input("style")])
        graph.map(
            "styled", over="pages", after=["style"], function=lambda page, style: page + style
        )
        with run_graph(graph, database) as run:
            execution = run.start(pages=["a", "b"], style="!")
            run.run_ready()
            execution.set(style="?")
            run.run_ready()
            assert ["a?", "b?"] == execution.get("styled", wait=False)
            assert 4 == run.runs["styled"]

    def test_of_another_input_cancels_running_elements(self, database: Database) -> None:
        graph = Graph("styled", version="1", nodes=[input("pages"), input("style")])
        graph.map(
            "styled", over="pages", after=["style"], function=lambda page, style: page + style
        )
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("styled", pages=["a", "b"], style="!")
        first, _ = worker.claim()
        execution.set(style="?")
        assert not worker.succeed(first, "late")
        assert {"styled": 2} == worker.run_all()
        assert ["a?", "b?"] == execution.get("styled", wait=False)

    def test_that_is_unset_after_its_map_was_superseded_leaves_no_elements(
        self, database: Database
    ) -> None:
        """The map had neither a value nor an attempt when its gate was no longer met."""
        nodes = [
            input("pages"),
            input("a"),
            compute("other", ["a"], lambda a: a),
            map("doubled", "pages", lambda page: page, ["other"]),
        ]
        worker = ManualWorker(database, Graph("doubling", version="1", nodes=nodes))
        execution = worker.flow.start("doubling", pages=[1, 2], a=1)
        worker.run(worker.claim())
        execution.set(pages=[1, 2, 3], a=2)
        assert 2 == len(elements_of(worker))
        execution.unset("pages")
        assert [] == elements_of(worker)

    def test_behind_a_false_gate_is_cleared(self, database: Database) -> None:
        graph = Graph("gated", version="1", nodes=[input("pages"), input("go")])
        graph.map("doubled", over="pages", after=when("go", bool), function=lambda page: page * 2)
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("gated", pages=[1, 2], go=True)
        worker.run(worker.claim(1))
        [running] = worker.claim()
        execution.set(go=False)
        assert not worker.succeed(running, 4)
        assert [] == elements_of(worker)
        execution.set(go=True)
        assert {"doubled": 2} == worker.run_all()
        assert [2, 4] == execution.get("doubled", wait=False)


class TestAFailedElement:
    def test_does_not_stop_the_others_and_is_named(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=list(range(5)))
        leased = worker.claim()
        assert worker.give_up(leased[1], "first")
        assert worker.give_up(leased[3], "second")
        assert "running" == execution.explain().nodes[1].state
        assert "being computed, 0 of 5 elements done, 2 failed (indices 1, 3)" == (
            execution.explain().nodes[1].text
        )
        worker.run([leased[0], leased[2], leased[4]])
        with pytest.raises(
            ComputationFailedError, match="elements 1 and 3 failed; the first: first"
        ):
            execution.get("doubled", timeout=0)
        assert "given up, 3 of 5 elements done, 2 failed (indices 1, 3); " in (
            execution.explain().nodes[1].text
        )
        assert "failed" == worker.flow.executions()[0].state

    def test_alone_is_tried_again_by_retry(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[1, 2, 3])
        leased = worker.claim()
        worker.give_up(leased[1])
        worker.run([leased[0], leased[2]])
        execution.retry("doubled")
        assert {"doubled": 1, "total": 1} == worker.run_all()
        assert [2, 4, 6] == execution.get("doubled", wait=False)

    def test_is_tried_again_by_retry_while_others_run(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[1, 2, 3])
        leased = worker.claim()
        worker.give_up(leased[1])
        worker.run([leased[0]])
        execution.retry("doubled")
        worker.run([leased[2]])
        worker.run_all()
        assert [2, 4, 6] == execution.get("doubled", wait=False)

    def test_has_max_attempts_with_the_backoff_of_its_node(self, database: Database) -> None:
        def fail(page: int) -> int:
            if page == 1:
                raise ValueError("odd")
            return page

        with run_graph(double_graph(fail, max_attempts=3), database) as run:
            execution = run.start(pages=[0, 1, 2])
            run.run_ready()
            assert 3 == run.runs["doubled"]
            run.advance(60)
            assert 5 == run.runs["doubled"]
            with pytest.raises(
                ComputationFailedError, match=r"element 1 failed; .* ValueError: odd"
            ):
                execution.get("doubled", timeout=0)


class TestInFlight:
    def test_no_more_than_max_in_flight_are_open(self, database: Database) -> None:
        worker = ManualWorker(database, double_graph(max_in_flight=3))
        execution = worker.flow.start("doubling", pages=list(range(10)))
        seen = []
        while leased := worker.claim():
            if leased[0].item.node == "doubled":
                seen.append(len(leased))
                worker.run([leased[-1]])
                for each in leased[:-1]:
                    worker.release(each)
            else:
                worker.run(leased)
        assert {1, 2, 3} >= set(seen)
        assert 8 == seen.count(3)
        assert [2 * page for page in range(10)] == execution.get("doubled", wait=False)

    def test_failed_elements_make_room(self, database: Database) -> None:
        worker = ManualWorker(database, double_graph(max_in_flight=1, max_attempts=1))
        execution = worker.flow.start("doubling", pages=[1, 2])
        assert worker.fail(worker.claim_one())
        assert worker.succeed(worker.claim_one(), 4)
        assert "failed" == worker.flow.executions()[0].state
        execution.retry("doubled")
        assert {"doubled": 1, "total": 1} == worker.run_all()

    def test_elements_of_many_maps_end_in_one_batch(self, worker: ManualWorker) -> None:
        executions = [worker.flow.start("doubling", pages=[n, n + 1]) for n in range(5)]
        worker.run_all()
        assert [[2 * n, 2 * n + 2] for n in range(5)] == [
            each.get("doubled", wait=False) for each in executions
        ]


class TestEndingEarly:
    def test_cancel_cancels_running_and_waiting_elements(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[1, 2, 3])
        [running] = worker.claim(1)
        execution.cancel()
        assert not worker.succeed(running, 2)
        assert [] == worker.claim()
        assert {("doubled", "cancelled", "execution")} == set(worker.states(execution))

    def test_abandon_abandons_running_elements(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[1, 2, 3])
        first, second = worker.claim(2)
        execution.abandon("doubled")
        assert not worker.succeed(first, 2)
        assert not worker.succeed(second, 2)
        assert {"doubled": 3, "total": 1} == worker.run_all()
        assert [2, 4, 6] == execution.get("doubled", wait=False)

    def test_abandon_without_running_elements_is_refused(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("doubling", pages=[1])
        with pytest.raises(UsageError, match=r"no element of map 'doubled' .* is running"):
            execution.abandon("doubled")


class TestDeadWorkers:
    def test_elements_of_a_dead_worker_are_computed_again(self, worker: ManualWorker) -> None:
        dead = worker.register_owner(pid=NO_SUCH_PID)
        execution = worker.flow.start("doubling", pages=[1, 2, 3])
        late = worker.claim(2, owner=dead)
        worker.flow.sweep()
        worker.run_all()
        assert [2, 4, 6] == execution.get("doubled", wait=False)
        assert [False, False] == [worker.succeed(each, "late") for each in late]
        assert [2, 4, 6] == execution.get("doubled", wait=False)

    def test_a_poison_element_is_blamed_and_the_others_are_done(self, database: Database) -> None:
        def poison(page: int) -> int:
            if page == 1:
                run.crash_at("computed", node="doubled")
            return page

        with run_graph(double_graph(poison), database) as run:
            execution = run.start(pages=[1, 2])
            run.run_ready()
            run.advance(600)
            assert 3 == len(run.crashes)
            with pytest.raises(ComputationFailedError, match="element 0 failed; the first: poison"):
                execution.get("doubled", timeout=0)
            assert [1, 1] == [
                sum(column)
                for column in zip(
                    *run.flow.database.read(
                        lambda tx: tx.rows("SELECT is_set, failed FROM longwatch_map_elements")
                    ),
                    strict=True,
                )
            ]

    def test_an_element_past_its_deadline_is_abandoned_and_tried_again(
        self, database: Database
    ) -> None:
        calls = []

        def slow(page: int) -> int:
            calls.append(page)
            if calls == [0]:
                run.advance(100)
            return page

        with run_graph(double_graph(slow, abandon_after_seconds=10), database) as run:
            execution = run.start(pages=[0, 1])
            run.run_ready()
            run.advance(100)
            assert [0, 1] == execution.get("doubled", wait=False)
            assert 3 == len(calls)
            assert "deadline" in [each.end_cause for each in execution.computations()]


class TestTheDefinition:
    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda: 1, "needs a first parameter that gets the element"),
            (lambda context: 1, "needs a first parameter that gets the element"),
            (lambda *pages: 1, "needs a first parameter that gets the element"),
            (lambda page, other: 1, "takes 'other', which is not in after="),
            (lambda style: 1, "'style' is the name of a node in after="),
        ],
    )
    def test_of_a_function_without_its_parameters_is_refused(
        self, function: Callable[..., Any], message: str
    ) -> None:
        with pytest.raises(GraphError, match=message):
            map("m", "pages", function, ["style"])

    def test_of_an_unknown_list_is_refused(self) -> None:
        with pytest.raises(GraphError, match="comes after 'pages', which does not exist"):
            Graph("g", version="1", nodes=[map("m", "pages", lambda page: page)])

    @pytest.mark.parametrize("count", [0, -1, 1.5, True, "3"])
    def test_of_a_wrong_max_in_flight_is_refused(self, count: Any) -> None:
        with pytest.raises(GraphError, match="max_in_flight must be a whole number"):
            map("m", "pages", lambda page: page, max_in_flight=count)

    def test_names_its_list(self) -> None:
        node = map("m", "pages", lambda page: page, ["style"])
        assert "map over pages after pages and style" == node.definition
