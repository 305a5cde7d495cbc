"""`/flows` and one execution; retry of nodes that were given up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.statistics import STATES
from longwatch.page.across_stores import (
    StoreAnswer,
    ask_all,
    ask_database,
    on_database,
    problems_of,
)
from longwatch.page.data import PageData
from longwatch.page.program_facts import BAD, INFO, OFF, OK, WARN, Badge
from longwatch.page.readers.execution_lists import (
    ExecutionFilter,
    ExecutionPage,
    GraphCounts,
    read_executions,
    read_graphs,
)
from longwatch.page.readers.executions import read_execution, retry_nodes
from longwatch.page.stores import StoreEntry
from longwatch.page.view import (
    ActionDone,
    Confirmation,
    View,
    ViewRequest,
    path_to,
)

GRAPHS_FRESH_SECONDS = 2.0
"""Seconds for which one count of all executions serves every view."""
_KINDS = {
    "running": INFO,
    "waiting": WARN,
    "idle": OFF,
    "failed": BAD,
    "done": OK,
    "cancelled": OFF,
    "archived": OFF,
}
_NODE_KINDS = {
    "set": OK,
    "fresh": OK,
    "running": INFO,
    "waiting": WARN,
    "stale": WARN,
    "paused": WARN,
    "failed": BAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphRow:
    """A graph of one of the stores."""

    entry: StoreEntry
    counts: GraphCounts


def flows(page: PageData, request: ViewRequest) -> View:
    """The graphs of all stores, and the executions of one store."""
    answers = page.cached(
        "graphs", lambda: ask_all(page, on_database(read_graphs)), seconds=GRAPHS_FRESH_SECONDS
    )
    rows = [
        GraphRow(entry=answer.entry, counts=counts)
        for answer in answers
        for counts in answer.result or ()
    ]
    wanted = _wanted(request)
    chosen = _chosen(answers, request.query.get("store", ""))
    found = ExecutionPage()
    if chosen is not None:
        found = ask_database(page, chosen.key, partial(read_executions, wanted=wanted))
    facts = {
        "rows": rows,
        "states": STATES,
        "columns": [(name.capitalize(), "number") for name in (*STATES, "all")],
        "problems": problems_of(answers),
        "stores": [answer.entry for answer in answers if answer.result],
        "chosen": chosen,
        "wanted": wanted,
        "found": found,
        "badge_of": badge_of,
        "graphs": sorted({row.counts.graph for row in rows if row.entry == chosen}),
        "path": request.path,
        "query": request.query,
    }
    return View("Flows", "flows.html", facts)


def execution(page: PageData, request: ViewRequest) -> View:
    """One execution: its picture, its nodes and why they wait, its history."""
    key, execution_id = request.parameters["store"], request.parameters["id"]
    found = ask_database(page, key, partial(read_execution, execution_id=execution_id))
    facts = {
        "entry": page.stores.entry(key),
        "key": key,
        "found": found,
        "picture": Markup(found.picture),  # noqa: S704 - the drawing escapes all text
        "badge": badge_of(found.summary),
        "node_kinds": _NODE_KINDS,
        "here_path": path_to("flows", key, execution_id),
    }
    return View(f"Execution {execution_id}", "execution.html", facts)


def badge_of(summary: ExecutionSummary) -> Badge:
    """The state of an execution."""
    return Badge(kind=_KINDS.get(summary.state, INFO), text=summary.state)


def _wanted(request: ViewRequest) -> ExecutionFilter:
    query = request.query
    return ExecutionFilter(
        graph=query.get("graph", ""),
        state=query.get("state", ""),
        text=query.get("text", "")[:200],
        after=query.get("after", "")[:200],
    )


def _chosen(
    answers: Sequence[StoreAnswer[list[GraphCounts] | None]], key: str
) -> StoreEntry | None:
    """The store of this key; without one the first store with graphs."""
    for answer in answers:
        if answer.result and (not key or answer.entry.key == key):
            return answer.entry
    return None


# --- actions ---


def confirm_retry(page: PageData, request: ViewRequest) -> Confirmation:
    key, execution_id = request.parameters["store"], request.parameters["id"]
    node = request.form.get("node", "")
    what = f"node {node}" if node else "all failed nodes"
    entry = page.stores.entry(key)
    return Confirmation(
        title=f"Retry {what}?",
        text=f"Computes {what} of execution {execution_id} again, with a new budget of attempts "
        f"and the limits of the last one. Store: {entry.shown}.",
        button="Retry",
        back=path_to("flows", key, execution_id),
        subject=f"{entry.shown} {execution_id} {node or 'all failed nodes'}",
        danger=False,
    )


def retry(page: PageData, request: ViewRequest) -> ActionDone:
    key, execution_id = request.parameters["store"], request.parameters["id"]
    back, node = path_to("flows", key, execution_id), request.form.get("node", "")
    found = ask_database(page, key, partial(retry_nodes, execution_id=execution_id, node=node))
    if not (found.retried or found.refused):
        return ActionDone(back, "No node was given up, so there is nothing to retry.", ok=False)
    queued = [f"{', '.join(found.retried)} will be computed again"] if found.retried else []
    return ActionDone(back, "; ".join([*queued, *found.refused]), ok=not found.refused)
