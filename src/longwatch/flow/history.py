"""The history of an execution: how its attempts ended, and the values that they left.

The store keeps every attempt, and the present value of each node. So an entry has a value only if
that is the present one. Attempts at elements of a map are left out: the map has its own entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from longwatch.errors import UsageError
from longwatch.flow.node_options import is_positive_int
from longwatch.flow.records import Records
from longwatch.store.database import Row, Transaction

MAX_ENTRIES = 10_000
_SET, _UNSET = "set", "unset"


class HistoryEntry(NamedTuple):
    """One change of a node, or one ended attempt. Times are wall time.

    `state` is `set` or `unset` for a value that no attempt computed. Otherwise it is that of the
    attempt: `success`, `failed`, `abandoned` or `cancelled`. `revision` and `value` belong to the
    present value of the node; `revision` is None if the entry did not leave it.
    """

    at: float
    node: str
    state: str
    revision: int | None = None
    value: Any = None
    attempt: int | None = None
    end_cause: str | None = None
    error: str | None = None
    started_at: float | None = None
    computed_with: dict[str, int] | None = None


class _Ended(NamedTuple):
    seq: int
    entry: HistoryEntry


def read_history(
    tx: Transaction, records: Records, number: int, *, node: str | None, limit: int
) -> list[HistoryEntry]:
    """Read the newest entries of an execution, the newest first, at most `limit` of them. Raises
    UsageError for a limit that is not a whole number from 1 to 10,000.
    """
    if not is_positive_int(limit, maximum=MAX_ENTRIES):
        raise UsageError(
            f"limit of a history must be a whole number from 1 to {MAX_ENTRIES}, not {limit!r}"
        )
    parameters = {"execution": number, "node": node or "", "limit": limit}
    values, attempts = tx.rows_many(
        [
            (records.sql["history_values"], parameters),
            (records.sql["history_attempts"], parameters),
        ]
    )
    computed = {seq: row for *row, seq in values if seq is not None}
    entries = [_ended(row, computed) for row in attempts]
    entries += [_Ended(0, _changed(row)) for *row, seq in values if seq is None]
    entries.sort(key=lambda each: (each.entry.at, each.seq), reverse=True)
    return [each.entry for each in entries[:limit]]


def _ended(row: Row, computed: dict[int, list[Any]]) -> _Ended:
    seq, node, state, attempt, cause, error, started_at, ended_at, computed_with = row
    entry = HistoryEntry(
        ended_at,
        node,
        state,
        attempt=attempt,
        end_cause=cause,
        error=error,
        started_at=started_at,
        computed_with=msgspec.json.decode(computed_with),
    )
    if seq in computed:
        _, _, value, revision, _ = computed[seq]
        entry = entry._replace(value=_decode(value), revision=revision)
    return _Ended(seq, entry)


def _changed(row: Sequence[Any]) -> HistoryEntry:
    node, is_set, value, revision, changed_at = row
    if not is_set:
        return HistoryEntry(changed_at, node, _UNSET, revision)
    return HistoryEntry(changed_at, node, _SET, revision, _decode(value))


def _decode(value: str | None) -> Any:
    return msgspec.json.decode(value or "null")
