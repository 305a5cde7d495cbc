"""Retries a node that was given up without the code of its graph, from what the store has of it.

`Execution.retry` resets the budgets of the node and propagates. For a node that was given up with
its present inputs, the propagation does one thing: it opens an attempt with these inputs. This
module writes the same rows. The limits of the attempt, which only the code has, are those of its
last attempt. Maps and the firings of ticks need the code.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from longwatch.errors import UnknownExecutionError, UsageError
from longwatch.flow.archiving import archived_error
from longwatch.flow.attempt import AttemptSpec
from longwatch.flow.execution_state import ExecutionState, Progress
from longwatch.flow.node_record import NodeRecord
from longwatch.flow.records import Records, notify_workers
from longwatch.flow.registry import SHARED_QUEUE
from longwatch.store.database import Database, Transaction


class _LastAttempt(NamedTuple):
    """The newest attempt of a node. `due_at`: it is the firing of a tick. `pending`: it is a
    map.
    """

    heartbeat_timeout: float | None
    abandon_after: float
    max_attempts: int
    due_at: float | None
    pending: int | None


def retry_from_store(database: Database, records: Records, execution_id: str, node: str) -> None:
    """Try a node again that was given up, with a new budget of attempts.

    Raises UnknownExecutionError, and UsageError if the node was not given up, if the execution has
    ended, or if only the code of the graph can retry the node.
    """

    def work(tx: Transaction) -> None:
        rows = tx.rows(records.sql["execution_by_id"], {"id": execution_id})
        loaded = records.load(tx, [number for number, *_ in rows])
        if not loaded:
            raise UnknownExecutionError(f"there is no execution {execution_id!r} any more")
        [state] = loaded.values()
        _reopen(tx, records, state, node)
        notify_workers(tx, records.save(tx, [state]))

    database.write(work)


def _reopen(tx: Transaction, records: Records, state: ExecutionState, node: str) -> None:
    record = _require_given_up(state, node)
    inputs = record.attempted_with or ""
    last = _last_attempt(tx, records, state, node)
    if last is None or last.due_at is not None or last.pending is not None or not inputs:
        raise UsageError(
            f"only the code of graph {state.graph_id.graph!r} can retry node {node!r}; run "
            f"`longwatch flow retry MODULE:FLOW {state.id} {node}`"
        )
    if inputs != _present_inputs(inputs, state):
        raise UsageError(
            f"the inputs of node {node!r} of {state.id} have changed since it was given up; a "
            f"worker of its graph tries it again"
        )
    record.reset_attempts(None)
    state.changed_nodes.add(node)
    spec = AttemptSpec(_queue_of(tx, records, state, node), *last[:3])
    state.open_attempt(node, inputs, spec)
    state.progress = Progress(state.progress.known_nodes)


def _require_given_up(state: ExecutionState, node: str) -> NodeRecord:
    if state.cancelled:
        raise UsageError(f"execution {state.id} was cancelled and changes no more; start another")
    if state.archived:
        raise archived_error(state.id)
    record = state.nodes.get(node)
    if record is None or not record.failed or node in state.open_attempts:
        raise UsageError(
            f"node {node!r} of {state.id} was not given up, so there is nothing to retry"
        )
    return record


def _last_attempt(
    tx: Transaction, records: Records, state: ExecutionState, node: str
) -> _LastAttempt | None:
    parameters = {"execution": state.number, "node": node}
    rows = tx.rows(records.sql["last_attempt"], parameters)
    return _LastAttempt(*rows[0]) if rows else None


def _present_inputs(inputs: str, state: ExecutionState) -> str:
    """The present revisions of the nodes in `inputs`, as `propagation.input_revisions` writes
    them.
    """
    names = msgspec.json.decode(inputs, type=dict[str, int])
    revisions = {name: state.revision_of(name) for name in names}
    return msgspec.json.encode(revisions).decode()


def _queue_of(tx: Transaction, records: Records, state: ExecutionState, node: str) -> int:
    """The number of the queue of a node: its own, else the one that the graph shares."""
    rows = tx.rows(records.sql["queues_of_graph"], state.graph_id._asdict())
    numbers = {name: number for number, name, _ in rows}
    return int(numbers[node] if node in numbers else numbers[SHARED_QUEUE])
