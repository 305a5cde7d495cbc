"""Retries of nodes by a process that has no code of their graph, on every database."""

from __future__ import annotations

import pytest

from flow_rig import ManualWorker, database_fixture, url_fixture  # noqa: F401 - fixtures
from longwatch.errors import UnknownExecutionError, UsageError
from longwatch.flow import Execution, Flow, Graph
from longwatch.flow.stored_retry import retry_from_store
from longwatch.store.database import Database


def letters() -> Graph:
    graph = Graph("letters", version="1")
    graph.input("a")
    graph.input("items")
    graph.compute(after=["a"], name="draft", max_attempts=1)(lambda a: a)
    graph.compute(after=["draft"], name="final", max_attempts=2, max_running=1)(lambda draft: draft)
    graph.map("each", over="items", function=lambda item: item, max_attempts=1)
    return graph


@pytest.fixture(name="worker")
def worker_fixture(database: Database) -> ManualWorker:
    return ManualWorker(database, letters())


@pytest.fixture(name="failed")
def failed_fixture(worker: ManualWorker) -> Execution:
    """An execution whose node `final` was given up."""
    execution = worker.flow.start("letters", a=1)
    worker.run(worker.claim())
    worker.exhaust(execution, "final")
    return execution


def retry(database: Database, execution: Execution | str, node: str) -> None:
    """Retry a node as a process without the graph does."""
    with Flow(database) as flow:
        retry_from_store(
            database, flow.records, execution if isinstance(execution, str) else execution.id, node
        )


def test_a_worker_computes_a_retried_node(
    worker: ManualWorker, failed: Execution, database: Database
) -> None:
    retry(database, failed, "final")
    [seen] = worker.flow.executions()
    assert "waiting" == seen.state
    assert {"final": 1} == worker.run_all()
    assert 1 == failed.get("final", wait=False)
    assert "idle" == worker.flow.executions()[0].state


def test_the_retry_writes_what_the_retry_of_the_code_writes(
    worker: ManualWorker, failed: Execution, database: Database
) -> None:
    other = worker.flow.start("letters", a=1)
    worker.run(worker.claim())
    worker.exhaust(other, "final")
    retry(database, failed, "final")
    other.retry("final")
    columns = (
        "queue, lease_state, state, attempt, computed_with, heartbeat_timeout, abandon_after, "
        "max_attempts, failures, crashes, lost, due_at, pending"
    )
    attempts = worker.rows(
        f"SELECT {columns} FROM longwatch_computations WHERE lease_state < 3 ORDER BY execution"
    )
    executions = worker.rows(
        "SELECT revision, changes, known_nodes, settled_nodes, state, settled_at "
        "FROM longwatch_executions ORDER BY execution"
    )
    values = worker.rows(
        "SELECT node, is_set, revision, attempted_with, failed_attempts, failed, error "
        "FROM longwatch_values WHERE node = 'final' ORDER BY execution"
    )
    assert 2 == len(attempts)
    for rows in (attempts, executions, values):
        assert rows[0] == rows[1]


def test_a_worker_of_a_node_that_failed_again_gives_it_up_again(
    worker: ManualWorker, failed: Execution, database: Database
) -> None:
    retry(database, failed, "final")
    worker.exhaust(failed, "final")
    assert "failed" == worker.flow.executions()[0].state
    assert [1, 2, 1, 2] == [each.attempt for each in failed.computations() if each.node == "final"]


def test_a_node_that_was_not_given_up_is_refused(
    worker: ManualWorker, failed: Execution, database: Database
) -> None:
    with pytest.raises(UsageError, match=r"'draft' of .* was not given up"):
        retry(database, failed, "draft")
    with pytest.raises(UsageError, match=r"'nothing' of .* was not given up"):
        retry(database, failed, "nothing")
    retry(database, failed, "final")
    with pytest.raises(UsageError, match=r"'final' of .* was not given up"):
        retry(database, failed, "final")
    assert 1 == len(worker.claim())


def test_an_ended_execution_is_refused(failed: Execution, database: Database) -> None:
    failed.archive()
    with pytest.raises(UsageError, match="is archived"):
        retry(database, failed, "final")
    failed.unarchive()
    failed.cancel()
    with pytest.raises(UsageError, match="was cancelled"):
        retry(database, failed, "final")


def test_an_unknown_execution_is_refused(database: Database, failed: Execution) -> None:
    assert failed.id
    with pytest.raises(UnknownExecutionError, match="there is no execution 'gone'"):
        retry(database, "gone", "final")


def test_a_failed_map_names_the_command_that_retries_it(
    worker: ManualWorker, database: Database
) -> None:
    execution = worker.flow.start("letters", items=[1, 2])
    while leased := worker.claim():
        for each in leased:
            worker.give_up(each)
    with pytest.raises(UsageError, match=f"flow retry MODULE:FLOW {execution.id} each"):
        retry(database, execution, "each")
