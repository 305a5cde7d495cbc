"""A store with very many finished executions, and what it costs to search and to remove them."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from longwatch.flow import Flow, Graph, compute, input, value  # noqa: A004 - the contract's word
from longwatch.flow.indexing import COMPLETE, sweep_name
from longwatch.flow.search_key import full_key
from longwatch.store.database import Transaction

INDEXED = ("country", "age", "email", "batch")
_NUMBERS = {
    "sqlite": (
        (
            "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number "
            "WHERE n < :count)"
        ),
        "number",
    ),
    "postgresql": ("", "generate_series(1, :count::int8) AS number (n)"),
}
_LOOKUP = {
    "sqlite": "json_extract(:keys, '$[' || ({}) || ']')",
    "postgresql": "(:keys::text[])[1 + ({})]",
}
_VALUES = {
    "country": "CASE WHEN n % (:count / 10) = 0 THEN 'AQ' WHEN n % 10 = 0 THEN 'CH' ELSE 'DE' END",
    "email": "'user' || n || '@example.org'",
}
_NUMBERS_OF = {"age": "n % 100", "batch": "n * 100 / (:count + 1)", "other": "n % 1000"}


def people() -> Graph:
    nodes = [input(name, indexed=name in INDEXED) for name in (*_VALUES, *_NUMBERS_OF)]
    nodes.append(compute("greeting", ["email"], lambda email: f"hello {email}"))
    return Graph("people", version="1", nodes=nodes)


def filled(url: str, count: int) -> Flow:
    """A Flow whose store has many finished executions, each with five values and an attempt."""
    flow = Flow(url, [people()], auto_migrate=True)
    flow.start("people")  # registers the graph
    for statement, parameters in _statements(flow.database.dialect, count):
        flow.database.write(
            lambda tx, statement=statement, parameters=parameters: tx.execute(  # type: ignore[misc]
                statement, parameters
            ),
            timeout=3600.0,
        )
    flow.database.write(_mark_complete)
    if flow.database.dialect == "postgresql":
        for table in ("executions", "values", "computations"):
            vacuum = f"ANALYZE longwatch_{table}"
            flow.database.write(
                lambda tx, vacuum=vacuum: tx.execute(vacuum),  # type: ignore[misc]
                timeout=3600.0,
            )
    return flow


def _statements(dialect: str, count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    numbers, source = _NUMBERS[dialect]
    everything = {"count": count}
    executions = (
        f"{numbers} INSERT INTO longwatch_executions (id, graph, version, revision, known_nodes, "  # noqa: S608 - constants
        "settled_nodes, state, settled_at, created_at, updated_at) "
        "SELECT 'e' || n, 'people', '1', 1, 1, 1, CASE WHEN n % 1000 = 0 THEN 2 ELSE 3 END, n, n, "
        f"n FROM {source}"
    )
    yield executions, everything
    start = (
        f"{numbers} INSERT INTO longwatch_values (execution, node, is_set, value, revision, "
        "changed_at, search_key, indexed_key) SELECT n + 1, "
    )
    for node, text in _VALUES.items():
        columns = f"'{node}', 1, '\"' || {text} || '\"', 1, 0, '3' || {text}, '3' || {text}"
        yield f"{start} {columns} FROM {source}", everything
    keys = [full_key(number) for number in range(1000)]
    given = {**everything, "keys": keys if dialect == "postgresql" else json.dumps(keys)}
    for node, number in _NUMBERS_OF.items():
        key = _LOOKUP[dialect].format(number)
        indexed = key if node in INDEXED else "NULL"
        yield (
            f"{start} '{node}', 1, CAST({number} AS text), 1, 0, {key}, {indexed} FROM {source}",
            given,
        )
    attempts = (
        f"{numbers} INSERT INTO longwatch_computations (queue, lease_state, execution, node, "  # noqa: S608 - constants
        "state, attempt, computed_with, abandon_after, max_attempts, created_at, started_at, "
        "ended_at) SELECT 1, 3, n + 1, 'greeting', 'success', 1, '{}', 1, 3, 0, 0, 1 "
        f"FROM {source}"
    )
    yield attempts, everything


def _mark_complete(tx: Transaction) -> None:
    for node in INDEXED:
        tx.execute(
            "INSERT INTO longwatch_sweeps (sweep, started_at, position) VALUES (:name, 0, :end)",
            {"name": sweep_name("people", node), "end": COMPLETE},
        )


SEARCHES: dict[str, dict[str, Any]] = {
    "country is CH (one in 10)": {"where": value("country") == "CH"},
    "country is AQ (10 of all)": {"where": value("country") == "AQ"},
    "age >= 18 (82 %)": {"where": value("age") >= 18},
    "age >= 99 (1 %)": {"where": value("age") >= 99},
    "country is CH and age >= 18": {"where": [value("country") == "CH", value("age") >= 18]},
    "email begins with user7777": {"where": value("email").startswith("user7777")},
    "failed (one in 1,000)": {"state": "failed"},
    "sorted by age, descending": {"sort": "-age"},
    "age >= 18, sorted by age": {"sort": "age", "where": value("age") >= 18},
    "the oldest half, newest first": {"where": value("batch") < 50},
    "a value that is not indexed (one in 1,000)": {"where": value("other") == 7},
    "sorted by change, no index": {"sort": "-updated"},
}


def database_version(flow: Flow) -> str:
    """The name and the version of the database."""
    if flow.database.dialect == "sqlite":
        query, name = "SELECT sqlite_version()", "SQLite"
    else:
        query, name = "SHOW server_version", "PostgreSQL"
    [(version,)] = flow.database.read(lambda tx: tx.rows(query))
    return f"{name} {version.split()[0]}"


def search_times(flow: Flow) -> dict[str, float]:
    """Milliseconds for the first 50 of each search; the median of seven, after one that does not
    count.
    """
    times: dict[str, float] = {}
    for name, conditions in SEARCHES.items():
        listed = flow.executions("people", limit=50, **conditions)
        assert 1 <= len(listed) <= 50, (name, len(listed))
        times[name] = 1e3 * statistics.median(
            _seconds(lambda: flow.executions("people", limit=50, **conditions))  # noqa: B023 - called at once
            for _ in range(7)
        )
    for country in ("AQ", "CH"):
        chosen = value("country") == country
        times[f"count, country is {country}"] = 1e3 * statistics.median(
            _seconds(lambda: flow.count("people", where=chosen))  # noqa: B023 - called at once
            for _ in range(3)
        )
    return times


class WriteTimer:
    """Writes to the same store meanwhile, and keeps the longest time that a write took."""

    def __init__(self, flow: Flow) -> None:
        self.longest, self.count = 0.0, 0
        self._flow = flow
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._stop.wait(0.005):
            taken = _seconds(lambda: self._flow.start("people", age=1))
            self.longest, self.count = max(self.longest, taken), self.count + 1


def retention(flow: Flow, url: str) -> tuple[float, int, float, float]:
    """Seconds to remove all executions, how many, the longest transaction in milliseconds, and the
    longest write of another process's connection meanwhile.
    """
    batches = BatchTimer(flow)
    with Flow(url, [people()]) as other:
        other.start("people")
        with WriteTimer(other) as writes:
            began = time.perf_counter()
            removed = batches.run()
            seconds = time.perf_counter() - began
    return seconds, removed, 1e3 * batches.longest, 1e3 * writes.longest


class BatchTimer:
    """Removes executions, and keeps the longest time of a transaction with its commit."""

    def __init__(self, flow: Flow) -> None:
        self.longest = 0.0
        self._flow = flow
        self._last = 0.0

    def run(self) -> int:
        self._last = time.perf_counter()
        return self._flow.prune(older_than=3600.0, graph="people", on_progress=self._ended)

    def _ended(self, _: int) -> None:
        now = time.perf_counter()
        self.longest, self._last = max(self.longest, now - self._last), now


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
