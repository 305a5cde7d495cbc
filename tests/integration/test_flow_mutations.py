"""Nodes that write other nodes, on each kind of store."""

from __future__ import annotations

from typing import Any

import pytest

from flow_rig import (  # noqa: F401 - fixtures
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,
    notifications_only_fixture,
    url_fixture,
)
from longwatch.flow import Execution, Flow, Graph, compute, input, mutate, when  # noqa: A004 - the contract's word
from longwatch.flow.computation import Value
from longwatch.store.database import Database
from longwatch.testing import FakeClock


def masked(card: str) -> str:
    """Hide all but the end of a card number; at the top of a module, so that a child can import
    it.
    """
    return f"***{card[-4:]}"


def payment_graph(**options: Any) -> Graph:
    """card → receipt → mask, which writes card."""
    return Graph(
        "payment",
        version="1",
        nodes=[
            input("card"),
            compute("receipt", ["card"], lambda card: f"paid with {card}"),
            mutate("mask", ["receipt", "card"], masked, writes="card", **options),
        ],
    )


def computed_graph(*, new_revision: bool) -> Graph:
    """base → price → label; discount writes price."""
    return Graph(
        "shop",
        version="1",
        nodes=[
            input("base"),
            input("percent"),
            compute("price", ["base"], lambda base: base),
            compute("label", ["price"], lambda price: f"{price} EUR"),
            mutate(
                "discount",
                ["percent"],
                lambda percent: 100 - percent,
                writes="price",
                new_revision=new_revision,
            ),
        ],
    )


class TestWithoutANewRevision:
    def test_the_target_changes_in_place_and_nothing_after_it_is_computed_again(
        self, database: Database
    ) -> None:
        worker = ManualWorker(database, payment_graph())
        execution = worker.flow.start("payment", card="12345678")
        assert {"receipt": 1, "mask": 1} == worker.run_all()
        assert {
            "card": "***5678",
            "receipt": "paid with 12345678",
            "mask": "***5678",
        } == execution.values()
        assert Value("***5678", 1, fresh=True) == execution.value("card")
        assert {} == worker.run_all()
        assert (0, "done") == (worker.flow.sweep(), worker.flow.executions()[0].state)

    def test_a_value_that_users_set_again_is_written_again(self, database: Database) -> None:
        worker = ManualWorker(database, payment_graph())
        execution = worker.flow.start("payment", card="12345678")
        worker.run_all()
        execution.set(card="55555678")
        assert {"receipt": 1, "mask": 1} == worker.run_all()
        assert "***5678" == execution.get("card", wait=False)

    def test_value_and_target_are_written_by_one_transaction(self, database: Database) -> None:
        worker = ManualWorker(database, payment_graph())
        execution = worker.flow.start("payment", card="12345678")
        worker.run([worker.claim_one()])
        mask = worker.claim_one()
        changes = "SELECT changes FROM longwatch_executions"
        [(before,)] = worker.rows(changes)
        assert worker.succeed(mask, "***")
        assert [(before + 1,)] == worker.rows(changes)
        assert ("***", "***") == (execution.values()["card"], execution.values()["mask"])

    def test_a_late_result_writes_nothing(self, database: Database) -> None:
        worker = ManualWorker(database, payment_graph())
        execution = worker.flow.start("payment", card="12345678")
        worker.run([worker.claim_one()])
        mask = worker.claim_one()
        execution.set(card="0000")
        assert not worker.succeed(mask, "late")
        assert "0000" == execution.get("card", wait=False)

    def test_a_failed_attempt_writes_nothing(self, database: Database) -> None:
        worker = ManualWorker(database, payment_graph(max_attempts=1))
        execution = worker.flow.start("payment", card="12345678")
        worker.run([worker.claim_one()])
        assert worker.fail(worker.claim_one())
        assert "12345678" == execution.get("card", wait=False)

    def test_a_computed_target_stays_fresh(self, database: Database) -> None:
        worker = ManualWorker(database, computed_graph(new_revision=False))
        execution = worker.flow.start("shop", base=100)
        worker.run_all()
        before = execution.value("price")
        execution.set(percent=20)
        assert {"discount": 1} == worker.run_all()
        assert before is not None
        assert before._replace(value=80) == execution.value("price")
        assert "100 EUR" == execution.get("label", timeout=0)

    def test_a_target_without_a_value_gets_a_new_revision(self, database: Database) -> None:
        graph = Graph(
            "first",
            version="1",
            nodes=[
                input("go"),
                input("seen"),
                compute("after_seen", ["seen"], lambda seen: seen + 1),
                mutate("write", ["go"], lambda go: go, writes="seen"),
            ],
        )
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("first", go=1)
        assert {"write": 1, "after_seen": 1} == worker.run_all()
        assert Value(1, 2, fresh=True) == execution.value("seen")

    def test_a_gate_reads_the_value_in_place(self, database: Database) -> None:
        """The test of the own gate may fail afterwards: then the node is cleared, once."""
        graph = Graph(
            "gate",
            version="1",
            nodes=[
                input("draft"),
                mutate("publish", when("draft", bool), lambda draft: not draft, writes="draft"),
            ],
        )
        worker = ManualWorker(database, graph)
        execution = worker.flow.start("gate", draft=True)
        assert {"publish": 1} == worker.run_all()
        assert {"draft": False} == execution.values()

    @pytest.mark.usefixtures("notifications_only")
    def test_waiting_callers_are_notified_of_the_changed_target(self, database: Database) -> None:
        worker = ManualWorker(database, payment_graph(), clock=(clock := FakeClock()))
        execution = worker.flow.start("payment", card="12345678")
        worker.run([worker.claim_one()])

        def wait_for_change() -> bool:
            """A listener that connects wakes every waiter, so a wakeup alone proves nothing."""
            while execution.get("card") == "12345678":
                clock.wait(waiter, None)
                waiter.clear()
            return True

        with worker.flow.waiting(execution.id, "card") as waiter:
            waiting = BackgroundCall(wait_for_change)
            clock.await_parked(1)
            worker.run([worker.claim_one()])
            assert waiting.wait()


class TestWithANewRevision:
    def test_nodes_after_the_target_are_computed_again(self, database: Database) -> None:
        worker = ManualWorker(database, computed_graph(new_revision=True))
        execution = worker.flow.start("shop", base=100)
        worker.run_all()
        execution.set(percent=20)
        assert {"discount": 1, "label": 1} == worker.run_all()
        assert {"price": 80, "label": "80 EUR"} == {
            name: execution.get(name, timeout=0) for name in ("price", "label")
        }
        price = execution.value("price")
        assert price is not None
        assert execution.revision - 1 == price.revision

    def test_an_equal_value_changes_nothing(self, database: Database) -> None:
        worker = ManualWorker(database, computed_graph(new_revision=True))
        execution = worker.flow.start("shop", base=100)
        worker.run_all()
        execution.set(percent=0)
        assert {"discount": 1} == worker.run_all()
        assert "done" == worker.flow.executions()[0].state
        assert 100 == execution.get("price", timeout=0)


class TestWorkers:
    def test_a_child_process_computes_it(self, url: str) -> None:
        graph = payment_graph(isolation="process")
        with Flow(url, [graph], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution: Execution = flow.start("payment", card="12345678")
            assert "***5678" == execution.get("mask", timeout=TIMEOUT)
            assert "***5678" == execution.get("card", timeout=0)

    def test_a_worker_thread_settles_it_from_its_cache(self, url: str) -> None:
        with Flow(url, [payment_graph()], auto_migrate=True) as flow, flow.worker(concurrency=2):
            execution: Execution = flow.start("payment", card="12345678")
            assert "***5678" == execution.get("mask", timeout=TIMEOUT)
            assert "***5678" == execution.get("card", timeout=0)
            assert "paid with 12345678" == execution.get("receipt", timeout=0)
