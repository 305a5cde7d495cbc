"""Executions as tables for people and as JSON. The keys of JSON are API."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from longwatch.cli.json_views import JsonObject, utc
from longwatch.cli.output import age, key_value_lines, pluralize, short_body, table

if TYPE_CHECKING:
    from longwatch.app.flows import ExecutionView
    from longwatch.flow.computation import Computation
    from longwatch.flow.execution_summary import ExecutionSummary
    from longwatch.flow.explanation import Explanation
    from longwatch.flow.gates import GateResult
    from longwatch.flow.graph import Graph

MAX_ERROR_CHARS = 120


# --- for machines ---


def summary_json(summary: ExecutionSummary) -> JsonObject:
    return {
        "execution": summary.id,
        "graph": summary.graph,
        "version": summary.version,
        "state": summary.state,
        "revision": summary.revision,
        "created_at": utc(summary.created_at),
        "updated_at": utc(summary.updated_at),
        "set": summary.values,
        "running": summary.running,
        "waiting": summary.waiting,
        "failed": summary.failed,
    }


def execution_json(
    seen: ExecutionView, attempts: Sequence[Computation], *, with_tracebacks: bool
) -> JsonObject:
    state = seen.state
    values = {
        name: {"value": state.value(name), "revision": state.revision_of(name)}
        for name in _set_nodes(seen)
    }
    return {
        **summary_json(seen.summary),
        "metadata": seen.metadata,
        "values": values,
        "attempts": [
            attempt_json(each) | ({"traceback": _traceback(each)} if with_tracebacks else {})
            for each in attempts
        ],
    }


def attempt_json(attempt: Computation) -> JsonObject:
    times = {
        name: None if (moment := getattr(attempt, name)) is None else utc(moment)
        for name in ("created_at", "started_at", "ended_at", "last_heartbeat_at")
    }
    fields = {
        "node": attempt.node,
        "element": attempt.element,
        "attempt": attempt.attempt,
        "state": attempt.state,
        "end_cause": attempt.end_cause,
        **times,
    }
    is_running = attempt.state == "computing"
    left = {
        name: getattr(attempt, name) if is_running else None
        for name in ("heartbeat_in", "deadline_in")
    }
    return {
        **fields,
        **left,
        "ready_in": attempt.ready_in,
        "error": attempt.error,
        "computed_with": attempt.computed_with,
    }


def explanation_json(explanation: Explanation) -> JsonObject:
    nodes = [
        {
            "node": each.node,
            "state": each.state,
            "text": each.text,
            "error": each.error,
            "gate": None if each.gate is None else _finding_json(each.gate),
        }
        for each in explanation.nodes
    ]
    return {"execution": explanation.execution, "ended": explanation.ended, "nodes": nodes}


def graph_json(graph: Graph, execution: str | None, picture: str) -> JsonObject:
    from longwatch.flow.gates import gate_text  # noqa: PLC0415 - help must not wait for it

    nodes = [
        {
            "node": each.name,
            "kind": str(each.kind),
            "after": list(each.upstream),
            "gate": gate_text(each.gate) or None,
        }
        for each in graph.nodes.values()
    ]
    return {
        "graph": graph.name,
        "version": graph.version,
        "execution": execution,
        "nodes": nodes,
        "picture": picture,
    }


def _finding_json(result: GateResult) -> JsonObject:
    return {
        "text": result.text,
        "met": result.met,
        "error": result.error or None,
        "parts": [_finding_json(part) for part in result.parts],
    }


# --- for people ---

_SUMMARY_HEADERS = (
    "execution",
    "graph",
    "version",
    "state",
    "revision",
    "set",
    "running",
    "waiting",
    "failed",
    "started",
    "changed",
)
_ATTEMPT_HEADERS = ("node", "attempt", "state", "cause", "since", "took", "heartbeat left", "error")


def summary_table(found: Iterable[ExecutionSummary]) -> list[str]:
    """A table of executions."""
    now = time.time()
    return table(_SUMMARY_HEADERS, (_summary_row(each, now) for each in found))


def execution_lines(seen: ExecutionView, attempts: Sequence[Computation]) -> list[str]:
    """The lines of an execution: its summary, its values and the given attempts."""
    parts = [
        [*_summary_lines(seen.summary), *_metadata_lines(seen.metadata)],
        _value_table(seen),
        _attempt_table(seen.attempts, attempts),
        _refusal_lines(seen),
    ]
    return [line for part in parts if part for line in ("", *part)][1:]


def explanation_lines(explanation: Explanation, flow: str) -> list[str]:
    """The tree of an explanation; the commands below it name this import path."""
    return [
        line if line.startswith(" ") else line.replace(" MODULE:FLOW ", f" {flow} ")
        for line in str(explanation).splitlines()
    ]


def choose_attempts(
    attempts: Sequence[Computation], limit: int, *, errors_first: bool
) -> list[Computation]:
    """Choose the newest attempts, in their order; with `errors_first`, the newest with an error
    before any other.
    """
    ranked = list(attempts)
    if errors_first:
        ranked.sort(key=lambda each: bool(each.error))
    chosen = {each.number for each in ranked[-limit:]}
    return [each for each in attempts if each.number in chosen]


def error_lines(attempts: Iterable[Computation]) -> list[str]:
    """The errors of attempts in full, each with its traceback."""
    lines: list[str] = []
    for each in attempts:
        if each.error:
            first, *others = each.error.split("\n")
            lines += [
                "",
                f"{_place(each)}, attempt {each.attempt}, {each.end_cause}: {first}",
                *others,
            ]
            lines += (_traceback(each) or "").splitlines()
    return lines


def _traceback(attempt: Computation) -> str | None:
    found: str | None = getattr(attempt, "traceback", None)
    return found


def _summary_row(each: ExecutionSummary, now: float) -> tuple[object, ...]:
    counts = each.revision, each.values, each.running, each.waiting, each.failed
    return (
        each.id,
        each.graph,
        each.version,
        each.state,
        *counts,
        _ago(now, each.created_at),
        _ago(now, each.updated_at),
    )


def _summary_lines(summary: ExecutionSummary) -> list[str]:
    now = time.time()
    facts = {
        "execution": summary.id,
        "graph": f"{summary.graph} {summary.version}",
        "state": summary.state,
        "revision": summary.revision,
        "started": f"{utc(summary.created_at)}, {_ago(now, summary.created_at)}",
        "changed": f"{utc(summary.updated_at)}, {_ago(now, summary.updated_at)}",
    }
    return key_value_lines(facts)


def _metadata_lines(metadata: JsonObject) -> list[str]:
    return (
        [f"metadata   {short_body(json.dumps(metadata, ensure_ascii=False).encode())}"]
        if metadata
        else []
    )


def _value_table(seen: ExecutionView) -> list[str]:
    nodes = seen.state.nodes
    rows = [
        (name, nodes[name].revision, short_body((nodes[name].value or "null").encode()))
        for name in _set_nodes(seen)
    ]
    return table(("node", "revision", "value"), rows) if rows else []


def _attempt_table(every: Sequence[Computation], some: Sequence[Computation]) -> list[str]:
    now = time.time()
    lines = table(_ATTEMPT_HEADERS, (_attempt_row(each, now) for each in some)) if some else []
    left = len(every) - len(some)
    return (
        [*lines, f"{pluralize(left, 'other attempt')} not shown; more with --limit"]
        if left
        else lines
    )


def _refusal_lines(seen: ExecutionView) -> list[str]:
    """The errors of failed nodes that no attempt has, such as that of a map over a number."""
    known = {each.error for each in seen.attempts}
    return [
        f"{name} failed: {record.error}"
        for name, record in seen.state.nodes.items()
        if record.failed and record.error and record.error not in known
    ]


def _attempt_row(attempt: Computation, now: float) -> tuple[object, ...]:
    began = attempt.started_at
    since = attempt.ended_at or began or attempt.created_at
    return (
        _place(attempt),
        attempt.attempt,
        _state(attempt),
        attempt.end_cause,
        _ago(now, since),
        "" if began is None else age(max((attempt.ended_at or now) - began, 0.0)),
        _time_left(attempt.heartbeat_in) if attempt.state == "computing" else "",
        _last_line(attempt.error),
    )


def _place(attempt: Computation) -> str:
    """The node of an attempt; of a map also the index of the element, if it is still in the
    list.
    """
    if attempt.element is None:
        return attempt.node
    return f"{attempt.node}[{attempt.element if attempt.element >= 0 else 'removed'}]"


def _state(attempt: Computation) -> str:
    if attempt.state == "not_set":
        return (
            "waiting"
            if not attempt.ready_in or attempt.ready_in <= 0
            else f"due in {age(attempt.ready_in)}"
        )
    return attempt.state


def _time_left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return age(seconds) if seconds >= 0 else f"late by {age(-seconds)}"


def _last_line(error: str | None) -> str:
    """The last line of an error that has text, shortened."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if len(lines[-1]) <= MAX_ERROR_CHARS else f"{lines[-1][:MAX_ERROR_CHARS]}…"


def _set_nodes(seen: ExecutionView) -> list[str]:
    """The nodes that have a value, in the order in which they got it."""
    nodes = seen.state.nodes
    return sorted(
        (name for name in nodes if nodes[name].is_set),
        key=lambda name: (nodes[name].revision, name),
    )


def _ago(now: float, moment: float) -> str:
    return f"{age(max(now - moment, 0.0))} ago"
