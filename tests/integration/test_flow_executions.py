"""Executions on every kind of store: what is set, got, waited for, called off, and what is
refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    TOO_NEW,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    scrape_graph,
    url_fixture,
)
from longwatch.errors import (
    NotSetError,
    SchemaTooNewError,
    SerializationError,
    UnknownExecutionError,
    UnknownGraphError,
    UsageError,
)
from longwatch.flow import Flow, Graph, compute, input, not_, or_  # noqa: A004 - the contract's word
from longwatch.store.database import Database
from longwatch.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    """On which who waits for a value can be seen to wait."""
    return FakeClock()


@pytest.fixture
def worker(database: Database, clock: FakeClock) -> ManualWorker:
    return ManualWorker(database, scrape_graph(), clock=clock)


class TestValues:
    def test_are_computed_and_got(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        assert {"url": "abc"} == execution.values()
        assert {"pages": 1, "titles": 1} == worker.run_all()
        assert {"url": "abc", "pages": 3, "titles": ["title"] * 3} == execution.values()
        assert 3 == execution.get("pages", timeout=0) == execution.get("pages", wait=False)
        assert (3, 2, True) == execution.value("pages")
        assert 3 == execution.revision

    def test_are_found_again_by_the_id_of_their_execution(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", {"url": "abc"}, depth=1)
        again = worker.flow.execution(execution.id)
        assert {"url": "abc", "depth": 1} == again.values()
        assert f"<Execution {execution.id} of scrape 1>" == repr(again)

    def test_set_together_are_one_revision(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        assert 0 == execution.revision
        assert 1 == execution.set({"url": "abc"}, depth=1)
        assert [1, 1] == [
            value.revision for value in map(execution.value, ("url", "depth")) if value
        ]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("abc", "abc"),
            (None, None),
            ({"x": 1, "y": {"z": 2, "w": 3}}, {"y": {"w": 3, "z": 2}, "x": 1}),
        ],
    )
    def test_set_to_the_same_change_nothing(self, worker: ManualWorker, old: Any, new: Any) -> None:
        execution = worker.flow.start("scrape", depth=old)
        assert 1 == execution.set(depth=new)
        assert 2 == execution.set(depth="other")

    def test_none_is_one(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url=None)
        worker.run_all()
        assert {"url": None, "pages": 0, "titles": []} == execution.values()
        assert execution.get("url") is None
        assert (None, 1, True) == execution.value("url")

    def test_are_unset_with_all_that_cannot_be_without(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc", depth=1)
        worker.run_all()
        assert 4 == execution.unset("url")
        assert {"depth": 1} == execution.values()
        assert 4 == execution.unset("url")
        assert {} == worker.run_all()

    def test_a_change_computes_what_depends_on_it(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.run_all()
        execution.set(depth=5)
        assert {} == worker.run_all()
        execution.set(url="xyz")
        value = execution.value("titles")
        assert value is not None
        assert not value.fresh
        assert {"pages": 1} == worker.run_all()
        assert 3 == execution.get("pages", timeout=0)
        execution.set(url="xyzw")
        assert {"pages": 1, "titles": 1} == worker.run_all()

    @pytest.mark.parametrize(
        "value", ["\x00", "€\u2028", "a" * 100_000, 2**70, 1.5, {"a": [None, True]}, "null", ""]
    )
    def test_come_back_as_they_were(self, worker: ManualWorker, value: Any) -> None:
        execution = worker.flow.start("scrape", depth=value)
        assert value == execution.get("depth")

    @pytest.mark.parametrize("value", ["\x00", "€\u2028", "'\"\\", "null", ""])
    def test_come_to_their_functions_as_they_were(self, database: Database, value: Any) -> None:
        worker = ManualWorker(
            database,
            Graph("same", version="1", nodes=[input("a"), compute("b", "a", lambda a: [a])]),
        )
        execution = worker.flow.start("same", a=value)
        worker.run_all()
        assert [value] == execution.get("b", timeout=0)

    def test_that_are_not_set_come_as_none_or_not_at_all(self, database: Database) -> None:
        nodes = [
            input("a"),
            input("b"),
            compute("c", [or_("a", "b"), not_("b")], lambda **given: sorted(given)),
        ]
        worker = ManualWorker(database, Graph("some", version="1", nodes=nodes))
        execution = worker.flow.start("some", a=1)
        worker.run_all()
        assert ["a"] == execution.get("c", timeout=0)
        execution.set(b=1)
        with pytest.raises(NotSetError):
            execution.get("c", wait=False)


class TestStarting:
    def test_with_a_key_that_is_borne_finds_that_execution_as_it_is(
        self, worker: ManualWorker
    ) -> None:
        first = worker.flow.start("scrape", url="abc", idempotency_key="k")
        assert first.id == worker.flow.start("scrape", url="other", idempotency_key="k").id
        assert "abc" == first.get("url")
        assert first.id != worker.flow.start("scrape", url="abc", idempotency_key="l").id
        assert 2 == len(worker.flow.executions())

    def test_with_the_same_key_from_all_sides_makes_one(self, worker: ManualWorker) -> None:
        together = threading.Barrier(4)

        def start() -> str:
            together.wait(TIMEOUT)
            return worker.flow.start("scrape", url="abc", idempotency_key="k").id

        started = [BackgroundCall(start) for _ in range(4)]
        assert 1 == len({each.wait() for each in started})
        assert [("pages",)] == worker.rows("SELECT node FROM longwatch_computations")

    def test_a_key_is_of_one_graph(self, database: Database) -> None:
        flow = Flow(database, [Graph("one", version="1"), Graph("two", version="1")])
        assert (
            flow.start("one", idempotency_key="k").id != flow.start("two", idempotency_key="k").id
        )

    def test_with_the_key_of_a_version_that_is_not_known_here_says_so(
        self, database: Database
    ) -> None:
        Flow(database, [scrape_graph("1")]).start("scrape", idempotency_key="k")
        with pytest.raises(
            UnknownGraphError,
            match="graph 'scrape' of version '1' was not given to this Flow, which has 2",
        ):
            Flow(database, [scrape_graph("2")]).start("scrape", idempotency_key="k")

    @pytest.mark.parametrize("key", ["", "a" * 1001, 3, "a\n", b"k"])
    def test_with_a_key_that_is_none_is_refused(self, worker: ManualWorker, key: Any) -> None:
        with pytest.raises(
            UsageError, match="idempotency_key must be printable text of 1 to 1000 characters"
        ):
            worker.flow.start("scrape", idempotency_key=key)

    def test_takes_the_version_that_was_given_last(self, database: Database) -> None:
        flow = Flow(database, [scrape_graph("1"), scrape_graph("2")])
        assert ("2", "1") == (
            flow.start("scrape").version,
            flow.start("scrape", version="1").version,
        )

    def test_an_input_may_have_the_name_of_a_parameter(self, database: Database) -> None:
        nodes = [input("graph"), input("version"), input("inputs")]
        execution = Flow(database, [Graph("odd", version="1", nodes=nodes)]).start(
            "odd", {"version": 1, "graph": 2, "inputs": 3}
        )
        assert {"graph": 2, "version": 1, "inputs": 3} == execution.values()


class TestByHand:
    def test_a_node_that_was_given_up_is_tried_again_with_all_its_attempts(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.exhaust(execution, "pages")
        execution.retry("pages")
        worker.exhaust(execution, "pages")
        assert [1, 2, 3] * 2 == [each.attempt for each in execution.computations()]
        execution.retry("pages")
        assert {"pages": 1, "titles": 1} == worker.run_all()

    def test_one_that_waits_for_its_next_attempt_is_tried_at_once(
        self, worker: ManualWorker
    ) -> None:
        execution = worker.flow.start("scrape", url="abc")
        worker.fail(worker.claim_one(), delay=3600.0)
        assert [] == worker.claim()
        execution.retry("pages")
        assert 1 == worker.claim_one().item.number
        assert [
            ("pages", "failed", "raised"),
            ("pages", "cancelled", "asked"),
            ("pages", "computing", None),
        ] == worker.states(execution)

    def test_what_cannot_be_retried_says_why(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        with pytest.raises(
            UsageError, match=r"'titles' .* was not given up, so there is nothing to retry"
        ):
            execution.retry("titles")
        with pytest.raises(
            UsageError, match="node 'url' of graph 'scrape' is an input and not computed; set it"
        ):
            execution.retry("url")
        worker.claim()
        with pytest.raises(
            UsageError, match=r"'pages' .* is being computed; abandon it first, or wait"
        ):
            execution.retry("pages")

    def test_one_that_runs_is_abandoned_spent_and_tried_again(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        leased = worker.claim_one()
        execution.abandon("pages")
        assert not worker.succeed(leased, 99)
        assert [("pages", "abandoned", "asked"), ("pages", "not_set", None)] == worker.states(
            execution
        )
        assert 2 == worker.claim_one().item.number

    def test_what_cannot_be_abandoned_says_why(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        with pytest.raises(UsageError, match=r"'titles' .* has no open attempt to abandon"):
            execution.abandon("titles")
        with pytest.raises(UsageError, match=r"'pages' .* is queued and not running; see explain"):
            execution.abandon("pages")
        with pytest.raises(UsageError, match="is an input"):
            execution.abandon("url")

    def test_an_execution_that_is_cancelled_changes_no_more(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc", depth=1)
        leased = worker.claim_one()
        assert 1 == execution.cancel()
        assert not worker.succeed(leased, 3)
        assert [("pages", "cancelled", "execution")] == worker.states(execution)
        assert {"url": "abc", "depth": 1} == execution.values()
        assert 1 == execution.cancel() == execution.set(depth=1)
        with pytest.raises(
            UsageError,
            match=f"execution {execution.id} was cancelled and changes no more; start another",
        ):
            execution.set(depth=2)
        with pytest.raises(UsageError, match="changes no more"):
            execution.unset("url")
        assert 1 == execution.get("depth")
        assert 0 == worker.flow.sweep()

    def test_why_nothing_happens_is_said(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        assert "pages: waiting for a worker, attempt 1 of 3" in str(execution.explain())
        worker.claim()
        assert "pages is being computed, attempt 1 of 3" == execution.explain().describe("pages")
        assert ["url", "depth", "pages", "titles"] == [
            facts.node for facts in execution.explain().nodes
        ]


class TestComputations:
    def test_say_what_an_attempt_was(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        [waiting] = execution.computations()
        assert ("pages", "not_set", 1, {"url": 1}) == (
            waiting.node,
            waiting.state,
            waiting.attempt,
            waiting.computed_with,
        )
        assert (None, None, None, None) == (
            waiting.started_at,
            waiting.owner,
            waiting.heartbeat_in,
            waiting.deadline_in,
        )
        worker.fail(worker.claim_one(), "because", delay=60.0)
        over, delayed = execution.computations()
        assert ("failed", "raised", "because", worker.owner) == (
            over.state,
            over.end_cause,
            over.error,
            over.owner,
        )
        assert over.started_at is not None
        assert over.ended_at is not None
        assert over.created_at <= over.started_at <= over.ended_at
        assert delayed.ready_in is not None
        assert 0 < delayed.ready_in <= 60
        worker.database.jump.wall += 61
        worker.run_all()
        assert [
            ("pages", "failed", "raised"),
            ("pages", "success", "done"),
            ("titles", "success", "done"),
        ] == worker.states(execution)

    def test_are_counted_in_the_list_of_executions(self, worker: ManualWorker) -> None:
        first = worker.flow.start("scrape", url="abc")
        second, third = worker.flow.start("scrape"), worker.flow.start("scrape", url="a")
        third.cancel()
        worker.claim()
        listed = worker.flow.executions()
        assert [third.id, second.id, first.id] == [each.id for each in listed]
        assert ["cancelled", "idle", "running"] == [each.state for each in listed]
        assert [second.id] == [
            each.id for each in worker.flow.executions(limit=1, before=listed[0].number)
        ]
        assert 3 == len(worker.flow.executions(graph="scrape"))
        second.set(url="b")
        assert "waiting" == worker.flow.executions()[1].state
        worker.give_up(worker.claim_one())
        assert "failed" == worker.flow.executions()[1].state
        second.unset("url")
        assert "idle" == worker.flow.executions()[1].state


class TestBadInput:
    def test_an_execution_that_there_is_not(self, worker: ManualWorker) -> None:
        with pytest.raises(
            UnknownExecutionError,
            match=r"there is no execution 'abc' in .*; `longwatch flow ls` lists them",
        ):
            worker.flow.execution("abc")

    def test_an_execution_that_is_gone(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape", url="abc")
        for table in ("computations", "values", "executions"):
            worker.write(f"DELETE FROM longwatch_{table}")
        for act in (
            lambda: execution.get("url"),
            lambda: execution.set(url="b"),
            execution.explain,
            execution.cancel,
        ):
            with pytest.raises(
                UnknownExecutionError, match=f"execution '{execution.id}' does not exist any more"
            ):
                act()

    def test_a_graph_that_was_not_given(self, worker: ManualWorker) -> None:
        with pytest.raises(
            UnknownGraphError,
            match=r"graph 'scrap' was not given to this Flow.*did you mean scrape",
        ):
            worker.flow.start("scrap")
        with pytest.raises(
            UnknownGraphError, match="of version '7' was not given to this Flow, which has 1"
        ):
            worker.flow.start("scrape", version="7")

    def test_an_execution_of_a_graph_that_was_not_given(
        self, worker: ManualWorker, database: Database
    ) -> None:
        execution = worker.flow.start("scrape")
        with pytest.raises(UnknownGraphError, match="it has none"):
            Flow(database).execution(execution.id)

    @pytest.mark.parametrize("act", ["start", "set", "unset"])
    def test_setting_what_is_no_input(self, worker: ManualWorker, act: str) -> None:
        execution = worker.flow.start("scrape")
        acts: dict[str, Callable[[str], object]] = {
            "start": lambda name: worker.flow.start("scrape", {name: 1}),
            "set": lambda name: execution.set({name: 1}),
            "unset": execution.unset,
        }
        with pytest.raises(
            UsageError,
            match="node 'pages' of graph 'scrape' is computed; set what it comes after: url",
        ):
            acts[act]("pages")
        with pytest.raises(UsageError, match="graph 'scrape' has no node 'urls'; did you mean url"):
            acts[act]("urls")
        assert 1 == len(worker.flow.executions())

    def test_asking_for_a_node_that_there_is_not(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("scrape")
        for act in (execution.get, execution.value, execution.retry, execution.abandon):
            with pytest.raises(UsageError, match="has no node 'page'; did you mean pages"):
                act("page")

    @pytest.mark.parametrize(
        "value", [object(), float("nan"), [float("-inf")], "\ud800", {1, object()}]
    )
    def test_a_value_that_cannot_be_kept(self, worker: ManualWorker, value: Any) -> None:
        execution = worker.flow.start("scrape", depth=1)
        with pytest.raises(SerializationError, match=r"a value of type .* cannot be kept"):
            execution.set(depth=value)
        with pytest.raises(SerializationError):
            worker.flow.start("scrape", depth=value)
        assert (1, 1) == (execution.get("depth"), len(worker.flow.executions()))

    def test_a_store_of_a_newer_version(self, database: Database, url: str) -> None:
        database.write(
            lambda tx: tx.execute(
                f"INSERT INTO longwatch_schema (version, name, applied_at) "
                f"VALUES ({TOO_NEW}, 'of_tomorrow', '')"
            )
        )
        database.close()  # what opens one URL shares connections, which have checked the schema
        with Flow(url, [scrape_graph()]) as flow:
            for act in (lambda: flow.start("scrape"), lambda: flow.execution("a"), flow.sweep):
                with pytest.raises(SchemaTooNewError, match="upgrade Longwatch"):
                    act()


@pytest.mark.parametrize(
    "address", ["redis://localhost", "memory://here", "nothing", "mysql://x", "sqlite"]
)
def test_a_store_without_sql_is_refused(address: str) -> None:
    with pytest.raises(UsageError) as caught:
        Flow(address)
    assert "sqlite://" in str(caught.value)


@pytest.mark.parametrize("wrong", ["scrape", None])
def test_what_is_no_graph_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="graphs= takes Graph objects"):
        Flow("sqlite:///never.db", [wrong])


def test_a_graph_is_given_once() -> None:
    with pytest.raises(UsageError, match="graph 'scrape' is given twice in version '1'"):
        Flow("sqlite:///never.db", [scrape_graph(), scrape_graph()])
