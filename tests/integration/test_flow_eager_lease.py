"""Attempts that are leased as they are made, and executions that are not read again: nothing of
it may be seen but the speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from flow_rig import TIMEOUT, ManualWorker, database_fixture, on_postgres, on_sqlite, url_fixture
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, ExchangeResult, RowOutcome, Settlement
from longwatch.engine.reservations import Reservations
from longwatch.errors import StoreError
from longwatch.flow import Execution, Flow, Graph, not_
from longwatch.flow.eager_lease.leaser import EagerWrite
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.propagation import propagate
from longwatch.store.database import Database, PreconditionFailedError, Transaction
from longwatch.store.postgres.transaction import PostgresTransaction
from longwatch.testing import FakeClock

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


class ListeningWorker(ManualWorker):
    """A worker that is told of news, and looks once: then it knows that nobody is in line."""

    def __init__(self, database: Database, *graphs: Graph) -> None:
        self.clock = FakeClock()
        super().__init__(database, *graphs, clock=self.clock)
        self.notified, self.leave = self.source._queue_cache.listen(Wakeup())

    def exchange(
        self,
        *leased: ClaimedRow,
        want: int = 8,
        result: bytes = b"1",
        outcome: RowOutcome = RowOutcome.DONE,
    ) -> ExchangeResult:
        settlements = [Settlement(each.claim, outcome, result=result) for each in leased]
        return self.source.exchange(settlements, owner=self.owner, limit=want, lease_seconds=0.0)


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> Iterator[ListeningWorker]:
    made = ListeningWorker(database, chain(), fork())
    yield made
    made.leave()


@pytest.fixture(name="claims")
def claims_fixture(worker: ListeningWorker, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every look into the lines."""
    return spy_on(worker.source._claimer, "claim", monkeypatch)


@pytest.fixture(name="reads")
def reads_fixture(worker: ListeningWorker, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every time that executions are read to be changed."""
    return spy_on(worker.source.records, "load_with_claims", monkeypatch)


def spy_on(target: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    original: Callable[..., Any] = getattr(target, name)

    def spy(*args: Any, **named: Any) -> Any:
        calls.append(args)
        return original(*args, **named)

    monkeypatch.setattr(target, name, spy)
    return calls


def begun(worker: ListeningWorker, graph: str = "chain") -> tuple[Execution, list[ClaimedRow]]:
    """An execution whose first attempts are this worker's, which knows that nobody is in line."""
    execution = worker.flow.start(graph, x=0)
    leased = worker.exchange().claimed
    assert not worker.exchange().claimed
    return execution, leased


def inserted(worker: ListeningWorker, tx: Transaction, execution_id: str) -> ExecutionState:
    """A new execution, to be saved: what `Flow.start` does."""
    graph_id = worker.flow.registry.find("chain")
    state = ExecutionState(0, execution_id, graph_id)
    state.set_value("x", "1")
    registered = worker.flow.registry.registered()[graph_id]
    propagate(registered.graph, state, registered.queue_by_node, now=0.0)
    worker.flow.records.insert(tx, state, None)
    return state


class TestWhereNobodyIsInLine:
    def test_what_a_result_makes_is_leased_without_a_look(
        self, worker: ListeningWorker, claims: list[Any]
    ) -> None:
        execution, [first] = begun(worker)
        claims.clear()
        [second] = worker.exchange(first).claimed
        assert ("b", 1, '{"a":"1"}', execution.id) == (
            second.item.node,
            second.item.number,
            second.item.inputs,
            second.item.id,
        )
        assert [] == claims
        assert [("a", "success", "done"), ("b", "computing", None)] == worker.states(execution)

    def test_it_is_leased_as_by_a_claim(self, worker: ListeningWorker) -> None:
        _, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        columns = (
            "lease_state, owner, term, deliveries, last_heartbeat_at = started_at, "
            "heartbeat_deadline < deadline, state"
        )
        assert worker.row(second.claim.seq, columns) == (
            2,
            worker.owner,
            second.claim.term,
            1,
            1,
            1,
            "computing",
        )
        assert second.claim.term > first.claim.term

    def test_no_more_is_leased_than_there_is_room_for(self, worker: ListeningWorker) -> None:
        execution, [left, right] = begun(worker, "fork")
        worker.exchange(left)
        assert [] == worker.exchange(right, want=0).claimed
        assert "not_set" == execution.computations()[-1].state
        [both] = worker.claim()
        assert "both" == both.item.node

    def test_an_execution_that_nobody_else_is_at_is_not_read_again(
        self, worker: ListeningWorker, reads: list[Any]
    ) -> None:
        execution, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        reads.clear()
        [third] = worker.exchange(second).claimed
        assert [True] == worker.exchange(third).settled
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
        worker = ListeningWorker(database, graph)
        _, [first] = begun(worker, "twins")
        twins = worker.exchange(first).claimed
        reads = spy_on(worker.source.records, "load_with_claims", monkeypatch)
        assert ["both"] == [each.item.node for each in worker.exchange(*twins).claimed]
        assert [] == reads
        worker.leave()

    def test_one_of_whose_attempts_another_is_at_is_read(
        self, worker: ListeningWorker, reads: list[Any]
    ) -> None:
        worker.flow.start("fork", x=0)
        other = worker.register_owner()
        [left] = worker.claim(1, owner=other)
        [right] = worker.exchange().claimed
        worker.exchange()
        worker.exchange(right)
        reads.clear()
        worker.exchange(left)
        assert 1 == len(reads)

    def test_a_failed_attempt_waits_in_line_for_its_time(self, worker: ListeningWorker) -> None:
        execution, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        settlement = Settlement(second.claim, RowOutcome.FAILED, error="broken", delay=5.0)
        assert (
            []
            == worker.source.exchange(
                [settlement], owner=worker.owner, limit=8, lease_seconds=0.0
            ).claimed
        )
        due = worker.source.next_due()
        assert due is not None
        assert 4.0 < due <= 5.0
        assert 5.0 >= (execution.computations()[-1].ready_in or 0.0) > 4.0

    def test_one_that_has_crashed_before_waits_in_line(self, worker: ListeningWorker) -> None:
        """It has to run alone, which the line sees to."""
        _, [first] = begun(worker)
        worker.exchange(first)
        worker.write(
            "UPDATE longwatch_values SET crashes = 1, attempted_with = '{\"a\":2}', "
            "failed_attempts = 1 WHERE node = 'b'"
        )
        execution = worker.flow.execution(worker.rows("SELECT id FROM longwatch_executions")[0][0])
        execution.abandon("b")
        [again] = worker.claim()
        assert ("b", 2) == (again.item.node, again.item.number)


class TestWhereSomebodyMayBeInLine:
    def test_who_was_told_of_is_served_first(self, worker: ListeningWorker) -> None:
        _, [first] = begun(worker)
        waiting = worker.flow.start("chain", x=5)
        worker.notified.set()
        [served] = worker.exchange(first, want=1).claimed
        assert waiting.id == served.item.id

    def test_who_was_not_told_of_is_served_after_a_moment(self, worker: ListeningWorker) -> None:
        _, [first] = begun(worker)
        waiting = worker.flow.start("chain", x=5)
        [second] = worker.exchange(first, want=1).claimed
        assert "b" == second.item.node
        worker.clock.advance(0.06)
        [served] = worker.exchange(second, want=1).claimed
        assert waiting.id == served.item.id

    def test_who_listens_to_nothing_always_looks(
        self, worker: ListeningWorker, claims: list[Any]
    ) -> None:
        _, [first] = begun(worker)
        worker.leave()
        claims.clear()
        worker.exchange(first)
        assert 1 == len(claims)

    def test_what_there_was_no_room_for_is_looked_for(self, worker: ListeningWorker) -> None:
        _, [left, right] = begun(worker, "fork")
        worker.exchange(left)
        worker.exchange(right, want=0)
        assert ["both"] == [each.item.node for each in worker.exchange().claimed]


class TestAnExecutionThatChangedMeanwhile:
    def test_by_another_value_is_read_and_the_late_result_does_not_count(
        self, worker: ListeningWorker
    ) -> None:
        execution, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        execution.set(x=7)
        [third] = worker.claim()
        assert "a" == third.item.node
        worker.exchange(third, want=0, result=b"8")
        assert [False] == worker.exchange(second, want=0).settled
        attempts = [("a", "success"), ("b", "cancelled"), ("a", "success"), ("b", "not_set")]
        assert attempts == [state[:2] for state in worker.states(execution)]

    def test_by_its_end_counts_as_ended(self, worker: ListeningWorker) -> None:
        execution, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        execution.cancel()
        assert [False] == worker.exchange(second).settled
        assert {"x": 0, "a": 1} == execution.values()

    def test_whose_attempt_another_has_now_does_not_take_the_late_result(
        self, worker: ListeningWorker
    ) -> None:
        """Given back and claimed again: the execution itself is as it was."""
        execution, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        worker.release(second)
        [again] = worker.claim(owner=worker.register_owner())
        assert again.claim.seq == second.claim.seq
        assert [False] == worker.exchange(second).settled
        assert [True] == worker.exchange(again).settled
        assert 1 == execution.get("b", wait=False)

    def test_whose_attempt_it_has_given_back_and_claimed_again_keeps_the_later_term(
        self, worker: ListeningWorker
    ) -> None:
        _, [first] = begun(worker)
        [second] = worker.exchange(first).claimed
        worker.release(second)
        [again] = worker.claim()
        assert (again.claim.seq, True) == (second.claim.seq, again.claim.term > second.claim.term)
        assert [True] == worker.exchange(again).settled
        assert [(again.claim.term,)] == worker.rows(
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
        worker = ListeningWorker(database, graph)
        execution, [first] = begun(worker, "gated")
        leased = {each.item.node: each for each in worker.exchange(first).claimed}
        assert {"gate", "gated"} == set(leased)
        reads = spy_on(worker.source.records, "load_with_claims", monkeypatch)
        assert [True] == worker.exchange(leased["gate"]).settled
        assert 1 == len(reads)
        assert ("gated", "cancelled", "gate") == worker.states(execution)[-1]
        terms = (
            "SELECT v.term, c.term FROM longwatch_values v JOIN longwatch_computations c ON "
            "v.node = c.node WHERE c.node = 'gated'"
        )
        [(kept, term)] = worker.rows(terms)
        assert kept == term
        worker.leave()

    def test_fails_before_anything_is_written(self, worker: ListeningWorker) -> None:
        execution, [first] = begun(worker)
        worker.exchange(first)
        number = worker.rows("SELECT execution FROM longwatch_executions")[0][0]

        def work(tx: Transaction) -> None:
            tx.require(
                "SELECT changes = 99 FROM longwatch_executions WHERE execution = :number",
                {"number": number},
            )
            tx.defer(
                "UPDATE longwatch_executions SET cancelled = 1 WHERE execution = :number",
                {"number": number},
            )

        with pytest.raises(PreconditionFailedError):
            worker.database.write(work)
        assert [(0,)] == worker.rows("SELECT cancelled FROM longwatch_executions")
        assert "running" == worker.flow.executions()[0].state
        assert execution.id == worker.flow.executions()[0].id

    def test_goes_on_if_it_is_as_it_was(self, worker: ListeningWorker) -> None:
        begun(worker)
        answers: list[Any] = []

        def work(tx: Transaction) -> None:
            tx.require("SELECT 1 = 1", {})
            tx.defer_rows(
                "UPDATE longwatch_executions SET cancelled = 1 RETURNING cancelled",
                {},
                answers.extend,
            )

        worker.database.write(work)
        assert [(1,)] == answers


class TestAWorkerInTheSameProcess:
    def test_computes_all_the_same(self, database: Database) -> None:
        flow = Flow(database, [chain(), fork()])
        with flow.worker(concurrency=2):
            started = [flow.start("chain", x=number) for number in range(20)]
            forked = [flow.start("fork", x=number) for number in range(20)]
            assert list(range(3, 23)) == [
                execution.get("c", timeout=TIMEOUT) for execution in started
            ]
            assert [[number] * 2 for number in range(20)] == [
                execution.get("both", timeout=TIMEOUT) for execution in forked
            ]
        assert all(
            1 == computation.attempt
            for execution in started
            for computation in execution.computations()
        )

    def test_whose_owner_was_deleted_is_registered_by_the_exchange_that_leases(
        self, database: Database
    ) -> None:
        worker = ListeningWorker(database, chain())
        execution, [first] = begun(worker)
        worker.write("DELETE FROM longwatch_owners")
        [second] = worker.exchange(first).claimed
        assert [(worker.owner,)] == worker.rows("SELECT owner FROM longwatch_owners")
        assert [True] == worker.exchange(second).settled
        assert 1 == execution.get("b", wait=False)
        worker.leave()

    def test_whose_owner_was_deleted_is_registered_by_the_start_that_leases(
        self, database: Database
    ) -> None:
        worker = ListeningWorker(database, chain())
        begun(worker)
        worker.write("DELETE FROM longwatch_owners")
        reservation = Reservations(lambda _: None).reserve(lambda: 4, owner=worker.owner)
        assert reservation is not None
        graph_id = worker.flow.registry.find("chain")
        state = EagerWrite(worker.source.eager_leaser, reservation, graph_id).write(
            lambda tx: inserted(worker, tx, "eager")
        )
        assert ["computing"] == [
            each.state for each in worker.flow.execution("eager").computations()
        ]
        assert [(worker.owner,)] == worker.rows("SELECT owner FROM longwatch_owners")
        assert "eager" == state.id
        worker.leave()

    def test_whose_owner_was_deleted_computes_what_is_started(self, database: Database) -> None:
        flow = Flow(database, [chain()])
        with flow.worker():
            for number in range(5):
                flow.start("chain", x=number).get("c", timeout=TIMEOUT)
                database.write(lambda tx: tx.execute("DELETE FROM longwatch_owners"))
                assert number + 3 == flow.start("chain", x=number).get("c", timeout=TIMEOUT)
            assert 1 == len(database.read(lambda tx: tx.rows("SELECT owner FROM longwatch_owners")))


@on_sqlite
def test_what_was_leased_to_an_offer_that_is_closed_before_the_commit_goes_back(
    worker: ListeningWorker,
) -> None:
    """Who began it may give up waiting while it is being written; the worker may have ended
    since.
    """
    begun(worker)
    offer = Reservations(lambda _: None).reserve(lambda: 4, owner=worker.owner)
    assert offer is not None
    kind = worker.flow.registry.find("chain")

    def closing(tx: Transaction) -> ExecutionState:
        state = inserted(worker, tx, "late")
        offer.close()
        return state

    EagerWrite(worker.source.eager_leaser, offer, kind).write(closing)
    assert "not_set" == worker.flow.execution("late").computations()[0].state
    assert ["late"] == [each.item.id for each in worker.claim(owner=worker.register_owner())]


@on_sqlite
def test_a_lease_whose_owner_is_not_known_is_found(worker: ListeningWorker) -> None:
    execution, _ = begun(worker)
    worker.write("DELETE FROM longwatch_owners")
    assert 1 == worker.flow.sweep()
    assert ["lost", None] == [each.end_cause for each in execution.computations()]


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
            second.get(f"y{number}", timeout=TIMEOUT) for number in range(inputs)
        ]


@on_postgres
def test_a_start_whose_answer_was_lost_is_found_by_its_name(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(database, [chain()])
    flow.start("chain", x=1)
    monkeypatch.setattr(
        PostgresTransaction,
        "defer_rows",
        lambda self, sql, parameters, _: self.defer(sql, parameters),
    )
    execution = flow.start("chain", x=5)
    monkeypatch.undo()
    assert {"x": 5} == execution.values()


@on_postgres
def test_leases_whose_answer_was_lost_are_in_doubt(
    worker: ListeningWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was committed, but which attempts it leased nobody knows: the engine asks the store
    what it holds.
    """
    execution, [first] = begun(worker)
    monkeypatch.setattr(
        PostgresTransaction,
        "defer_rows",
        lambda self, sql, parameters, _: self.defer(sql, parameters),
    )
    with pytest.raises(StoreError, match="was lost"):
        worker.exchange(first)
    monkeypatch.undo()
    held = worker.source.held(owner=worker.owner)
    assert ["computing"] == [
        each.state
        for each in execution.computations()
        if each.number in {claim.seq for claim in held}
    ]
