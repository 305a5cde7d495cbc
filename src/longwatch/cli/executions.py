"""How executions are told: tables for people, and what `--json` says. The keys are API."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from longwatch.cli.answer import age, counted, listed, short, table
from longwatch.cli.facts import Facts, utc

if TYPE_CHECKING:
    from longwatch.app.flows import Seen
    from longwatch.flow.execution import Computation, Summary
    from longwatch.flow.explaining import Explanation
    from longwatch.flow.gates import Finding
    from longwatch.flow.graph import Graph

LONGEST_ERROR = 120


# --- for machines ---


def of_summary(summary: Summary) -> Facts:
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


def of_seen(seen: Seen, attempts: Sequence[Computation]) -> Facts:
    standing = seen.standing
    values = {
        name: {"value": standing.value(name), "revision": standing.revision_of(name)}
        for name in _set(seen)
    }
    return {
        **of_summary(seen.summary),
        "values": values,
        "attempts": [of_attempt(each) for each in attempts],
    }


def of_attempt(attempt: Computation) -> Facts:
    times = {
        name: _moment(getattr(attempt, name))
        for name in ("created_at", "started_at", "ended_at", "last_heartbeat_at")
    }
    told = {
        "node": attempt.node,
        "attempt": attempt.attempt,
        "state": attempt.state,
        "end_cause": attempt.end_cause,
        **times,
    }
    runs = attempt.state == "computing"
    left = {
        name: getattr(attempt, name) if runs else None for name in ("heartbeat_in", "deadline_in")
    }
    return {
        **told,
        **left,
        "ready_in": attempt.ready_in,
        "error": attempt.error,
        "computed_with": attempt.computed_with,
    }


def of_explanation(explanation: Explanation) -> Facts:
    nodes = [
        {
            "node": each.node,
            "state": each.up,
            "text": each.text,
            "gate": None if each.gate is None else _of_finding(each.gate),
        }
        for each in explanation.nodes
    ]
    return {"execution": explanation.execution, "nodes": nodes}


def of_graph(graph: Graph, execution: str | None, picture: str) -> Facts:
    from longwatch.flow.picture import gate_text, kind_of  # noqa: PLC0415 - help must not wait for it

    nodes = [
        {
            "node": each.name,
            "kind": kind_of(each),
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


def _of_finding(finding: Finding) -> Facts:
    return {
        "text": finding.text,
        "met": finding.met,
        "parts": [_of_finding(part) for part in finding.parts],
    }


def _moment(moment: float | None) -> str | None:
    return None if moment is None else utc(moment)


# --- for people ---

_HEAD = (
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
_ATTEMPTS = ("node", "attempt", "state", "cause", "since", "took", "heartbeat left", "error")


def summaries(found: Iterable[Summary]) -> list[str]:
    """A table of executions."""
    now = time.time()
    return table(_HEAD, (_summary(each, now) for each in found))


def shown(seen: Seen, attempts: Sequence[Computation]) -> list[str]:
    """One execution with its values and these of its attempts."""
    parts = [_head(seen.summary), _values(seen), _attempts(seen.attempts, attempts)]
    return [line for part in parts if part for line in ("", *part)][1:]


def _summary(each: Summary, now: float) -> tuple[object, ...]:
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


def _head(summary: Summary) -> list[str]:
    now = time.time()
    facts = {
        "execution": summary.id,
        "graph": f"{summary.graph} {summary.version}",
        "state": summary.state,
        "revision": summary.revision,
        "started": f"{utc(summary.created_at)}, {_ago(now, summary.created_at)}",
        "changed": f"{utc(summary.updated_at)}, {_ago(now, summary.updated_at)}",
    }
    return listed(facts)


def _values(seen: Seen) -> list[str]:
    nodes = seen.standing.nodes
    rows = [
        (name, nodes[name].revision, short((nodes[name].value or "null").encode()))
        for name in _set(seen)
    ]
    return table(("node", "revision", "value"), rows) if rows else []


def _attempts(every: Sequence[Computation], some: Sequence[Computation]) -> list[str]:
    now = time.time()
    lines = table(_ATTEMPTS, (_attempt(each, now) for each in some)) if some else []
    left = len(every) - len(some)
    return (
        [*lines, f"{counted(left, 'older attempt')} not shown; more with --limit"]
        if left
        else lines
    )


def _attempt(attempt: Computation, now: float) -> tuple[object, ...]:
    since = attempt.ended_at or attempt.started_at or attempt.created_at
    return (
        attempt.node,
        attempt.attempt,
        _state(attempt),
        attempt.end_cause,
        _ago(now, since),
        _took(attempt, now),
        _left(attempt.heartbeat_in) if attempt.state == "computing" else "",
        _last_line(attempt.error),
    )


def _state(attempt: Computation) -> str:
    if attempt.state == "not_set":
        return (
            "waiting"
            if not attempt.ready_in or attempt.ready_in <= 0
            else f"due in {age(attempt.ready_in)}"
        )
    return attempt.state


def _took(attempt: Computation, now: float) -> str:
    return (
        ""
        if attempt.started_at is None
        else age(max((attempt.ended_at or now) - attempt.started_at, 0.0))
    )


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return age(seconds) if seconds >= 0 else f"late by {age(-seconds)}"


def _last_line(error: str | None) -> str:
    """Of an error that goes over several: the last one that says something, cut."""
    lines = [line.strip() for line in (error or "").splitlines() if line.strip()]
    if not lines:
        return ""
    return lines[-1] if len(lines[-1]) <= LONGEST_ERROR else f"{lines[-1][:LONGEST_ERROR]}…"


def _set(seen: Seen) -> list[str]:
    """The nodes that have a value, in the order in which they got it."""
    nodes = seen.standing.nodes
    return sorted(
        (name for name in nodes if nodes[name].is_set),
        key=lambda name: (nodes[name].revision, name),
    )


def _ago(now: float, moment: float) -> str:
    return f"{age(max(now - moment, 0.0))} ago"
