"""One execution of a store, without the code of its graph."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from longwatch.app.mailboxes import has_mailboxes
from longwatch.errors import GraphError, UsageError
from longwatch.flow.computation import Computation
from longwatch.flow.execution_metadata import read_metadata
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.explanation import NodeExplanation, explain
from longwatch.flow.gates import GateResult
from longwatch.flow.graph_evolution import load_definitions
from longwatch.flow.histories import HistorianNode
from longwatch.flow.map_records import MapProgress
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.records import Records
from longwatch.flow.search import Search
from longwatch.flow.short_values import ShortValue, load_short
from longwatch.flow.stored_graph import StoredGraph, rebuild_graph
from longwatch.flow.stored_retry import retry_from_store
from longwatch.page.readers.execution_picture import draw_execution, kind_text
from longwatch.page.readers.texts import ShownText, error_line, show_body, show_line, show_text
from longwatch.page.view import NotFoundError
from longwatch.store.database import Database, Transaction

MAX_OPEN_ATTEMPTS = 100
MAX_HISTORY = 100
MAX_FAILED_ELEMENTS = 20
MAX_VALUE_CHARS = 16 * 1024
_TIME_LEFT = re.compile(r"( UTC), in [^;]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateLine:
    """One condition of a gate, indented by `depth`."""

    text: str
    met: bool
    depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """A node of an execution. `can_retry`: it was given up, and the store has what a retry needs.
    `retry_command` retries one that was given up where it has not. `attempts`: spent on its
    present inputs. `progress`: how far a map is.
    """

    name: str
    kind: str
    state: str
    text: str
    needs: str
    gate: tuple[GateLine, ...]
    attempts: int
    revision: int | None
    value: str
    value_text: ShownText | None
    changed_at: float | None
    error: str
    error_text: ShownText | None
    traceback: ShownText | None
    can_retry: bool
    retry_command: str = ""
    progress: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAttemptRow:
    """An open attempt. Moments are wall times, to the second: `silent_at` is when its heartbeat
    timeout ends, `late_at` when its time ends.
    """

    node: str
    element: int | None
    attempt: int
    state: str
    since: float
    silent_at: float | None
    late_at: float | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """An ended attempt, or an input that was set or unset."""

    at: float
    node: str
    what: str
    attempt: int | None = None
    cause: str = ""
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedElementRow:
    """A failed element of a map."""

    node: str
    index: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionDetail:
    """An execution. `picture` is SVG markup; empty if the graph is too large to draw. `note` says
    what is missing without the code of the graph.
    """

    summary: ExecutionSummary
    nodes: tuple[NodeRow, ...]
    picture: str
    note: str
    ended: str
    metadata: ShownText | None
    open_attempts: tuple[OpenAttemptRow, ...]
    has_more_attempts: bool
    history: tuple[HistoryRow, ...]
    failed_elements: tuple[FailedElementRow, ...]

    @property
    def failed_nodes(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.can_retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetriedNodes:
    """The nodes that a retry has queued, and why it refused others."""

    retried: tuple[str, ...]
    refused: tuple[str, ...]


# --- one execution ---


@dataclass(frozen=True, slots=True)
class _Read:
    """What one transaction reads of an execution."""

    summary: ExecutionSummary
    state: ExecutionState
    values: Mapping[str, ShortValue]
    definitions: Mapping[str, str]
    metadata: Mapping[str, Any]
    attempts: Sequence[Computation]
    ended: Sequence[HistoryRow]
    maps: Mapping[str, MapProgress]
    failed_elements: Sequence[FailedElementRow]


def read_execution(database: Database, execution_id: str) -> ExecutionDetail:
    """An execution with its picture and its explanation. Raises NotFoundError if there is none."""
    records, search = Records(database.dialect), Search(database.dialect)
    is_id = execution_id.isprintable() and has_mailboxes(database)
    found = is_id and database.read(lambda tx: _read(tx, records, search, execution_id))
    if not found:
        raise NotFoundError(f"there is no execution {execution_id}; it may have been removed")
    return _detail(found)


def retry_nodes(database: Database, execution_id: str, node: str = "") -> RetriedNodes:
    """Try a node again that was given up, or all such nodes of an execution."""
    nodes = [node] if node else read_execution(database, execution_id).failed_nodes
    retried, refused = [], []
    for name in nodes:
        try:
            retry_from_store(database, Records(database.dialect), execution_id, name)
            retried.append(name)
        except UsageError as error:
            refused.append(str(error))
    return RetriedNodes(retried=tuple(retried), refused=tuple(refused))


def _read(tx: Transaction, records: Records, search: Search, execution_id: str) -> _Read | None:
    rows = tx.rows(records.sql["execution_by_id"], {"id": execution_id})
    if not rows:
        return None
    number = rows[0][0]
    summaries = search.summaries(tx, [number])
    loaded = load_short(tx, records, number, limit=MAX_VALUE_CHARS)
    if loaded is None or number not in summaries:
        return None
    state, values = loaded
    try:
        definitions = load_definitions(tx, records, state.graph_id)
    except GraphError:  # a damaged row
        definitions = {}
    attempts = tx.rows(
        records.sql["open_attempts_of_execution"],
        {"execution": number, "limit": MAX_OPEN_ATTEMPTS + 1},
    )
    maps = records.maps.progress(tx, number)
    return _Read(
        ExecutionSummary.from_row(summaries[number]),
        state,
        values,
        definitions,
        read_metadata(tx, records, number) or {},
        [Computation.from_row(row) for row in attempts],
        _read_ended(tx, records, number),
        maps,
        _read_failed_elements(tx, records, number, maps),
    )


def _read_ended(tx: Transaction, records: Records, number: int) -> list[HistoryRow]:
    parameters = {"execution": number, "node": "", "limit": MAX_HISTORY}
    return [
        HistoryRow(
            at=ended_at,
            node=node,
            what=state,
            attempt=attempt,
            cause=cause or "",
            seconds=None if started_at is None else max(ended_at - started_at, 0.0),
            error=error_line(error),
        )
        for _, node, state, attempt, cause, error, started_at, ended_at, _ in tx.rows(
            records.sql["history_attempts"], parameters
        )
    ]


def _read_failed_elements(
    tx: Transaction, records: Records, number: int, maps: Mapping[str, MapProgress]
) -> list[FailedElementRow]:
    found: list[FailedElementRow] = []
    for name, progress in maps.items():
        if progress.failed:
            rows = tx.rows(
                records.maps.sql["failed_elements"],
                {"execution": number, "node": name, "limit": MAX_FAILED_ELEMENTS},
            )
            found += [
                FailedElementRow(node=name, index=position, error=error_line(error))
                for position, error, _ in rows
            ]
    return found


def _detail(found: _Read) -> ExecutionDetail:
    graph, note = _rebuilt(found)
    explanation = explain(graph.graph, found.state, found.maps)
    facts = {each.node: each for each in explanation.nodes}
    nodes = _ordered(graph)
    rows = tuple(_node_row(node, facts, found) for node in nodes)
    return ExecutionDetail(
        summary=found.summary,
        nodes=rows,
        picture=draw_execution(
            nodes,
            {row.name: row.state for row in rows},
            {row.name: _note(row, found.maps.get(row.name)) for row in rows},
            title=f"Execution {found.summary.id} of {found.summary.graph}",
        ),
        note=note,
        ended=explanation.ended,
        metadata=show_body(msgspec.json.encode(found.metadata)) if found.metadata else None,
        open_attempts=tuple(map(_open_attempt, found.attempts[:MAX_OPEN_ATTEMPTS])),
        has_more_attempts=len(found.attempts) > MAX_OPEN_ATTEMPTS,
        history=_history(graph, found),
        failed_elements=tuple(found.failed_elements),
    )


def _rebuilt(found: _Read) -> tuple[StoredGraph, str]:
    """The graph, and what it lacks."""
    try:
        graph = rebuild_graph(found.definitions, found.state)
    except GraphError:
        graph = rebuild_graph({}, found.state)
    if not graph.is_defined:
        return graph, (
            "The store has no definition of this graph. It shows the nodes that the execution has "
            "used; nodes that it has not reached are missing."
        )
    if graph.has_tests:
        return graph, (
            "Tests of values are code of the graph, which is not here: their outcomes are inferred "
            f"from the state. `longwatch flow explain MODULE:FLOW {found.state.id}` evaluates them."
        )
    return graph, ""


def _ordered(graph: StoredGraph) -> list[Node]:
    inputs = [node for node in graph.graph.nodes.values() if node.is_input]
    return [*inputs, *graph.graph.computed_nodes]


# --- nodes ---


def _node_row(node: Node, facts: Mapping[str, NodeExplanation], found: _Read) -> NodeRow:
    explained = _explained(node, facts[node.name], found.state)
    record = found.state.nodes.get(node.name)
    short = found.values.get(node.name)
    attempt = found.state.open_attempts.get(node.name)
    spent = 0 if record is None else record.spent_attempts
    start = (short.start or "").encode() if short and short.length else b""
    progress = found.maps.get(node.name)
    error = record.error if record is not None else None
    is_given_up = (
        record is not None and record.failed and attempt is None and not found.state.has_ended
    )
    return NodeRow(
        name=node.name,
        kind=kind_text(node),
        state=explained.state,
        text=explained.text,
        needs=node.relation.removeprefix("← "),
        gate=tuple(_gate_lines(explained.gate)) if explained.gate else (),
        attempts=max(spent, attempt.number if attempt is not None else 0),
        revision=found.state.revision_of(node.name) or None,
        value=show_line(start) if start else "",
        value_text=_value_text(start, short) if short and start else None,
        changed_at=short.changed_at if short else None,
        error=error_line(error),
        error_text=show_text(error) if error else None,
        traceback=show_text(record.traceback) if record and record.traceback else None,
        can_retry=is_given_up and node.kind is not NodeKind.MAP,
        retry_command=f"longwatch flow retry MODULE:FLOW {found.state.id} {node.name}"
        if is_given_up and node.kind is NodeKind.MAP
        else "",
        progress="" if progress is None else str(progress),
    )


def _note(row: NodeRow, progress: MapProgress | None) -> str:
    """What the picture says of a node beside its state; its kind if there is nothing."""
    if progress is not None:
        failed = f", {progress.failed:,} failed" if progress.failed else ""
        return f"{progress.done:,} of {progress.elements:,}{failed}"
    if row.attempts > 1 or (row.can_retry and row.attempts):
        return f"{row.attempts} attempt{'' if row.attempts == 1 else 's'}"
    return ""


def _value_text(start: bytes, short: ShortValue) -> ShownText:
    shown = show_body(start)
    is_cut = shown.is_cut or (short.length or 0) > MAX_VALUE_CHARS
    return replace(shown, size=short.length or 0, is_cut=is_cut)


def _explained(node: Node, found: NodeExplanation, state: ExecutionState) -> NodeExplanation:
    """The explanation of a node, without the time left until a tick fires, which changes all the
    time. How many entries a historian may keep is not stored.
    """
    if not isinstance(node, HistorianNode):
        return replace(found, text=_TIME_LEFT.sub(r"\1", found.text))
    return NodeExplanation(
        node.name,
        "set" if state.is_set(node.name) else "unset",
        f"recording the changes of {', '.join(node.of)}",
    )


def _open_attempt(attempt: Computation) -> OpenAttemptRow:
    state = "running" if attempt.state == "computing" else "waiting"
    return OpenAttemptRow(
        node=attempt.node,
        element=attempt.element,
        attempt=attempt.attempt,
        state="delayed" if (attempt.ready_in or 0.0) > 0 else state,
        since=attempt.started_at or attempt.created_at,
        silent_at=_moment_in(attempt.heartbeat_in),
        late_at=_moment_in(attempt.deadline_in),
        error=error_line(attempt.error),
    )


def _moment_in(seconds: float | None) -> float | None:
    """The wall time so many seconds from now, to the second: the page does not change meanwhile."""
    return None if seconds is None else float(round(time.time() + seconds))


def _gate_lines(result: GateResult, depth: int = 0) -> Iterator[GateLine]:
    yield GateLine(text=result.text, met=result.met, depth=depth)
    for part in result.parts:
        yield from _gate_lines(part, depth + 1)


def _history(graph: StoredGraph, found: _Read) -> tuple[HistoryRow, ...]:
    """Ended attempts and changes of inputs, the newest first."""
    changed = [
        HistoryRow(
            at=short.changed_at,
            node=name,
            what="set" if found.state.is_set(name) else "unset",
        )
        for name, short in found.values.items()
        if name in graph.graph.nodes
        and graph.graph.nodes[name].is_input
        and found.state.nodes[name].revision
    ]
    rows = sorted([*changed, *found.ended], key=lambda each: each.at, reverse=True)
    return tuple(rows[:MAX_HISTORY])
