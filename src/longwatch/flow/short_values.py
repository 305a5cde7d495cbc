"""Reads an execution without its long values, for processes that only show it."""

from __future__ import annotations

from typing import NamedTuple

from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.records import Records, build_executions
from longwatch.store.database import Transaction


class ShortValue(NamedTuple):
    """The beginning of a value as JSON, with its length in full. None: the node is not set."""

    changed_at: float
    length: int | None
    start: str | None


def load_short(
    tx: Transaction, records: Records, execution: int, *, limit: int
) -> tuple[ExecutionState, dict[str, ShortValue]] | None:
    """Read an execution of which values, errors and tracebacks are cut to `limit` characters. A
    longer value is an empty list in the state. None if the execution does not exist. Locks nothing.
    """
    one = {"executions": records.array_parameter([execution])}
    found, values, attempts = tx.rows_many(
        [
            (records.without_lock, one),
            (records.sql["short_values"], {"execution": execution, "limit": limit}),
            (records.sql["open_attempts"], one),
        ]
    )
    loaded = build_executions(found, (row[:-3] for row in values), attempts)
    if execution not in loaded:
        return None
    return loaded[execution], {row[1]: ShortValue(*row[-3:]) for row in values}
