"""Waiting for a value that a worker of the same process is about to compute: no read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flow_rig import (
    TIMEOUT,
    BackgroundCall,
    ManualWorker,
    database_fixture,  # noqa: F401 - a fixture
    notifications_only_fixture,  # noqa: F401 - a fixture
    url_fixture,  # noqa: F401 - a fixture
)
from longwatch.core.clock import Wakeup
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.errors import ComputationFailedError, DeadlineExceededError
from longwatch.flow import Execution, Graph
from longwatch.flow.eager_lease.leaser import LocalWorkers
from longwatch.store.database import Database
from longwatch.testing import FakeClock
from snippet import run_snippet

pytestmark = pytest.mark.usefixtures("notifications_only")
BUSY_ENGINE: Any = SimpleNamespace(
    policy=SimpleNamespace(selection=None), reserve=lambda _limit: None
)
"""The engine of a worker without a free slot: changes queue their attempts."""


def chain(*, has_another: bool = False) -> Graph:
    graph = Graph("chain", version="1")
    graph.input("x")
    graph.compute(after="x", name="a")(lambda x: x + 1)
    graph.compute(after="a", name="b")(lambda a: a + 1)
    if has_another:
        graph.compute(after="x", name="added")(lambda x: x)
    return graph


class LocalWorker(ManualWorker):
    """A worker of the process that waits. It knows that its queue is empty."""

    def __init__(self, database: Database, graph: Graph) -> None:
        self.clock = FakeClock()
        super().__init__(database, graph, clock=self.clock, notifies_waiters=True)
        connected = Wakeup()
        self.leave = self.source.listen(connected)
        if database.is_shared:  # the listener wakes all subscriptions once it is connected
            assert connected.block(TIMEOUT)

    def exchange(self, *finished: ClaimedRow) -> list[ClaimedRow]:
        """Succeed with the result 1; claim what follows."""
        settlements = [Settlement(each.claim, RowOutcome.DONE, result=b"1") for each in finished]
        return self.source.exchange(
            settlements, owner=self.owner, limit=8, lease_seconds=0.0
        ).claimed

    def computing_b(self) -> tuple[Execution, ClaimedRow]:
        """An execution whose node b was leased as the result of a was stored."""
        execution = self.flow.start("chain", x=0)
        [first] = self.exchange()
        self.exchange()
        [second] = self.exchange(first)
        return execution, second


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> Iterator[LocalWorker]:
    made = LocalWorker(database, chain())
    with made.flow.local_workers.registered(BUSY_ENGINE, made.source.eager_leaser):
        yield made
    made.leave()


@pytest.fixture(name="reads")
def reads_fixture(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that waiting callers read."""
    nodes: list[str] = []
    original = Execution._poll_value

    def spy(execution: Execution, node: str, *given: Any, **named: Any) -> Any:
        nodes.append(node)
        return original(execution, node, *given, **named)

    monkeypatch.setattr(Execution, "_poll_value", spy)
    return nodes


def test_a_caller_that_waits_for_it_gets_it_without_a_read(
    worker: LocalWorker, reads: list[str]
) -> None:
    execution, second = worker.computing_b()
    waiting = BackgroundCall(lambda: execution.get("b", timeout=TIMEOUT))
    worker.clock.await_parked(1)
    assert [] == reads
    worker.exchange(second)
    assert 1 == waiting.wait()


def test_a_value_that_is_there_is_read(worker: LocalWorker, reads: list[str]) -> None:
    execution, _ = worker.computing_b()
    assert 1 == execution.get("a", timeout=0)
    assert ["a"] == reads


def test_a_state_of_a_while_ago_is_not_trusted(worker: LocalWorker, reads: list[str]) -> None:
    execution, _ = worker.computing_b()
    worker.clock.advance(0.1, parked=0)
    with pytest.raises(DeadlineExceededError):
        execution.get("b", timeout=0)
    assert ["b"] == reads


def test_a_change_by_this_process_is_seen_at_once(worker: LocalWorker) -> None:
    execution, _ = worker.computing_b()
    execution.cancel()
    with pytest.raises(ComputationFailedError, match="was cancelled"):
        execution.get("b", timeout=0)


def test_a_node_that_was_added_to_the_graph_is_queued(
    worker: LocalWorker, reads: list[str]
) -> None:
    execution, _ = worker.computing_b()
    graph_id = worker.flow.registry.find("chain")
    worker.flow.registry.graphs[graph_id] = chain(has_another=True)
    with pytest.raises(DeadlineExceededError):
        execution.get("b", timeout=0)
    assert ["b"] == reads


def test_a_node_that_can_get_no_value_is_reported_at_once(database: Database) -> None:
    graph = chain()
    graph.compute(after="x", name="bad", max_attempts=1)(lambda x: x)
    graph.compute(after="bad", name="worse")(lambda bad: bad)
    worker = LocalWorker(database, graph)
    execution = worker.flow.start("chain", x=0)
    by_node = {each.item.node: each for each in worker.exchange()}
    worker.exchange()
    ends = [
        Settlement(by_node["a"].claim, RowOutcome.DONE, result=b"1"),
        Settlement(by_node["bad"].claim, RowOutcome.FAILED, error="broken"),
    ]
    worker.source.exchange(ends, owner=worker.owner, limit=8, lease_seconds=0.0)
    with (
        worker.flow.local_workers.registered(BUSY_ENGINE, worker.source.eager_leaser),
        pytest.raises(ComputationFailedError, match="'bad', which it waits for, failed"),
    ):
        execution.get("worse", timeout=0)
    worker.leave()


def test_a_forked_child_reads(worker: LocalWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    execution, _ = worker.computing_b()
    workers: LocalWorkers = worker.flow.local_workers
    assert workers.are_computing(execution._number, "b", known_nodes=2)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not workers.are_computing(execution._number, "b", known_nodes=2)


def test_a_forked_child_registers_its_graphs_again(tmp_path: Path) -> None:
    """The child opens the store anew, and may find another one at its URL."""
    code = f"""
        import os
        from longwatch.flow import Flow, Graph
        graph = Graph("one", version="1")
        graph.input("x")
        flow = Flow("sqlite:///{tmp_path}/flow.db", [graph])
        known = flow.registry.registered()
        assert known is flow.registry.registered()
        if not (child := os.fork()):
            os._exit(0 if flow.registry.registered() is not known else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert known is flow.registry.registered()
    """
    with run_snippet(code) as snippet:
        assert (0, "") == snippet.wait()
