"""Searches for executions: which ones they find, in which order, and that operands are data."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from flow_rig import ManualWorker, database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.errors import (
    SerializationError,
    UnknownExecutionError,
    UnknownGraphError,
    UsageError,
)
from longwatch.flow import Execution, Flow, Graph, compute, input, metadata, value  # noqa: A004 - the contract's word
from longwatch.flow import indexing as indexing_module
from longwatch.flow import search as search_module
from longwatch.flow.indexing import NodeIndexes
from longwatch.flow.search_filters import ValueFilter
from longwatch.store.database import Database

HOSTILE = [
    "%",
    "_",
    "a%b",
    "a_b",
    "'",
    "'; DROP TABLE longwatch_values; --",
    "--",
    "\0",
    "a\0b",
    '"',
]
HOSTILE += ["\\", "100%", ":name", "$1", "{n}", "\x01", "é", "😀", ""]


def double(age: float) -> float:
    return age * 2


def people(*, indexed: bool, version: str = "1") -> Graph:
    nodes = [
        input("country", indexed=indexed),
        input("age", indexed=indexed),
        input("other"),
        compute("doubled", ["age"], double, max_attempts=1, indexed=indexed),
    ]
    return Graph("people", version=version, nodes=nodes)


@pytest.fixture(params=["walk", "few", "index"])
def worker(
    request: pytest.FixtureRequest, database: Database, monkeypatch: pytest.MonkeyPatch
) -> ManualWorker:
    """Workers whose searches read all executions, the few that an index names, or an index in
    order.
    """
    if request.param == "index":
        monkeypatch.setattr(search_module, "PROBE_SIZE", 0)
    made = ManualWorker(database, people(indexed=request.param != "walk"))
    made.flow.sweep()
    return made


def start(worker: ManualWorker, *values: Any, node: str = "country") -> list[Execution]:
    return [worker.flow.start("people", {node: each}) for each in values]


def found(worker: ManualWorker, *filters: ValueFilter, node: str = "country") -> list[Any]:
    """The values of the node in the executions that a search finds, the oldest first."""
    listed = worker.flow.executions("people", where=filters, sort="created")
    assert len(listed) == worker.flow.count("people", where=filters)
    return [worker.flow.execution(each.id).values().get(node) for each in listed]


class TestValues:
    @pytest.mark.parametrize("text", HOSTILE)
    def test_texts_are_compared_literally(self, worker: ManualWorker, text: str) -> None:
        start(worker, *HOSTILE, "plain", "aXb", "100x")
        assert [text] == found(worker, value("country") == text)
        assert [each for each in [*HOSTILE, "plain", "aXb", "100x"] if each.startswith(text)] == (
            found(worker, value("country").startswith(text))
        )
        assert text not in found(worker, value("country") != text)
        assert [text, "plain"] == found(worker, value("country").in_([text, "plain", "absent"]))

    def test_numbers_are_ordered_across_integers_and_fractions(self, worker: ManualWorker) -> None:
        numbers = [-10, -1.5, 0, 0.5, 2, 10, 2**53 + 1, 1e30]
        start(worker, *numbers, "5", None, True, [1], node="age")
        age = value("age")
        comparisons: list[tuple[ValueFilter, Callable[[float], bool]]] = [
            (age < 2, lambda number: number < 2),
            (age <= 2, lambda number: number <= 2),
            (age > 2, lambda number: number > 2),
            (age >= 2.0, lambda number: number >= 2),
            (age > 2**53, lambda number: number > 2**53),
            (age < -1, lambda number: number < -1),
        ]
        for condition, is_met in comparisons:
            assert list(filter(is_met, numbers)) == found(worker, condition, node="age")

    def test_a_range_of_text_finds_text_only(self, worker: ManualWorker) -> None:
        start(worker, "a", "b", "c", 5, None, True, {"x": 1})
        assert ["b", "c"] == found(worker, value("country") >= "b")
        assert ["a"] == found(worker, value("country") < "b")

    def test_types_are_told_apart(self, worker: ManualWorker) -> None:
        start(worker, 1, True, "1", None, 1.5)
        for each in (1, True, "1", None):
            [only] = found(worker, value("country") == each)
            assert (type(each), each) == (type(only), only)
        assert [1] == found(worker, value("country") == 1.0)

    def test_not_equal_finds_all_other_values_that_are_set(self, worker: ManualWorker) -> None:
        start(worker, "a", "b", None, 5, [1])
        worker.flow.start("people")
        assert ["b", None, 5, [1]] == found(worker, value("country") != "a")

    def test_null_is_set(self, worker: ManualWorker) -> None:
        _, unset = start(worker, None, "a")
        unset.unset("country")
        worker.flow.start("people", age=5)
        assert 1 == worker.flow.count("people", where=value("country").is_set())
        assert 2 == worker.flow.count("people", where=[value("country").is_not_set()])

    def test_a_search_follows_changes_of_values(self, worker: ManualWorker) -> None:
        execution, _ = start(worker, "a", "b")
        execution.set(country="b")
        assert ["b", "b"] == found(worker, value("country") == "b")
        execution.set(country=["b"])
        assert ["b"] == found(worker, value("country") == "b")
        execution.set(country="b")
        execution.unset("country")
        assert ["b"] == found(worker, value("country") == "b")

    def test_a_search_finds_results(self, worker: ManualWorker) -> None:
        start(worker, 1, 2, 3, node="age")
        worker.run_all()
        assert [2, 3] == found(worker, value("doubled") > 2, node="age")

    def test_long_texts_are_compared_to_their_end(self, worker: ManualWorker) -> None:
        one, two = ("x" * 500 + end for end in "ab")
        start(worker, one, two, "x" * 199, "x" * 198)
        assert [one] == found(worker, value("country") == one)
        assert [two, "x" * 199, "x" * 198] == found(worker, value("country") != one)
        assert ["x" * 199] == found(worker, value("country") == "x" * 199)
        assert [one, two, "x" * 199] == found(worker, value("country") > "x" * 198)
        assert [one, two] == found(
            worker,
            value("country").startswith("x" * 150),
            value("country") != "x" * 199,
            value("country") != "x" * 198,
        )
        refusals: list[Callable[[], object]] = [
            lambda: value("country") < one,
            lambda: value("country").startswith(one),
            lambda: value("country").in_([one]),
        ]
        for refused in refusals:
            with pytest.raises(UsageError, match="only with == and !="):
                refused()

    def test_all_filters_have_to_hold(self, worker: ManualWorker) -> None:
        for country, age in (("CH", 17), ("CH", 18), ("DE", 18), ("CH", 40)):
            worker.flow.start("people", country=country, age=age, other=age % 2)
        adults = [value("country") == "CH", value("age") >= 18]
        assert [18, 40] == found(worker, *adults, node="age")
        assert [18] == found(worker, *adults, value("age") < 20, value("other") == 0, node="age")
        assert [] == found(worker, *adults, value("age").in_([]))

    def test_values_of_other_graphs_are_not_found(
        self, worker: ManualWorker, database: Database
    ) -> None:
        other = Graph("others", version="1", nodes=[input("country", indexed=True)])
        ManualWorker(database, other).flow.start("others", country="CH")
        start(worker, "CH")
        assert 1 == worker.flow.count("people", where=value("country") == "CH")
        assert 2 == worker.flow.count(where=value("country") == "CH")


class TestOrder:
    def test_pages_follow_the_order_of_values(self, worker: ManualWorker) -> None:
        ages = [30, 5, 7.5, 30, -2, 5, 11]
        start(worker, *ages, node="age")
        worker.flow.start("people", country="no age")
        start(worker, [1], node="age")
        for sort, expected in (("age", sorted(ages)), ("-age", sorted(ages, reverse=True))):
            assert expected == [
                worker.flow.execution(each).values()["age"] for each in self.paged(worker, sort)
            ]

    def test_pages_follow_the_order_of_creation_and_of_change(self, worker: ManualWorker) -> None:
        made = start(worker, *"CCCCC")
        for execution in (made[3], made[0]):
            worker.database.jump.wall += 10.0
            execution.set(other=1)
        made_ids = [each.id for each in made]
        assert made_ids == self.paged(worker, "created", where=value("country") == "C")
        assert made_ids[::-1] == self.paged(worker, "-created", where=value("country") == "C")
        assert [made_ids[0], made_ids[3]] == self.paged(worker, "-updated")[:2]
        assert set(made_ids) == set(self.paged(worker, "updated"))

    def test_a_node_may_have_the_name_of_a_time(self, database: Database) -> None:
        worker = ManualWorker(database, Graph("g", version="1", nodes=[input("created")]))
        worker.flow.start("g", created=2)
        worker.flow.start("g", created=1)
        listed = worker.flow.executions("g", sort="value.created")
        assert [2, 1] == [each.number for each in listed]

    def test_before_leaves_out_newer_executions(self, worker: ManualWorker) -> None:
        first, second, _ = start(worker, "C", "C", "C")
        condition = value("country") == "C"
        listed = worker.flow.executions("people", where=condition, before=second._number)
        assert [first.id] == [each.id for each in listed]

    @pytest.mark.parametrize(
        "cursor", ["", "x", "[1]", '["a", 1]', "[1, -1]", "5", "\0", "[1,1.5]"]
    )
    def test_a_cursor_of_another_search_is_refused(self, worker: ManualWorker, cursor: str) -> None:
        with pytest.raises(UsageError, match="cursor"):
            worker.flow.executions("people", after=cursor)

    @staticmethod
    def paged(worker: ManualWorker, sort: str, **conditions: Any) -> list[str]:
        """The ids of all pages of two."""
        ids: list[str] = []
        after = None
        while page := worker.flow.executions(
            "people", sort=sort, limit=2, after=after, **conditions
        ):
            ids += [each.id for each in page]
            after = page[-1].cursor
        return ids


class TestConditions:
    def states(self, worker: ManualWorker) -> dict[str, Execution]:
        made = {
            name: worker.flow.start("people", age=number)
            for number, name in enumerate(("done", "failed", "cancelled", "archived", "running"))
        }
        for leased in worker.claim():
            if leased.item.id == made["failed"].id:
                assert worker.fail(leased)
            elif leased.item.id != made["running"].id:
                assert worker.succeed(leased, 1)
        made["cancelled"].cancel()
        worker.write(
            "UPDATE longwatch_executions SET state = 5 WHERE id = :id", id=made["archived"].id
        )
        return {
            **made,
            "waiting": worker.flow.start("people", age=9),
            "idle": worker.flow.start("people"),
        }

    def test_a_search_finds_the_executions_of_a_state(self, worker: ManualWorker) -> None:
        made = self.states(worker)
        for state, execution in made.items():
            listed = worker.flow.executions("people", state=state)
            assert [(state, execution.id)] == [(each.state, each.id) for each in listed]
            assert 1 == worker.flow.count(state=state)
        assert {"running", "waiting"} == {
            each.state for each in worker.flow.executions("people", state="active")
        }
        assert {"running", "done", "idle"} == {
            each.state
            for each in worker.flow.executions("people", state=["running", "done", "idle"])
        }

    def test_archived_executions_are_hidden(self, worker: ManualWorker) -> None:
        made = self.states(worker)
        hidden = {each.id for each in worker.flow.executions("people")}
        assert {each.id for each in made.values()} - hidden == {made["archived"].id}
        assert (6, 7) == (
            worker.flow.count("people"),
            worker.flow.count("people", include_archived=True),
        )

    def test_a_search_is_bounded_by_times_and_versions(self, worker: ManualWorker) -> None:
        first, second = start(worker, "a", "b")
        [(created,)] = worker.rows(
            "SELECT created_at FROM longwatch_executions WHERE id = :id", id=second.id
        )
        moment = datetime.fromtimestamp(created + 50, tz=UTC)
        worker.database.jump.wall += 100.0
        [third] = start(worker, "c")
        first.set(country="changed")

        def listed(**conditions: Any) -> list[str]:
            page = worker.flow.executions("people", sort="created", **conditions)
            return [each.id for each in page]

        assert [third.id] == listed(created_after=moment)
        assert [first.id, second.id] == listed(created_before=moment.timestamp())
        assert [first.id, third.id] == listed(updated_after=moment)
        assert [second.id] == listed(updated_before=moment)
        assert (3, 0) == (len(listed(version="1")), len(listed(version="2")))

    def test_a_search_finds_metadata(self, worker: ManualWorker) -> None:
        texts = {
            "text": '{"team": "a\'%", "other": 1}',
            "one": '{"team": 1}',
            "true": '{"team": true}',
            "null": '{"team": null}',
            "nested": '{"team": ["a"], "deep": {"team": "x"}}',
        }
        made = {name: worker.flow.start("people").id for name in texts}
        for name, text in texts.items():
            worker.write(
                "UPDATE longwatch_executions SET metadata = :text WHERE id = :id",
                text=text,
                id=made[name],
            )
        worker.flow.start("people")

        def listed(operand: Any, key: str = "team") -> list[str]:
            page = worker.flow.executions("people", where=metadata(key) == operand)
            return [name for name in made for each in page if each.id == made[name]]

        assert ["text"] == listed("a'%")
        assert ["one"] == listed(1) == listed(1.0)
        assert ["true"] == listed(True)
        assert ["null"] == listed(None)
        assert [] == listed("1") + listed(False) + listed("x") + listed("a")
        assert [] == listed("a", "team' OR 1=1 --") + listed("x", "$.deep.team")

    def test_zero_bytes_in_metadata_disturb_no_search(self, worker: ManualWorker) -> None:
        """Those of one execution neither fail the searches for others, nor cut a text or a key."""
        hostile: dict[str, Any] = {"team\0": "a", "other": "a\0b", "list": ["\0"], "\\u0000": 1}
        found = worker.flow.start("people", metadata={"team": "a", "slash": "\\u0000", **hostile})
        worker.flow.start("people", metadata={"team\0": "a", "other": "x\\\0", "team": "b"})
        for key, operand in (("team", "a"), ("slash", "\\u0000"), ("\\u0000", 1)):
            page = worker.flow.executions("people", where=metadata(key) == operand)
            assert [found.id] == [each.id for each in page]
        assert 0 == worker.flow.count("people", where=metadata("other") == "a")


class TestRefusals:
    @pytest.mark.parametrize(
        ("search", "match"),
        [
            (lambda: {"where": value("contry") == 1}, "did you mean country"),
            (lambda: {"where": ["country = 'CH'"]}, "where= takes filters"),
            (lambda: {"where": value("country") == [1]}, "text, a number, a bool or None"),
            (lambda: {"where": value("a b") == 1}, "takes the name of a node"),
            (lambda: {"where": value("age") > True}, "has no order"),
            (lambda: {"where": value("age") > None}, "has no order"),
            (lambda: {"where": value("age").in_("abc")}, "takes a list"),
            (lambda: {"where": value("age").startswith(5)}, "takes text"),
            (lambda: {"where": value("age").in_(range(1001))}, "up to 1000"),
            (lambda: {"where": metadata("a\0") == 1}, "without zero bytes"),
            (lambda: {"where": metadata("a") == 2**63}, "64 bits"),
            (lambda: {"state": "runing"}, "did you mean running"),
            (lambda: {"sort": "age; --"}, "sort must be"),
            (lambda: {"sort": "agee"}, "did you mean age"),
            (lambda: {"limit": 0}, "limit must be"),
            (lambda: {"status": "done"}, "no condition 'status'; did you mean state"),
            (lambda: {"where": 5}, "takes one condition or a list"),
            (lambda: {"state": 5}, "takes one condition or a list"),
            (lambda: {"version": 1}, "version must be printable text, not 1"),
            (lambda: {"before": "x"}, "before= takes the number of an execution"),
            (lambda: {"before": 2**70}, "before= takes the number of an execution"),
            (lambda: {"created_after": datetime(2026, 1, 1)}, "with a time zone"),  # noqa: DTZ001 - it is refused
            (lambda: {"updated_before": "today"}, "with a time zone"),
        ],
    )
    def test_a_wrong_search_is_refused(
        self, worker: ManualWorker, search: Callable[[], Any], match: str
    ) -> None:
        with pytest.raises(UsageError, match=match):
            worker.flow.executions("people", **search())

    def test_an_unknown_graph_is_refused_with_a_suggestion(self, worker: ManualWorker) -> None:
        """A misspelt name is an error, not an empty list."""
        without_code = Flow(worker.database)
        assert 0 == worker.flow.count("people") == without_code.count("people")
        for flow in (worker.flow, without_code):
            calls: list[Callable[[Any], Any]] = [flow.executions, flow.count]
            for call in calls:
                with pytest.raises(UnknownGraphError, match="did you mean people"):
                    call("poeple")
                for name in (5, "\0", "\ud800"):
                    with pytest.raises(UsageError, match="graph must be printable text"):
                        call(name)

    def test_an_unknown_node_is_refused_without_the_code_of_the_graph(
        self, worker: ManualWorker
    ) -> None:
        start(worker, "a")
        without_code = Flow(worker.database)
        Flow(worker.database, [Graph("o", version="1", nodes=[input("city")])]).start("o", city="a")
        assert 1 == without_code.count(where=value("city") == "a")
        assert 1 == without_code.count("people", where=value("country") == "a")
        assert 1 == worker.flow.count(where=value("city") == "a")
        for flow in (worker.flow, without_code):
            with pytest.raises(UsageError, match="no node 'contry'; did you mean country"):
                flow.count(where=value("contry") == "a")
        with pytest.raises(UsageError, match="graph 'people' has no node 'city'"):
            without_code.executions("people", where=value("city") == "a")
        with pytest.raises(UsageError, match="the store has no node 'zip'"):
            without_code.executions(sort="zip")
        for damage in ("UPDATE longwatch_graphs SET nodes = '5'", "DELETE FROM longwatch_graphs"):
            worker.write(damage)
            assert 0 == without_code.count(where=value("contry") == "a")

    @pytest.mark.parametrize("identity", ["nope", "\0", "\ud800", 5, None])
    def test_an_unknown_execution_is_refused(self, worker: ManualWorker, identity: Any) -> None:
        with pytest.raises(UnknownExecutionError, match="there is no execution"):
            worker.flow.execution(identity)

    def test_what_is_not_json_is_refused(self) -> None:
        for operand in (float("nan"), "\ud800"):
            with pytest.raises(SerializationError):
                value("age") == operand  # noqa: B015 - the comparison raises


class TestIndexing:
    def test_values_from_before_are_added_page_by_page(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(indexing_module, "PAGE_SIZE", 2)
        before = ManualWorker(database, people(indexed=False))
        start(before, "a", "b", ["list"], "a", None)
        after = ManualWorker(database, people(indexed=True))
        assert frozenset() == self.complete(database)
        assert ["a", "a"] == found(after, value("country") == "a")
        assert 4 == after.flow.sweep()
        assert {"country", "age", "doubled"} == self.complete(database)
        assert ["a", "a"] == found(after, value("country") == "a")
        keys = after.rows("SELECT indexed_key FROM longwatch_values WHERE node = 'country'")
        assert ["0", "3a", "3a", "3b"] == sorted(key for (key,) in keys if key is not None)
        assert 0 == after.flow.sweep()

    def test_a_broken_run_continues_where_it_stopped(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(indexing_module, "PAGE_SIZE", 1)
        start(ManualWorker(database, people(indexed=False)), "a", "b", "c")
        worker = ManualWorker(database, people(indexed=True))
        add, calls = NodeIndexes.add_page, list[int]()

        def add_two(self: NodeIndexes, graph: str, node: str, after: int) -> tuple[int, int]:
            if node == "country":
                calls.append(after)
                if len(calls) == 3:
                    raise RuntimeError("the store is gone")
            return add(self, graph, node, after)

        monkeypatch.setattr(NodeIndexes, "add_page", add_two)
        with pytest.raises(RuntimeError, match="the store is gone"):
            worker.flow.sweep()
        assert "country" not in self.complete(database)
        worker.flow.sweep()
        assert [0, 1, 2, 2, 3] == calls
        assert "country" in self.complete(database)

    def test_a_process_that_does_not_index_the_node_keeps_the_index_complete(
        self, database: Database
    ) -> None:
        ManualWorker(database, people(indexed=True)).flow.sweep()
        unaware = ManualWorker(database, people(indexed=False))
        start(unaware, "a")
        assert ["a"] == found(unaware, value("country") == "a")

    def test_a_process_from_before_does_not_remove_a_value_from_the_index(
        self, database: Database
    ) -> None:
        unaware = ManualWorker(database, people(indexed=False))
        [execution] = start(unaware, "a")
        ManualWorker(database, people(indexed=True)).flow.sweep()
        execution.set(country="b")
        assert ["b"] == found(unaware, value("country") == "b")

    @staticmethod
    def complete(database: Database) -> frozenset[str]:
        return database.read(lambda tx: NodeIndexes(database).complete(tx, "people"))
