"""Lists and counts executions: validates the conditions, and reads a page from the store."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.graph import Graph
from longwatch.flow.indexing import NodeIndexes
from longwatch.flow.records import Records
from longwatch.flow.registry import Registry
from longwatch.flow.search import (
    Query,
    Search,
    validate_before,
    validate_cursor,
    validate_filters,
    validate_limit,
    validate_node,
    validate_sort,
    validate_states,
    validate_text,
    validate_time,
)
from longwatch.flow.search_filters import Filter
from longwatch.flow.statistics import require_stored
from longwatch.store.database import Database, Transaction

_TIMES = {
    "created_after": ("created_at", ">="),
    "created_before": ("created_at", "<"),
    "updated_after": ("updated_at", ">="),
    "updated_before": ("updated_at", "<"),
}


class Conditions(TypedDict, total=False):
    """The conditions of a search; all of them have to hold. Times are aware datetimes or seconds
    since 1970; `…_after` includes its time, `…_before` does not.
    """

    where: Filter | Iterable[Filter]
    state: str | Iterable[str] | None
    version: str | None
    include_archived: bool
    created_after: datetime | float | None
    created_before: datetime | float | None
    updated_after: datetime | float | None
    updated_before: datetime | float | None


class Listing:
    """Lists executions of one store. Thread-safe."""

    def __init__(self, database: Database, records: Records, registry: Registry) -> None:
        self._database = database
        self._records = records
        self._registry = registry
        self._search = Search(database.dialect)
        self._indexes = NodeIndexes(database)

    def page(  # noqa: PLR0913 - the parameters of `Flow.executions`
        self,
        graph: str | None,
        conditions: Conditions,
        *,
        sort: str,
        limit: int,
        before: int | None,
        after: str | None,
    ) -> list[ExecutionSummary]:
        """The executions of one page, in order."""
        order = validate_sort(sort)
        if order.node is not None:
            validate_node(order.node, self._known_graphs(graph, conditions.get("version")))
        query = replace(
            self._query(graph, conditions),
            sort=order,
            limit=validate_limit(limit),
            before=validate_before(before),
            after=validate_cursor(after, order),
        )

        def read(tx: Transaction) -> list[ExecutionSummary]:
            self._require_known(tx, query)
            found = self._search.find(tx, query, self._indexed(tx, query))
            rows = self._search.summaries(tx, [each.number for each in found])
            return [
                replace(ExecutionSummary.from_row(rows[each.number]), cursor=each.cursor)
                for each in found
            ]

        return self._database.read(read)

    def count(self, graph: str | None, conditions: Conditions) -> int:
        """How many executions match."""
        query = self._query(graph, conditions)

        def read(tx: Transaction) -> int:
            self._require_known(tx, query)
            return self._search.count(tx, query, self._indexed(tx, query))

        return self._database.read(read)

    def _query(self, graph: str | None, conditions: Conditions) -> Query:
        _require_known_names(conditions)
        validate_text("graph", graph)
        version = validate_text("version", conditions.get("version"))
        given: dict[str, Any] = {name: conditions.get(name) for name in _TIMES}
        return Query(
            graph=graph,
            version=version,
            filters=validate_filters(
                conditions.get("where", ()), self._known_graphs(graph, version)
            ),
            states=validate_states(conditions.get("state")),
            include_archived=conditions.get("include_archived", False),
            times=tuple(
                (*_TIMES[name], validate_time(name, moment))
                for name, moment in given.items()
                if moment is not None
            ),
        )

    def _require_known(self, tx: Transaction, query: Query) -> None:
        """Raise UnknownGraphError for a graph that neither this Flow nor the store has, and
        UsageError for a node that none of their graphs has.
        """
        graphs = self._registry.graphs.values()
        if query.graph is not None and all(each.name != query.graph for each in graphs):
            require_stored(tx, self._records, query.graph)
        known = {node for each in graphs if query.graph in {None, each.name} for node in each.nodes}
        if query.nodes - known:
            self._search.require_stored_nodes(tx, query)

    def _known_graphs(self, graph: str | None, version: str | None) -> list[Graph]:
        """The graphs of this Flow that a search is about."""
        return [
            each
            for each in self._registry.graphs.values()
            if each.name == graph and version in {None, each.version}
        ]

    def _indexed(self, tx: Transaction, query: Query) -> frozenset[str]:
        """The nodes whose index may be used. The index is complete for one graph at a time."""
        if query.graph is None or not (query.filters or query.sort.node):
            return frozenset()
        return self._indexes.complete(tx, query.graph)


def _require_known_names(conditions: Conditions) -> None:
    """Raise UsageError for a condition that does not exist: ignored, it would match more."""
    for name in conditions:
        if name not in Conditions.__annotations__:
            known = sorted(Conditions.__annotations__)
            hint = did_you_mean(name, known, default=f"conditions are {', '.join(known)}")
            raise UsageError(f"a search has no condition {name!r}; {hint}")
