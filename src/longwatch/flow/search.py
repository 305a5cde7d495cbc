"""Searches executions by their graph, state, times, metadata and the values of their nodes.

A search first finds the numbers of the executions in order, then reads their summaries. How it
finds them depends on what is selective, not on the statistics of the database:

    few        If an index names at most PROBE_SIZE executions for one of the conditions (the value
               of an indexed node, the state), only those are tested and sorted.
    by index   If the search is sorted by an indexed node, or one indexed node has to be equal to a
               value, an index has the executions in order. They are tested until the page is full.
    newest     Otherwise all executions are tested, the newest first, until the page is full.

A node counts as indexed once the keys of all its values are there (`indexing.py`). SQL is put
together from the parts in `search.sql`; whatever a caller gives is a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from longwatch.core.suggest import did_you_mean
from longwatch.errors import UsageError
from longwatch.flow.execution_state import ExecutionStatus
from longwatch.flow.graph import Graph
from longwatch.flow.node_options import is_finite_number, is_positive_int
from longwatch.flow.search_filters import (
    Filter,
    KeyComparison,
    MetadataFilter,
    ValueFilter,
    value,
)
from longwatch.store.database import Row, Transaction
from longwatch.store.named_sql import fill_query, load_queries

PROBE_SIZE = 5000
"""Executions that one condition may name so that they are tested and sorted one by one."""
MAX_LIMIT = 1_000_000
_MAX_NUMBER = 2**62
RUNNING, WAITING, ACTIVE = "running", "waiting", "active"
STATES = (
    RUNNING,
    WAITING,
    ACTIVE,
    *(status.name.lower() for status in ExecutionStatus if status is not ExecutionStatus.ACTIVE),
)
"""The words for states of executions; active ones are running or waiting."""
_CREATED, _UPDATED, _NODE_PREFIX = "created", "updated", "value."
_CONSTANTS = {
    "sqlite": {"of_numbers": "IN (SELECT value FROM json_each(:numbers))"},
    "postgresql": {"of_numbers": "= ANY (:numbers::int8[])"},
}


class Sort(NamedTuple):
    """The order of a search: by `created`, by `updated`, or by the value of a node."""

    by: str = _CREATED
    node: str | None = None
    descending: bool = True


NEWEST_FIRST = Sort()


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A validated search."""

    graph: str | None = None
    version: str | None = None
    filters: tuple[Filter, ...] = ()
    states: frozenset[str] = frozenset()
    include_archived: bool = False
    times: tuple[tuple[str, str, float], ...] = ()
    """Conditions on `created_at` and `updated_at`: the column, the operator and the time."""
    sort: Sort = NEWEST_FIRST
    limit: int = 100
    before: int | None = None
    after: tuple[Any, int] | None = None
    """The sort key and the number of the last execution of the page before."""

    @property
    def nodes(self) -> set[str]:
        """The nodes whose values the search reads."""
        nodes = {each.node for each in self.filters if isinstance(each, ValueFilter)}
        return nodes if self.sort.node is None else nodes | {self.sort.node}

    @property
    def statuses(self) -> list[ExecutionStatus]:
        """The stored states that may match."""
        active = {RUNNING, WAITING, ACTIVE}
        return [
            status
            for status in ExecutionStatus
            if (status.name.lower() in self.states)
            or (status is ExecutionStatus.ACTIVE and bool(self.states & active))
        ]


class Match(NamedTuple):
    """An execution that a search has found; the cursor continues after it."""

    number: int
    cursor: str


@dataclass(slots=True)
class _Statement:
    """A statement in the making: its conditions and its parameters."""

    parts: Mapping[str, str]
    conditions: list[str] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)

    def part(self, name: str, **parameters: Any) -> str:
        """A part of `search.sql` with these parameters, under names of their own."""
        number = len(self.parameters)
        self.parameters |= {f"{key}_{number}": given for key, given in parameters.items()}
        return self.parts[name].replace("{n}", str(number))

    def parameter(self, given: Any) -> str:
        name = f"given_{len(self.parameters)}"
        self.parameters[name] = given
        return f":{name}"

    def compare(self, expression: str, comparisons: Iterable[KeyComparison]) -> None:
        for operator, operand in comparisons:
            if isinstance(operand, tuple):
                listed = ", ".join(map(self.parameter, operand)) or "NULL"
                self.conditions.append(f"{expression} IN ({listed})")
            else:
                self.conditions.append(f"{expression} {operator} {self.parameter(operand)}")

    def text(self, selected: str, *, end: str = "") -> str:
        where = " AND ".join(self.conditions) or "1 = 1"
        return f"{selected} WHERE {where} {end}"


class Search:
    """Runs searches in transactions of the caller."""

    def __init__(self, dialect: str) -> None:
        self._parts = load_queries("longwatch.flow", "search", dialect, **_CONSTANTS[dialect])
        self._takes_arrays = dialect == "postgresql"

    def find(self, tx: Transaction, query: Query, indexed: frozenset[str]) -> list[Match]:
        """The executions of one page, in order. `indexed` are the nodes with complete indexes."""
        statement, selected, keys = self._select(tx, query, indexed)
        compare, direction = ("<", "DESC") if query.sort.descending else (">", "ASC")
        if query.after is not None:
            last = ", ".join(map(statement.parameter, query.after[-len(keys) :]))
            statement.conditions.append(f"({', '.join(keys)}) {compare} ({last})")
        order = ", ".join(f"{key} {direction}" for key in keys)
        text = statement.text(
            fill_query(self._parts["page"], keys=f"{keys[-1]}, {keys[0]}", selected=selected),
            end=f"ORDER BY {order} LIMIT {statement.parameter(query.limit)}",
        )
        return [_match(row) for row in tx.rows(text, statement.parameters)]

    def count(self, tx: Transaction, query: Query, indexed: frozenset[str]) -> int:
        """How many executions match."""
        statement, selected, _ = self._select(tx, query, indexed)
        text = statement.text(fill_query(self._parts["count"], selected=selected))
        [(found,)] = tx.rows(text, statement.parameters)
        return int(found)

    def summaries(self, tx: Transaction, numbers: list[int]) -> dict[int, Row]:
        """The rows of executions, by their numbers."""
        rows = tx.rows(self._parts["summaries"], {"numbers": self._array(numbers)})
        return {row[7]: row for row in rows}

    def require_stored_nodes(self, tx: Transaction, query: Query) -> None:
        """Raise UsageError for a node that no stored graph of the search has. Accepts every name
        if the store has no definition of one of them.
        """
        rows = tx.rows(self._parts["stored_definitions"], {"graph": query.graph or ""})
        if not rows or any(definition is None for *_, definition in rows):
            return
        try:
            known = {node for *_, definition in rows for node in msgspec.json.decode(definition)}
        except (msgspec.DecodeError, TypeError):  # a damaged row; registering its graph names it
            return
        for node in query.nodes - known:
            where = "the store" if query.graph is None else f"graph {query.graph!r}"
            hint = did_you_mean(node, known, default=f"it has {', '.join(sorted(known))}")
            raise UsageError(f"{where} has no node {node!r}; {hint}")

    # --- putting a statement together ---

    def _select(
        self, tx: Transaction, query: Query, indexed: frozenset[str]
    ) -> tuple[_Statement, str, list[str]]:
        """A statement with all conditions, the tables to select from, and the sort keys, of which
        the last one is the number of the execution.
        """
        statement = self._conditions(query)
        numbers = self._few_numbers(tx, query, indexed)
        if numbers is not None:
            statement.conditions.append(self._parts["among_numbers"])
            statement.parameters["numbers"] = self._array(numbers)
        elif (node := _driving_node(query, indexed)) is not None:
            return statement, *self._by_index(statement, query, node)
        return statement, "longwatch_executions AS e", self._sort_keys(statement, query.sort)

    def _by_index(self, statement: _Statement, query: Query, node: str) -> tuple[str, list[str]]:
        """Read the executions from the index of a node, in its order."""
        statement.conditions[:0] = [
            f"d.node = {statement.parameter(node)}",
            "d.indexed_key IS NOT NULL",
            "e.execution = d.execution",
        ]
        for each in query.filters:
            if isinstance(each, ValueFilter) and each.node == node and each.has_index:
                statement.compare("d.indexed_key", each.comparisons)
        if query.before is not None:
            statement.conditions.append(f"d.execution < {statement.parameter(query.before)}")
        keys = ["d.indexed_key"] if query.sort.node == node else []
        return "longwatch_values AS d CROSS JOIN longwatch_executions AS e", [*keys, "d.execution"]

    def _sort_keys(self, statement: _Statement, sort: Sort) -> list[str]:
        if sort.node is not None:
            key = statement.part("key_of_node", node=sort.node)
            statement.conditions.append(f"{key} <> ''")
            return [key, "e.execution"]
        return ["e.updated_at", "e.execution"] if sort.by == _UPDATED else ["e.execution"]

    def _conditions(self, query: Query) -> _Statement:
        statement = _Statement(self._parts)
        add = statement.conditions.append
        if query.graph is not None:
            add("e.graph = :graph")
            statement.parameters["graph"] = query.graph
        if query.version is not None:
            add(f"e.version = {statement.parameter(query.version)}")
        if query.before is not None:
            add(f"e.execution < {statement.parameter(query.before)}")
        for column, operator, time in query.times:
            add(f"e.{column} {operator} {statement.parameter(time)}")
        self._add_states(statement, query)
        for each in query.filters:
            if isinstance(each, MetadataFilter):
                add(self._metadata_part(statement, each))
            else:
                self._add_value(statement, each)
        return statement

    def _add_states(self, statement: _Statement, query: Query) -> None:
        if not query.states:
            if not query.include_archived:
                statement.conditions.append(f"e.state <> {int(ExecutionStatus.ARCHIVED)}")
            return
        statement.conditions.append(_states_condition(query.statuses))
        if ACTIVE in query.states or {RUNNING, WAITING} <= query.states:
            return
        running = self._parts["is_running"]
        if RUNNING in query.states:
            statement.conditions.append(f"(e.state > 0 OR {running})")
        elif WAITING in query.states:
            statement.conditions.append(f"(e.state > 0 OR NOT {running})")

    def _add_value(self, statement: _Statement, each: ValueFilter) -> None:
        if not each.comparisons:
            key = statement.part("key_of_node", node=each.node)
            statement.conditions.append(f"{key} IS {'NOT ' if each.wants_set else ''}NULL")
        elif each.json is not None:
            [(operator, _)] = each.comparisons
            json = statement.part("json_of_node", node=each.node)
            statement.conditions.append(f"{json} {operator} {statement.parameter(each.json)}")
        else:
            statement.compare(statement.part("key_of_node", node=each.node), each.comparisons)

    def _metadata_part(self, statement: _Statement, each: MetadataFilter) -> str:
        given = each.operand
        is_number = isinstance(given, int | float) and not isinstance(given, bool)
        if self._takes_arrays:
            json = msgspec.json.encode(given).decode()
            number = str(Decimal(repr(given))) if is_number else None
            return statement.part("has_metadata", key=each.key, json=json, number=number)
        scalar = given if is_number or isinstance(given, str) else None
        types = "integer real" if is_number else "text"
        if scalar is None:  # null, true or false are types of JSON
            types = msgspec.json.encode(given).decode()
        return statement.part("has_metadata", key=each.key, types=types, scalar=scalar)

    # --- few executions ---

    def _few_numbers(
        self, tx: Transaction, query: Query, indexed: frozenset[str]
    ) -> list[int] | None:
        """The executions that an index names for the most selective condition; None if they are
        many, or if no condition has an index.
        """
        found: list[int] | None = None
        for probe in self._probes(query, indexed):
            limit = PROBE_SIZE + 1 if found is None else len(found)
            text = f"{probe.text} LIMIT {probe.statement.parameter(limit)}"
            rows = tx.rows(text, probe.statement.parameters)
            if len(rows) < limit:
                found = [number for (number,) in rows]
        return found

    def _probes(self, query: Query, indexed: frozenset[str]) -> Iterable[_Probe]:
        for each in query.filters:
            if isinstance(each, ValueFilter) and each.has_index and each.node in indexed:
                statement = _Statement(self._parts)
                start = statement.part("indexed_executions", node=each.node)
                statement.compare("d.indexed_key", each.comparisons)
                yield _Probe(statement, " AND ".join((start, *statement.conditions)))
        if query.graph is not None and query.states:
            statement = _Statement(self._parts, parameters={"graph": query.graph})
            if query.statuses == [ExecutionStatus.ACTIVE]:
                yield _Probe(statement, self._parts["active_executions"])
            elif ExecutionStatus.ACTIVE not in query.statuses:
                start = self._parts["executions_of_state"]
                yield _Probe(statement, f"{start} AND {_states_condition(query.statuses)}")

    def _array(self, numbers: list[int]) -> Any:
        return numbers if self._takes_arrays else str(numbers)


class _Probe(NamedTuple):
    """A statement that names the executions of one condition."""

    statement: _Statement
    text: str


def _states_condition(statuses: Iterable[ExecutionStatus]) -> str:
    numbers = [str(int(status)) for status in statuses]
    return f"e.state = {numbers[0]}" if len(numbers) == 1 else f"e.state IN ({', '.join(numbers)})"


def _driving_node(query: Query, indexed: frozenset[str]) -> str | None:
    """The indexed node whose index has the executions in the order of the search."""
    if query.sort.node is not None:
        return query.sort.node if query.sort.node in indexed else None
    if query.sort.by != _CREATED:
        return None
    return next(
        (
            each.node
            for each in query.filters
            if isinstance(each, ValueFilter) and each.is_equality and each.node in indexed
        ),
        None,
    )


def _match(row: Row) -> Match:
    number, key = row
    return Match(number, msgspec.json.encode([key, number]).decode())


# --- validation ---


def validate_sort(sort: Any) -> Sort:
    """The order that a text names: `created`, `-updated`, `-age`, `value.created`."""
    text = str(sort).removeprefix("-")
    descending = str(sort).startswith("-")
    if isinstance(sort, str) and text in {_CREATED, _UPDATED}:
        return Sort(text, descending=descending)
    node = text.removeprefix(_NODE_PREFIX)
    if not isinstance(sort, str) or not node.isidentifier():
        raise UsageError(
            f"sort must be 'created', 'updated' or the name of a node, with '-' in front for the "
            f"largest first, not {sort!r}"
        )
    return Sort("value", value(node).node, descending=descending)


def validate_states(state: str | Iterable[str] | None) -> frozenset[str]:
    """The states of a search: one word or several. Raises UsageError, which suggests a word."""
    words = [] if state is None else [state] if isinstance(state, str) else _listed("state", state)
    for word in words:
        if word not in STATES:
            hint = did_you_mean(str(word), STATES, default=f"states are {', '.join(STATES)}")
            raise UsageError(f"executions have no state {word!r}; {hint}")
    return frozenset(words)


def validate_filters(where: Any, graphs: Sequence[Graph]) -> tuple[Filter, ...]:
    """The filters of a search. Raises UsageError for anything else, and for a node that none of
    these graphs has; without graphs, every name is accepted.
    """
    is_one = isinstance(where, ValueFilter | MetadataFilter)
    filters = (where,) if is_one else tuple(_listed("where", where))
    for each in filters:
        if not isinstance(each, ValueFilter | MetadataFilter):
            raise UsageError(f"where= takes filters such as value('country') == 'CH', not {each!r}")
        if isinstance(each, ValueFilter):
            validate_node(each.node, graphs)
    return filters


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable):
        raise UsageError(f"{name}= takes one condition or a list of them, not {given!r}")
    return list(given)


def validate_node(node: str, graphs: Sequence[Graph]) -> None:
    """Raise UsageError if these graphs are known and none of them has the node."""
    if graphs and not any(node in graph.nodes for graph in graphs):
        graphs[-1].node(node)


def validate_time(name: str, moment: Any) -> float:
    """Seconds since the epoch, from such a number or an aware datetime. Raises UsageError."""
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return moment.timestamp()
    if not is_finite_number(moment):
        raise UsageError(
            f"{name} must be a datetime with a time zone or seconds since 1970, not {moment!r}"
        )
    return float(moment)


def validate_limit(limit: Any) -> int:
    if not is_positive_int(limit, maximum=MAX_LIMIT):
        raise UsageError(f"limit must be a whole number from 1 to {MAX_LIMIT}, not {limit!r}")
    return int(limit)


def validate_before(before: Any) -> int | None:
    if before is not None and not is_positive_int(before, maximum=_MAX_NUMBER):
        raise UsageError(f"before= takes the number of an execution, not {before!r}")
    return None if before is None else int(before)


def validate_text(name: str, given: Any) -> str | None:
    """The name or the version of a graph, which is printable text. Raises UsageError."""
    if given is not None and not (isinstance(given, str) and given.isprintable()):
        raise UsageError(f"{name} must be printable text, not {given!r}")
    return given


def validate_cursor(after: Any, sort: Sort) -> tuple[Any, int] | None:
    """The sort key and the number in a cursor. Raises UsageError for a text that is no cursor of a
    search with this order.
    """
    if after is None:
        return None
    kind: Any = str if sort.node is not None else float if sort.by == _UPDATED else int
    try:
        key, number = msgspec.json.decode(after, type=tuple[kind, int])
    except (msgspec.DecodeError, TypeError):
        raise UsageError(
            f"after= takes the cursor of an execution from a search with the same sort=, not "
            f"{after!r}"
        ) from None
    if "\0" in str(key) or not 0 <= number <= _MAX_NUMBER:
        raise UsageError(f"{after!r} is no cursor")
    return key, number
