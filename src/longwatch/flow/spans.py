"""The spans of executions: one around their start and each change from outside, one around each
attempt. The row of an execution has the headers of the span that started or last changed it, which
is the parent of its attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from longwatch.core.tracing import AttributeValue, Span, SpanKind, Work
from longwatch.errors import StoreError
from longwatch.flow.claimer import ClaimedAttempt
from longwatch.flow.execution_state import GraphId
from longwatch.flow.graph import Graph
from longwatch.flow.records import Records
from longwatch.store.database import Database

ReadTrace = Callable[[int], Mapping[str, str]]
"""Returns the headers of the span that started or last changed the execution of this number."""


def change_work(verb: str, graph_id: GraphId) -> Work:
    """Describe the start or a change of an execution."""
    return Work(
        name=f"{verb} {graph_id.graph}", kind=SpanKind.PRODUCER, attributes=_graph_facts(graph_id)
    )


def attempt_work(graph: Graph, item: ClaimedAttempt, parent: Mapping[str, str]) -> Work:
    """Describe an attempt to compute a node, or an element of a map."""
    facts: dict[str, AttributeValue] = {
        **_graph_facts(GraphId(graph.name, graph.version)),
        "longwatch.execution.id": item.id,
        "longwatch.node": item.node,
        "longwatch.attempt": item.number,
    }
    if item.element is not None:
        facts["longwatch.map.element"] = item.element
    return Work(
        name=f"compute {graph.name}/{item.node}",
        kind=SpanKind.CONSUMER,
        attributes=facts,
        parent=parent,
    )


def encode_trace(span: Span) -> str:
    """Encode the headers of a span for the row of an execution."""
    return msgspec.json.encode(span.headers()).decode()


def read_trace(database: Database, records: Records, execution: int) -> dict[str, str]:
    """Read the headers of an execution; none if there are none, or the store does not answer."""
    try:
        rows = database.read(
            lambda tx: tx.rows(records.sql["trace_context"], {"execution": execution})
        )
        return msgspec.json.decode(rows[0][0], type=dict[str, str]) if rows and rows[0][0] else {}
    except (StoreError, msgspec.MsgspecError):
        return {}


def _graph_facts(graph_id: GraphId) -> dict[str, AttributeValue]:
    return {"longwatch.graph": graph_id.graph, "longwatch.graph.version": graph_id.version}
