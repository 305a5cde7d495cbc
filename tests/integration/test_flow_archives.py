"""Archived executions, on each kind of store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    notifications_only_fixture,
    store_wall,
    url_fixture,
)
from longwatch.errors import ComputationFailedError, NotSetError, UsageError
from longwatch.flow import (
    Execution,
    Flow,
    Graph,
    archive,
    compute,
    historian,
    input,  # noqa: A004 - the contract's word
)
from longwatch.store.database import Database
from longwatch.testing import FakeClock


def order_graph(*more: Any) -> Graph:
    """item → packed → sent → put_away; invoice after item is slow."""
    return Graph(
        "order",
        version="1",
        nodes=[
            input("item"),
            compute("packed", ["item"], lambda item: f"box of {item}"),
            compute("invoice", ["item"], lambda item: f"pay for {item}"),
            archive("put_away", ["packed"]),
            *more,
        ],
    )


def states_of(worker: ManualWorker) -> list[str]:
    return [each.state for each in worker.flow.executions(include_archived=True)]


class TestArchiveNodes:
    def test_archive_in_the_transaction_that_meets_their_gate(self, database: Database) -> None:
        clock = FakeClock(wall=store_wall(database))
        worker = ManualWorker(database, order_graph(), clock=clock)
        execution = worker.flow.start("order", item="tea")
        packed, invoice = sorted(worker.claim(), key=lambda each: each.item.node, reverse=True)
        assert worker.succeed(packed, "box")
        assert {"item": "tea", "packed": "box", "put_away": clock.wall()} == execution.values()
        assert ["archived"] == states_of(worker)
        assert [
            ("packed", "success", "done"),
            ("invoice", "cancelled", "execution"),
        ] == worker.states(execution)
        assert not worker.succeed(invoice, "late")
        assert {} == worker.run_all()

    def test_do_not_archive_again_while_they_are_fresh(self, database: Database) -> None:
        worker = ManualWorker(database, order_graph())
        execution = worker.flow.start("order", item="tea")
        worker.run([each for each in worker.claim() if each.item.node == "packed"])
        execution.unarchive()
        assert {"invoice": 1} == worker.run_all()
        assert ["done"] == states_of(worker)
        assert 0 == worker.flow.sweep()

    def test_archive_again_after_a_change_of_their_inputs(self, database: Database) -> None:
        worker = ManualWorker(
            database, order_graph(), clock=(clock := FakeClock(wall=store_wall(database)))
        )
        execution = worker.flow.start("order", item="tea")
        worker.run_all()
        execution.unarchive()
        clock.advance(60)
        execution.set(item="milk")
        worker.run_all()
        assert ["archived"] == states_of(worker)
        assert clock.wall() == execution.get("put_away")

    def test_are_recorded_by_historians(self, database: Database) -> None:
        worker = ManualWorker(database, order_graph(historian("log", ["put_away"])))
        execution = worker.flow.start("order", item="tea")
        worker.run_all()
        [entry] = execution.get("log")
        assert ("put_away", execution.get("put_away")) == (entry["node"], entry["value"])

    def test_may_archive_at_the_start(self, database: Database) -> None:
        graph = Graph("now", version="1", nodes=[input("a"), archive("put_away", ["a"])])
        worker = ManualWorker(database, graph)
        worker.flow.start("now", a=1)
        assert ["archived"] == states_of(worker)

    def test_archive_for_workers_that_settle_from_their_cache(self, url: str) -> None:
        graph = order_graph(compute("end", ["packed"], lambda packed: packed))
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution = flow.start("order", item="tea")
            assert execution.get("put_away", timeout=TIMEOUT)
            assert ["archived"] == [each.state for each in flow.executions(include_archived=True)]
            execution.unarchive()
            assert "box of tea" == execution.get("end", timeout=TIMEOUT)
            assert "pay for tea" == execution.get("invoice", timeout=TIMEOUT)


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> ManualWorker:
    graph = Graph(
        "plain",
        version="1",
        nodes=[
            input("a"),
            input("b"),
            compute("double", ["a"], lambda a: a * 2),
            compute("triple", ["double"], lambda double: double * 3),
            compute("other", ["b"], lambda b: -b),
        ],
    )
    return ManualWorker(database, graph, clock=FakeClock(wall=store_wall(database)))


@pytest.fixture(name="execution")
def execution_fixture(worker: ManualWorker) -> Execution:
    """double is computed, triple is queued, other waits for b; archived."""
    execution = worker.flow.start("plain", a=1)
    worker.run([worker.claim_one()])
    execution.archive()
    return execution


class TestArchivedExecutions:
    def test_are_hidden_from_lists_unless_asked(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        other = worker.flow.start("plain", a=5)
        assert [other.id] == [each.id for each in worker.flow.executions()]
        assert [other.id, execution.id] == [
            each.id for each in worker.flow.executions(include_archived=True)
        ]

    @pytest.mark.parametrize(
        "change",
        [
            lambda execution: execution.set(a=2),
            lambda execution: execution.set(a=1),
            lambda execution: execution.unset("a"),
            lambda execution: execution.retry("triple"),
            lambda execution: execution.abandon("triple"),
        ],
        ids=["set", "set_equal", "unset", "retry", "abandon"],
    )
    def test_refuse_changes_and_name_the_cure(
        self, worker: ManualWorker, execution: Execution, change: Callable[[Execution], Any]
    ) -> None:
        with pytest.raises(UsageError, match=r"is archived .*unarchive\(\)"):
            change(execution)
        assert ({"a": 1, "double": 2}, {}) == (execution.values(), worker.run_all())

    def test_still_have_their_values(self, execution: Execution) -> None:
        assert (2, 1) == (execution.get("double"), execution.get("a", wait=False))
        with pytest.raises(NotSetError):
            execution.get("triple", wait=False)

    @pytest.mark.parametrize("node", ["triple", "other"])
    def test_end_a_get_of_an_unset_node_with_a_clear_error(
        self, execution: Execution, node: str
    ) -> None:
        with pytest.raises(ComputationFailedError, match=r"is archived; unarchive\(\)"):
            execution.get(node)

    @pytest.mark.usefixtures("notifications_only")
    def test_end_a_get_that_waits_when_they_are_archived(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("plain", a=1)
        waiting = BackgroundCall(lambda: execution.get("other"))
        worker.flow.clock.await_parked(1)  # type: ignore[attr-defined]
        execution.archive()
        assert "is archived" in str(waiting.wait())

    def test_continue_where_they_were(self, worker: ManualWorker, execution: Execution) -> None:
        assert [
            ("double", "success", "done"),
            ("triple", "cancelled", "execution"),
        ] == worker.states(execution)
        execution.unarchive()
        assert {"triple": 1} == worker.run_all()
        assert 6 == execution.get("triple", timeout=0)
        execution.set(a=2)
        assert {"double": 1, "triple": 1} == worker.run_all()

    def test_archive_and_unarchive_are_idempotent(
        self, worker: ManualWorker, execution: Execution
    ) -> None:
        revision = execution.revision
        assert [revision] * 3 == [execution.archive(), execution.unarchive(), execution.unarchive()]
        assert ["waiting"] == states_of(worker)

    def test_running_attempts_are_cancelled(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("plain", a=1)
        leased = worker.claim_one()
        execution.archive()
        assert not worker.succeed(leased, 5)
        assert "double" not in execution.values()

    def test_are_not_swept(self, worker: ManualWorker, execution: Execution) -> None:
        assert (0, {}) == (worker.flow.sweep(), worker.run_all())
        assert {"triple": "archived", "other": "archived", "double": "fresh"}.items() <= {
            each.node: each.state for each in execution.explain().nodes
        }.items()

    def test_of_a_cancelled_execution_stay_cancelled(self, worker: ManualWorker) -> None:
        execution = worker.flow.start("plain", a=1)
        execution.cancel()
        execution.archive()
        seen = states_of(worker)
        execution.unarchive()
        assert ["archived", "cancelled"] == [*seen, *states_of(worker)]
        assert {} == worker.run_all()

    def test_are_found_by_their_key_and_stay_archived(self, worker: ManualWorker) -> None:
        first = worker.flow.start("plain", a=1, idempotency_key="k")
        first.archive()
        assert first.id == worker.flow.start("plain", a=1, idempotency_key="k").id
        assert ["archived"] == states_of(worker)
