"""Opens flows for one command, by `module:name` or by the URL of a store, and closes them after it.

A command that only reads creates neither files nor tables. Errors of the store keep their own exit
codes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, NamedTuple, TypeVar

from longwatch.core.error_text import json_reason
from longwatch.core.masking import mask_text
from longwatch.errors import SerializationError, UnknownExecutionError, UsageError
from longwatch.flow.computation import Computation
from longwatch.flow.execution_metadata import read_metadata
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.flow import Flow
from longwatch.flow.graph import Graph
from longwatch.flow.history import HistoryEntry, read_history
from longwatch.flow.invocation import VALUE_CODEC
from longwatch.flow.search import Search
from longwatch.flow.statistics import stored_graphs
from longwatch.store.database import Transaction
from longwatch.store.migrations import schema_status
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.store.sqlite.file import require_usable_path
from longwatch.workers.import_path import (
    FLOW_EXAMPLE,
    load_object,
    require_flow,
    user_code_errors,
)

FoundT = TypeVar("FoundT")

_JSON_STARTS = '{["-0123456789'
_PYTHON_LITERALS = frozenset({"True", "False", "None", "NaN", "nan", "Infinity", "inf"})


class ExecutionView(NamedTuple):
    """An execution as the store shows it, without the code of its graph."""

    summary: ExecutionSummary
    state: ExecutionState
    attempts: list[Computation]
    metadata: dict[str, Any]


# --- ways in ---


@contextmanager
def load_flow(import_path: str) -> Iterator[Flow]:
    """Load the Flow that `module:name` names, or that the function of this name returns. Output of
    its module goes to stderr.
    """
    with user_code_errors(import_path), redirect_stdout(sys.stderr):
        found = load_object(import_path, example=FLOW_EXAMPLE)
        flow: Flow = require_flow(found() if callable(found) else found, import_path)
    try:
        yield flow
    finally:
        flow.save_callbacks.flush()
        flow.database.close()


@contextmanager
def existing_flow(import_path: str) -> Iterator[Flow]:
    """Load a Flow. Raises UsageError if its store has no executions."""
    with load_flow(import_path) as flow:
        _require_executions(
            flow, "start an execution first, with `longwatch flow start` or flow.start(…)"
        )
        yield flow


@contextmanager
def existing_flow_store(url: str, *, is_explicit: bool) -> Iterator[Flow]:
    """Open a store without the code of its graphs. Raises UsageError if it does not exist or has no
    executions. `is_explicit`: the user named it.
    """
    cure = (
        "check the URL; the first `longwatch flow start` or flow.start(…) makes it"
        if is_explicit
        else "name the flow first, as module:name, or give --store"
    )
    with Flow(url) as flow:
        _require_executions(flow, cure)
        yield flow


def _require_executions(flow: Flow, cure: str) -> None:
    database = flow.database
    if isinstance(database, SqliteDatabase):
        require_usable_path(database.path)
    status = schema_status(database)
    if status is None:
        raise UsageError(f"no store at {masked_url(flow)}; {cure}")
    if not status.version:
        if database.is_shared:
            cure = "run `longwatch db migrate --store URL`, which makes its tables"
        raise UsageError(f"{masked_url(flow)} holds no executions; {cure}")


def masked_url(flow: Flow) -> str:
    return mask_text(flow.database.url)


# --- executions without code ---


def view_execution(flow: Flow, execution_id: str) -> ExecutionView:
    """Read everything stored of an execution. Raises UnknownExecutionError for an unknown id."""
    number, _ = _find_execution(flow, execution_id)
    found = flow.database.read(lambda tx: _read_view(tx, flow, number))
    return _require_found(flow, found, execution_id)


def _read_view(tx: Transaction, flow: Flow, number: int) -> ExecutionView | None:
    """Read an execution in one transaction; None if it was removed."""
    loaded = flow.records.load(tx, [number], for_update=False)
    summaries = Search(flow.database.dialect).summaries(tx, [number])
    if number not in loaded or number not in summaries:
        return None
    attempts = tx.rows(flow.records.sql["attempts_of_execution"], {"execution": number})
    return ExecutionView(
        ExecutionSummary.from_row(summaries[number]),
        loaded[number],
        [Computation.from_row(row) for row in attempts],
        read_metadata(tx, flow.records, number) or {},
    )


def execution_history(
    flow: Flow, execution_id: str, *, node: str | None, limit: int
) -> list[HistoryEntry]:
    """Read the history of an execution. Raises UnknownExecutionError for an unknown id."""
    number, _ = _find_execution(flow, execution_id)
    return flow.database.read(
        lambda tx: read_history(tx, flow.records, number, node=node, limit=limit)
    )


def graph_and_state(flow: Flow, execution_id: str) -> tuple[Graph, ExecutionState]:
    """The state of an execution and its graph, which must be registered here."""
    number, graph_id = _find_execution(flow, execution_id)
    return flow.registry.graphs[flow.registry.find(*graph_id)], _load_state(
        flow, number, execution_id
    )


def find_graph(flow: Flow, name: str | None, version: str | None) -> Graph:
    """The graph of this name; without a name the only graph. Without a version, the latest one."""
    names = list(dict.fromkeys(graph_id.graph for graph_id in flow.registry.graphs))
    if name is None and len(names) != 1:
        raise UsageError(
            f"this flow has several graphs; name one of {', '.join(names)}"
            if names
            else "this flow has no graphs; write Flow(store, graphs=[...])"
        )
    return flow.registry.graphs[flow.registry.find(name or names[0], version)]


def graph_names(flow: Flow) -> list[str]:
    """The graphs of a flow, then the others of its store."""
    stored = flow.database.read(lambda tx: stored_graphs(tx, flow.records))
    return list(dict.fromkeys([*(each.graph for each in flow.registry.graphs), *stored]))


def only_graph(flow: Flow) -> str | None:
    """The graph of a flow and its store, if they have one; a search in it may use its indexes."""
    names = graph_names(flow)
    return names[0] if len(names) == 1 else None


def _find_execution(flow: Flow, execution_id: str) -> tuple[int, GraphId]:
    rows = flow.database.read(
        lambda tx: tx.rows(flow.records.sql["execution_by_id"], {"id": execution_id})
    )
    if not rows:
        raise UnknownExecutionError(
            f"there is no execution {execution_id!r} in {masked_url(flow)}; `longwatch flow "
            f"ls` lists them"
        )
    return rows[0][0], GraphId(*rows[0][1:3])


def _load_state(flow: Flow, number: int, execution_id: str) -> ExecutionState:
    loaded = flow.database.read(lambda tx: flow.records.load(tx, [number], for_update=False))
    return _require_found(flow, loaded.get(number), execution_id)


def _require_found(flow: Flow, found: FoundT | None, execution_id: str) -> FoundT:
    if found is None:
        raise UnknownExecutionError(
            f"there is no execution {execution_id!r} any more in {masked_url(flow)}"
        )
    return found


# --- values ---


def parse_value(node: str, text: str) -> Any:
    """Parse a value of the command line: JSON, or text that cannot be meant as JSON. Raises
    SerializationError for other input.
    """
    try:
        return VALUE_CODEC.decode(text.encode())
    except SerializationError as error:
        if text and text[0] not in _JSON_STARTS and text not in _PYTHON_LITERALS:
            return text
        if not text:
            raise UsageError(
                f"the value of {node!r} is empty; --text sets empty text, `longwatch flow "
                f"unset` unsets it"
            ) from None
        if text in _PYTHON_LITERALS:
            raise UsageError(
                f"the value of {node!r} is not JSON: {text} is Python; write null, true, "
                f"false, or use --text"
            ) from None
        detail = json_reason(str(error).removeprefix("a value cannot be read: "))
        raise UsageError(
            f"the value of {node!r} is not JSON: {detail}; quote it for the shell, or use --text"
        ) from None
