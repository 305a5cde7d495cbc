"""Executions of a graph that got more nodes, and executions that were deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    url_fixture,
)
from longwatch.errors import NotSetError
from longwatch.flow import Execution, Flow, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.records import Records
from longwatch.store.database import Database, Transaction
from longwatch.testing import FakeClock

AT_ONCE = 6


def grown_graph(*added: str) -> Graph:
    """url → pages, and nodes that were added after pages."""
    return Graph(
        "scrape",
        version="1",
        nodes=[
            input("url"),
            compute("pages", ["url"], lambda url: len(url or "")),
            *(compute(name, ["pages"], lambda pages: pages + 1) for name in added),
        ],
    )


@pytest.fixture
def execution(database: Database) -> Execution:
    """A finished execution of the graph as it was before."""
    worker = ManualWorker(database, grown_graph())
    execution = worker.flow.start("scrape", url="abc", idempotency_key="abc")
    worker.run_all()
    return execution


def attempts_of(execution: Execution, node: str) -> list[str]:
    return [each.state for each in execution.computations() if each.node == node]


class TestAddedNodes:
    def test_are_computed_for_a_get_that_waits(
        self, database: Database, execution: Execution
    ) -> None:
        worker = ManualWorker(database, grown_graph("more"), clock=(clock := FakeClock()))
        found = worker.flow.execution(execution.id)
        waiting = BackgroundCall(lambda: found.get("more", timeout=TIMEOUT))
        clock.await_parked(1)
        assert {"more": 1} == worker.run_all()
        assert 4 == waiting.wait()

    @pytest.mark.parametrize(
        "touch",
        [
            lambda flow, identity: flow.execution(identity).get("more", wait=False),
            lambda flow, identity: flow.execution(identity).set(url="abc"),
            lambda flow, _: flow.start("scrape", idempotency_key="abc"),
        ],
        ids=["get", "set", "start"],
    )
    def test_are_queued_at_once_by_any_touch(
        self, database: Database, execution: Execution, touch: Callable[[Flow, str], Any]
    ) -> None:
        worker = ManualWorker(database, grown_graph("more"))
        with suppress(NotSetError):
            touch(worker.flow, execution.id)
        assert {"more": 1} == worker.run_all()
        assert 4 == execution_of(worker, execution).get("more", timeout=0)

    def test_are_opened_once_by_processes_that_come_at_once(
        self, database: Database, execution: Execution, url: str
    ) -> None:
        start = threading.Barrier(AT_ONCE)

        def touch() -> str:
            with Flow(url, [grown_graph("more")]) as flow:
                found = flow.execution(execution.id)
                start.wait(TIMEOUT)
                with suppress(NotSetError):
                    found.get("more", wait=False)
            return "touched"

        calls = [BackgroundCall(touch) for _ in range(AT_ONCE)]
        assert ["touched"] * AT_ONCE == [call.wait() for call in calls]
        assert ["not_set"] == attempts_of(execution, "more")
        assert {"more": 1} == ManualWorker(database, grown_graph("more")).run_all()

    def test_are_not_opened_in_a_cancelled_execution(
        self, database: Database, execution: Execution
    ) -> None:
        execution.cancel()
        worker = ManualWorker(database, grown_graph("more"))
        with pytest.raises(NotSetError):
            execution_of(worker, execution).get("more", wait=False)
        assert {} == worker.run_all()

    def test_are_found_by_the_sweep_after_a_worker_that_does_not_know_them(
        self, database: Database
    ) -> None:
        new, old = (ManualWorker(database, grown_graph(*added)) for added in (["more"], []))
        started = new.flow.start("scrape", url="abc")
        assert {"pages": 1} == old.run_all()
        assert [] == attempts_of(started, "more")
        assert (0, 1, 0) == (old.flow.sweep(), new.flow.sweep(), old.flow.sweep())
        assert {"more": 1} == new.run_all()

    def test_cost_a_get_no_write_once_they_are_known(
        self, database: Database, execution: Execution, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = ManualWorker(database, grown_graph("more"))
        found = execution_of(worker, execution)
        with suppress(NotSetError):
            found.get("more", wait=False)
        worker.run_all()
        monkeypatch.setattr(worker.database, "write", _refuse)
        assert 4 == found.get("more", wait=False) == found.get("more", timeout=0)


def execution_of(worker: ManualWorker, execution: Execution) -> Execution:
    """The same execution, through the flow of this worker."""
    return worker.flow.execution(execution.id)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a write")


class TestDeletedExecutions:
    def test_leave_their_key_to_a_new_one_that_inherits_nothing(self, database: Database) -> None:
        worker = ManualWorker(database, grown_graph())
        first = worker.flow.start("scrape", url="abc", idempotency_key="k")
        worker.run_all()
        worker.write("DELETE FROM longwatch_executions")
        second = worker.flow.start("scrape", idempotency_key="k")
        assert first.id != second.id
        assert ({}, []) == (second.values(), second.computations())

    def test_give_way_to_a_new_one_if_deleted_while_start_looks_for_the_key(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = ManualWorker(database, grown_graph())
        first = worker.flow.start("scrape", url="abc", idempotency_key="k")
        insert = Records.insert

        def insert_then_delete(self: Records, tx: Transaction, *row: Any) -> bool:
            inserted = insert(self, tx, *row)
            if not inserted:
                tx.execute("DELETE FROM longwatch_executions")
            return inserted

        monkeypatch.setattr(Records, "insert", insert_then_delete)
        second = worker.flow.start("scrape", url="abcd", idempotency_key="k")
        assert first.id != second.id
        assert {"url": "abcd"} == second.values()


class TestStates:
    def test_a_finished_execution_is_done_and_one_that_lacks_an_input_is_idle(
        self, database: Database
    ) -> None:
        worker = ManualWorker(database, grown_graph())
        execution = worker.flow.start("scrape")
        seen = [state_of(worker)]
        execution.set(url="abc")
        seen.append(state_of(worker))
        leased = worker.claim_one()
        seen.append(state_of(worker))
        worker.succeed(leased, 3)
        seen.append(state_of(worker))
        execution.unset("url")
        seen.append(state_of(worker))
        assert ["idle", "waiting", "running", "done", "idle"] == seen

    def test_a_failed_execution_is_not_done(self, database: Database) -> None:
        worker = ManualWorker(database, grown_graph())
        execution = worker.flow.start("scrape", url="abc")
        worker.give_up(worker.claim_one())
        assert "failed" == state_of(worker)
        execution.cancel()
        assert "cancelled" == state_of(worker)


def state_of(worker: ManualWorker) -> str:
    [summary] = worker.flow.executions()
    return summary.state
