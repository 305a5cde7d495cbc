"""The graphs of one store, and its executions page by page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from longwatch.app.mailboxes import has_mailboxes
from longwatch.errors import UnknownGraphError, UsageError
from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.flow import Flow
from longwatch.flow.records import Records
from longwatch.flow.search import Search
from longwatch.flow.search_filters import MetadataFilter, metadata
from longwatch.flow.statistics import count_executions, stored_graphs
from longwatch.store.database import Database, Transaction

PAGE_SIZE = 100
MAX_GRAPHS = 200
MAX_FILTER_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphCounts:
    """A graph with the number of its executions in each state."""

    graph: str
    by_state: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_state.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionFilter:
    """Which executions a list shows. `text` is an id, or `key=value` of the metadata."""

    graph: str = ""
    state: str = ""
    text: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """One page of executions, the newest first. `next`: the cursor of the next page; empty on the
    last one. `problem`: why the filter cannot be used.
    """

    found: tuple[ExecutionSummary, ...] = ()
    next: str = ""
    problem: str = ""


def read_graphs(database: Database) -> list[GraphCounts]:
    """The graphs of a store with the counts of their executions. Reads every execution."""
    if not has_mailboxes(database):
        return []
    records = Records(database.dialect)

    def read(tx: Transaction) -> list[GraphCounts]:
        return [
            GraphCounts(graph=name, by_state=count_executions(tx, records, name))
            for name in stored_graphs(tx, records)[:MAX_GRAPHS]
        ]

    return database.read(read)


def read_executions(
    database: Database, wanted: ExecutionFilter, *, limit: int = PAGE_SIZE
) -> ExecutionPage:
    """One page of the executions that match."""
    if not has_mailboxes(database):
        return ExecutionPage()
    text = wanted.text.strip()[:MAX_FILTER_CHARS]
    if text and "=" not in text:
        return ExecutionPage(found=tuple(_by_id(database, text)))
    try:
        found = Flow(database).executions(
            wanted.graph or None,
            limit=limit + 1,
            after=wanted.after or None,
            where=[_metadata_filter(text)] if text else (),
            state=wanted.state or None,
        )
    except (UsageError, UnknownGraphError) as error:
        return ExecutionPage(problem=str(error))
    shown = tuple(found[:limit])
    return ExecutionPage(found=shown, next=shown[-1].cursor if len(found) > limit else "")


def _by_id(database: Database, execution_id: str) -> Iterator[ExecutionSummary]:
    if execution_id.isprintable():
        records, search = Records(database.dialect), Search(database.dialect)

        def read(tx: Transaction) -> list[ExecutionSummary]:
            rows = tx.rows(records.sql["execution_by_id"], {"id": execution_id})
            summaries = search.summaries(tx, [number for number, *_ in rows])
            return [ExecutionSummary.from_row(row) for row in summaries.values()]

        yield from database.read(read)


def _metadata_filter(text: str) -> MetadataFilter:
    """The filter that `key=value` names; the value is JSON, else text."""
    key, _, given = text.partition("=")
    try:
        operand: Any = msgspec.json.decode(given.strip())
    except msgspec.DecodeError:
        operand = given.strip()
    if isinstance(operand, list | dict):
        operand = given.strip()
    made: MetadataFilter = metadata(key.strip()) == operand
    return made
