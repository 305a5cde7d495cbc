"""Completes the index of nodes that were defined as `indexed` after executions had started.

Writers add the keys of new values themselves. For the values that are there already, a sweep walks
over the executions of the graph by number. Its position is kept in the row of the sweep; COMPLETE
means that all values have their keys, and searches may use the index. A node whose index was begun
stays indexed for every process that registers the graph later, also if its own definition does not
ask for that. So an index that is complete stays complete.

A process that registered the graph before the index was begun does not add keys to the executions
that it starts. Restart such processes when you deploy `indexed=True`.
"""

from __future__ import annotations

from longwatch.flow.search_key import search_key
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries

COMPLETE = 2**62
PAGE_SIZE = 200
"""Executions in one transaction."""
_CONSTANTS = {
    "sqlite": {"of_numbers": "IN (SELECT value FROM json_each(:numbers))", "for_update": ""},
    "postgresql": {"of_numbers": "= ANY (:numbers::int8[])", "for_update": "FOR UPDATE"},
}


def sweep_name(graph: str, node: str = "") -> str:
    """The name of the sweep that completes the index of a node."""
    return f"index/{graph}/{node}"


class NodeIndexes:
    """The indexes of nodes in one store. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._takes_arrays = database.dialect == "postgresql"
        self._sql = load_queries(
            "longwatch.flow", "indexing", database.dialect, **_CONSTANTS[database.dialect]
        )

    def begun(self, tx: Transaction, graph: str) -> frozenset[str]:
        """The nodes of a graph whose index exists, complete or not."""
        return frozenset(self._positions(tx, graph))

    def complete(self, tx: Transaction, graph: str) -> frozenset[str]:
        """The nodes of a graph whose index has all values."""
        positions = self._positions(tx, graph)
        return frozenset(node for node, position in positions.items() if position >= COMPLETE)

    def _positions(self, tx: Transaction, graph: str) -> dict[str, int]:
        prefix = sweep_name(graph)
        rows = tx.rows(self._sql["indexed_nodes"], {"prefix": prefix})
        found = {sweep.removeprefix(prefix): position for sweep, position in rows}
        return {node: position for node, position in found.items() if "/" not in node}

    def add_page(self, graph: str, node: str, after: int) -> tuple[int, int]:
        """Add the values of the next executions to the index, in one transaction.

        Returns how many values, and the number of the last execution, or COMPLETE.
        """
        page = {"graph": graph, "after": after, "limit": PAGE_SIZE}
        rows = self._database.read(lambda tx: tx.rows(self._sql["executions_after"], page))
        if not rows:
            return 0, COMPLETE
        numbers = [number for (number,) in rows]
        added = self._database.write(lambda tx: self._add_values(tx, node, numbers))
        return added, numbers[-1] if len(numbers) == PAGE_SIZE else COMPLETE

    def _add_values(self, tx: Transaction, node: str, numbers: list[int]) -> int:
        listed = {"numbers": numbers if self._takes_arrays else str(numbers)}
        tx.rows(self._sql["lock_executions"], listed)
        values = tx.rows(self._sql["values_without_key"], {**listed, "node": node})
        keys = [(number, search_key(json)) for number, json in values]
        rows = [
            {"execution": number, "node": node, "key": key}
            for number, key in keys
            if key is not None
        ]
        return tx.execute_many(self._sql["index_value"], rows) if rows else 0
