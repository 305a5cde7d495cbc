"""Attempts that are leased as they are made, and executions that are not read again: nothing of
it may be seen but the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from flow_rig import PATIENCE, Desk, database_fixture, on_one_machine, on_postgres, url_fixture
from longwatch.core.clock import Wakeup
from longwatch.errors import StoreError
from longwatch.flow import Execution, Flow, Graph, not_
from longwatch.flow.advancing import advance
from longwatch.flow.standing import Standing
from longwatch.store.database import ChangedError, Database, Transaction
from longwatch.store.postgres_transaction import PostgresTransaction
from longwatch.testing import FakeClock
from longwatch.work.offers import Offers
from longwatch.work.source import Exchange, Leased, Outcome, Settlement

__all__ = ["database_fixture", "url_fixture"]


def chain() -> Graph:
    graph = Graph("chain", version="1")
    graph.input("x")
    graph.compute(after="x", name="a")(lambda x: x + 1)
    graph.compute(after="a", name="b")(lambda a: a + 1)
    graph.compute(after="b", name="c")(lambda b: b + 1)
    return graph


def fork() -> Graph:
    graph = Graph("fork", version="1")
    graph.input("x")
    graph.compute(after="x", name="left")(lambda x: x)
    graph.compute(after="x", name="right")(lambda x: x)
    graph.compute(after=["left", "right"], name="both")(lambda left, right: [left, right])
    return graph


class Listening(Desk):
    """A worker that is told of news, and looks once: then it knows that nobody is in line."""

    def __init__(self, database: Database, *graphs: Graph) -> None:
        self.clock = FakeClock()
        super().__init__(database, *graphs, clock=self.clock)
        self.told, self.leave = self.source._lookout.listen(Wakeup())

    def trade(
        self, *leased: Leased, want: int = 8, result: bytes = b"1", outcome: Outcome = Outcome.DONE
    ) -> Exchange:
        settlements = [Settlement(each.claim, outcome, result=result) for each in leased]
        return self.source.exchange(settlements, owner=self.owner, want=want, duration=0.0)


@pytest.fixture(name="desk")
def desk_fixture(database: Database) -> Iterator[Listening]:
    made = Listening(database, chain(), fork())
    yield made
    made.leave()


@pytest.fixture(name="claims")
def claims_fixture(desk: Listening, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every look into the lines."""
    return spied(desk.source._claiming, "claim", monkeypatch)


@pytest.fixture(name="reads")
def reads_fixture(desk: Listening, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every time that executions are read to be changed."""
    return spied(desk.source.records, "load_for", monkeypatch)


def spied(target: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(target, name)

    def spy(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return original(*args, **named)

    monkeypatch.setattr(target, name, spy)
    return calls


def begun(desk: Listening, graph: str = "chain") -> tuple[Execution, list[Leased]]:
    """An execution whose first attempts are this worker's, which knows that nobody is in line."""
    execution = desk.flow.start(graph, x=0)
    leased = desk.trade().leased
    assert not desk.trade().leased
    return execution, leased


class TestWhereNobodyIsInLine:
    def test_what_a_result_makes_is_leased_without_a_look(
        self, desk: Listening, claims: list[Any]
    ) -> None:
        execution, [first] = begun(desk)
        claims.clear()
        [second] = desk.trade(first).leased
        assert ("b", 1, '{"a":"1"}', execution.id) == (
            second.item.node,
            second.item.number,
            second.item.inputs,
            second.item.id,
        )
        assert [] == claims
        assert [("a", "success", "done"), ("b", "computing", None)] == desk.states(execution)

    def test_it_is_leased_as_by_a_claim(self, desk: Listening) -> None:
        _, [first] = begun(desk)
        [second] = desk.trade(first).leased
        columns = (
            "held, owner, term, deliveries, last_heartbeat_at = started_at, heartbeat_deadline < "
            "deadline, state"
        )
        assert desk.row(second.claim.seq, columns) == (
            2,
            desk.owner,
            second.claim.term,
            1,
            1,
            1,
            "computing",
        )
        assert second.claim.term > first.claim.term

    def test_no_more_is_leased_than_there_is_room_for(self, desk: Listening) -> None:
        execution, [left, right] = begun(desk, "fork")
        desk.trade(left)
        assert [] == desk.trade(right, want=0).leased
        assert "not_set" == execution.computations()[-1].state
        [both] = desk.take()
        assert "both" == both.item.node

    def test_an_execution_that_nobody_else_is_at_is_not_read_again(
        self, desk: Listening, reads: list[Any]
    ) -> None:
        execution, [first] = begun(desk)
        [second] = desk.trade(first).leased
        reads.clear()
        [third] = desk.trade(second).leased
        assert [True] == desk.trade(third).settled
        assert [] == reads
        assert {"x": 0, "a": 1, "b": 1, "c": 1} == execution.values()

    def test_nor_for_two_of_its_attempts_at_once(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        graph = Graph("twins", version="1")
        graph.input("x")
        graph.compute(after="x", name="first")(lambda x: x)
        graph.compute(after="first", name="left")(lambda first: first)
        graph.compute(after="first", name="right")(lambda first: first)
        graph.compute(after=["left", "right"], name="both")(lambda left, right: [left, right])
        desk = Listening(database, graph)
        _, [first] = begun(desk, "twins")
        twins = desk.trade(first).leased
        reads = spied(desk.source.records, "load_for", monkeypatch)
        assert ["both"] == [each.item.node for each in desk.trade(*twins).leased]
        assert [] == reads
        desk.leave()

    def test_one_of_whose_attempts_another_is_at_is_read(
        self, desk: Listening, reads: list[Any]
    ) -> None:
        desk.flow.start("fork", x=0)
        other = desk.enter()
        [left] = desk.take(1, owner=other)
        [right] = desk.trade().leased
        desk.trade()
        desk.trade(right)
        reads.clear()
        desk.trade(left)
        assert 1 == len(reads)

    def test_a_failed_attempt_waits_in_line_for_its_time(self, desk: Listening) -> None:
        execution, [first] = begun(desk)
        [second] = desk.trade(first).leased
        settlement = Settlement(second.claim, Outcome.FAILED, error="broken", delay=5.0)
        assert (
            [] == desk.source.exchange([settlement], owner=desk.owner, want=8, duration=0.0).leased
        )
        due = desk.source.next_due()
        assert due is not None
        assert 4.0 < due <= 5.0
        assert 5.0 >= (execution.computations()[-1].ready_in or 0.0) > 4.0

    def test_one_that_has_crashed_before_waits_in_line(self, desk: Listening) -> None:
        """It has to run alone, which the line sees to."""
        _, [first] = begun(desk)
        desk.trade(first)
        desk.write(
            "UPDATE longwatch_values SET crashes = 1, tried_with = '{\"a\":2}', spent = 1 "
            "WHERE node = 'b'"
        )
        execution = desk.flow.execution(desk.rows("SELECT id FROM longwatch_executions")[0][0])
        execution.abandon("b")
        [again] = desk.take()
        assert ("b", 2) == (again.item.node, again.item.number)


class TestWhereSomebodyMayBeInLine:
    def test_who_was_told_of_is_served_first(self, desk: Listening) -> None:
        _, [first] = begun(desk)
        waiting = desk.flow.start("chain", x=5)
        desk.told.set()
        [served] = desk.trade(first, want=1).leased
        assert waiting.id == served.item.id

    def test_who_was_not_told_of_is_served_after_a_moment(self, desk: Listening) -> None:
        _, [first] = begun(desk)
        waiting = desk.flow.start("chain", x=5)
        [second] = desk.trade(first, want=1).leased
        assert "b" == second.item.node
        desk.clock.advance(0.06)
        [served] = desk.trade(second, want=1).leased
        assert waiting.id == served.item.id

    def test_who_listens_to_nothing_always_looks(self, desk: Listening, claims: list[Any]) -> None:
        _, [first] = begun(desk)
        desk.leave()
        claims.clear()
        desk.trade(first)
        assert 1 == len(claims)

    def test_what_there_was_no_room_for_is_looked_for(self, desk: Listening) -> None:
        _, [left, right] = begun(desk, "fork")
        desk.trade(left)
        desk.trade(right, want=0)
        assert ["both"] == [each.item.node for each in desk.trade().leased]


class TestAnExecutionThatChangedMeanwhile:
    def test_by_another_value_is_read_and_the_late_result_does_not_count(
        self, desk: Listening
    ) -> None:
        execution, [first] = begun(desk)
        [second] = desk.trade(first).leased
        execution.set(x=7)
        [third] = desk.take()
        assert "a" == third.item.node
        desk.trade(third, want=0, result=b"8")
        assert [False] == desk.trade(second, want=0).settled
        attempts = [("a", "success"), ("b", "cancelled"), ("a", "success"), ("b", "not_set")]
        assert attempts == [state[:2] for state in desk.states(execution)]

    def test_by_its_end_counts_as_ended(self, desk: Listening) -> None:
        execution, [first] = begun(desk)
        [second] = desk.trade(first).leased
        execution.cancel()
        assert [False] == desk.trade(second).settled
        assert {"x": 0, "a": 1} == execution.values()

    def test_whose_attempt_another_has_now_does_not_take_the_late_result(
        self, desk: Listening
    ) -> None:
        """Given back and claimed again: the execution itself is as it was."""
        execution, [first] = begun(desk)
        [second] = desk.trade(first).leased
        desk.back(second)
        [again] = desk.take(owner=desk.enter())
        assert again.claim.seq == second.claim.seq
        assert [False] == desk.trade(second).settled
        assert [True] == desk.trade(again).settled
        assert 1 == execution.get("b", wait=False)

    def test_whose_attempt_it_has_given_back_and_claimed_again_keeps_the_later_term(
        self, desk: Listening
    ) -> None:
        _, [first] = begun(desk)
        [second] = desk.trade(first).leased
        desk.back(second)
        [again] = desk.take()
        assert (again.claim.seq, True) == (second.claim.seq, again.claim.term > second.claim.term)
        assert [True] == desk.trade(again).settled
        assert [(again.claim.term,)] == desk.rows(
            "SELECT term FROM longwatch_values WHERE node = 'b'"
        )

    def test_by_a_result_that_calls_off_another_attempt_is_read(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last term of that has to be known, or the next attempt could begin below it."""
        graph = Graph("gated", version="1")
        graph.input("x")
        graph.compute(after="x", name="first")(lambda x: x)
        graph.compute(after="first", name="gate")(lambda first: first)
        graph.compute(after=["first", not_("gate")], name="gated")(lambda first: first)
        desk = Listening(database, graph)
        execution, [first] = begun(desk, "gated")
        leased = {each.item.node: each for each in desk.trade(first).leased}
        assert {"gate", "gated"} == set(leased)
        reads = spied(desk.source.records, "load_for", monkeypatch)
        assert [True] == desk.trade(leased["gate"]).settled
        assert 1 == len(reads)
        assert ("gated", "cancelled", "gate") == desk.states(execution)[-1]
        terms = (
            "SELECT v.term, c.term FROM longwatch_values v JOIN longwatch_computations c ON "
            "v.node = c.node WHERE c.node = 'gated'"
        )
        [(kept, term)] = desk.rows(terms)
        assert kept == term
        desk.leave()

    def test_fails_before_anything_is_written(self, desk: Listening) -> None:
        execution, [first] = begun(desk)
        desk.trade(first)
        number = desk.rows("SELECT execution FROM longwatch_executions")[0][0]

        def work(tx: Transaction) -> None:
            tx.require(
                "SELECT changes = 99 FROM longwatch_executions WHERE execution = :number",
                {"number": number},
            )
            tx.post(
                "UPDATE longwatch_executions SET cancelled = 1 WHERE execution = :number",
                {"number": number},
            )

        with pytest.raises(ChangedError):
            desk.database.write(work)
        assert [(0,)] == desk.rows("SELECT cancelled FROM longwatch_executions")
        assert "running" == desk.flow.executions()[0].state
        assert execution.id == desk.flow.executions()[0].id

    def test_goes_on_if_it_is_as_it_was(self, desk: Listening) -> None:
        begun(desk)
        answers: list[Any] = []

        def work(tx: Transaction) -> None:
            tx.require("SELECT 1 = 1", {})
            tx.ask(
                "UPDATE longwatch_executions SET cancelled = 1 RETURNING cancelled",
                {},
                answers.extend,
            )

        desk.database.write(work)
        assert [(1,)] == answers


class TestAWorkerInTheSameProcess:
    def test_computes_all_the_same(self, database: Database) -> None:
        flow = Flow(database, [chain(), fork()])
        with flow.worker(concurrency=2):
            started = [flow.start("chain", x=number) for number in range(20)]
            forked = [flow.start("fork", x=number) for number in range(20)]
            assert list(range(3, 23)) == [
                execution.get("c", timeout=PATIENCE) for execution in started
            ]
            assert [[number] * 2 for number in range(20)] == [
                execution.get("both", timeout=PATIENCE) for execution in forked
            ]
        assert all(
            1 == computation.attempt
            for execution in started
            for computation in execution.computations()
        )

    def test_that_was_struck_off_is_entered_again(self, database: Database) -> None:
        desk = Listening(database, chain())
        execution, [first] = begun(desk)
        desk.write("DELETE FROM longwatch_owners")
        [second] = desk.trade(first).leased
        assert [True] == desk.trade(second).settled
        assert [(desk.owner,)] == desk.rows("SELECT owner FROM longwatch_owners")
        assert 1 == execution.get("b", wait=False)
        desk.leave()

    def test_that_was_struck_off_is_given_what_is_started(self, database: Database) -> None:
        flow = Flow(database, [chain()])
        with flow.worker():
            for number in range(5):
                flow.start("chain", x=number).get("c", timeout=PATIENCE)
                database.write(lambda tx: tx.execute("DELETE FROM longwatch_owners"))
                assert number + 3 == flow.start("chain", x=number).get("c", timeout=PATIENCE)
            assert 1 == len(database.read(lambda tx: tx.rows("SELECT owner FROM longwatch_owners")))


@on_one_machine
def test_what_was_leased_to_an_offer_that_is_closed_before_the_commit_goes_back(
    desk: Listening,
) -> None:
    """Who began it may give up waiting while it is being written; the worker may have ended
    since.
    """
    begun(desk)
    offer = Offers(lambda _: None).make(lambda: 4, owner=desk.owner)
    assert offer is not None
    kind = desk.flow.registry.find("chain")

    def closing(tx: Transaction, lessee: Any) -> tuple[None, Standing]:
        standing = Standing(0, "late")
        standing.put("x", "1")
        registered = desk.flow.registry.registered()[kind]
        advance(registered.graph, standing, registered.lanes)
        desk.flow.records.start(tx, standing, kind, None, lessee)
        offer.close()
        return None, standing

    desk.database.write(lambda tx: desk.source.hand_over(tx, offer, kind, closing))
    assert "not_set" == desk.flow.execution("late").computations()[0].state
    assert ["late"] == [each.item.id for each in desk.take(owner=desk.enter())]


@on_one_machine
def test_a_lease_whose_owner_is_not_known_is_found(desk: Listening) -> None:
    execution, _ = begun(desk)
    desk.write("DELETE FROM longwatch_owners")
    assert 1 == desk.flow.sweep()
    assert ["abandoned", "not_set"] == [each.state for each in execution.computations()]


@on_postgres
def test_a_logarithm_of_zero_of_the_user_is_an_error_of_sql(database: Database) -> None:
    with pytest.raises(psycopg.errors.InvalidArgumentForLogarithm):
        database.transact(lambda tx: tx.rows("SELECT ln(0)"))


@pytest.mark.parametrize("inputs", [0, 1, 3, 4, 40])
def test_an_execution_with_any_number_of_inputs_is_started_whole(
    database: Database, inputs: int
) -> None:
    """A server numbers it, and what is written of a few inputs does not wait for the number."""
    graph = Graph("wide", version="1")
    for number in range(inputs):
        graph.input(f"x{number}")
        graph.compute(after=f"x{number}", name=f"y{number}")(
            lambda **values: next(iter(values.values()))
        )
    flow = Flow(database, [graph])
    given = {f"x{number}": number for number in range(inputs)}
    first, second = flow.start("wide", given), flow.start("wide", given)
    assert given == first.values() == second.values()
    assert inputs == len(first.computations()) == len(second.computations())
    with flow.worker():
        assert list(range(inputs)) == [
            second.get(f"y{number}", timeout=PATIENCE) for number in range(inputs)
        ]


@on_postgres
def test_a_start_whose_answer_was_lost_is_found_by_its_name(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(database, [chain()])
    flow.start("chain", x=1)
    monkeypatch.setattr(
        PostgresTransaction, "ask", lambda self, sql, parameters, _: self.post(sql, parameters)
    )
    execution = flow.start("chain", x=5)
    monkeypatch.undo()
    assert {"x": 5} == execution.values()


@on_postgres
def test_leases_whose_answer_was_lost_are_in_doubt(
    desk: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was committed, but which attempts it leased nobody knows: the engine asks the store
    what it holds.
    """
    execution, [first] = begun(desk)
    monkeypatch.setattr(
        PostgresTransaction, "ask", lambda self, sql, parameters, _: self.post(sql, parameters)
    )
    with pytest.raises(StoreError, match="was lost"):
        desk.trade(first)
    monkeypatch.undo()
    held = desk.source.held(owner=desk.owner)
    assert ["computing"] == [
        each.state
        for each in execution.computations()
        if each.number in {claim.seq for claim in held}
    ]
