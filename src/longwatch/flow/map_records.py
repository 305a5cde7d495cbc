"""Reads and writes the elements of maps in a SQL store, in transactions that have locked their
executions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from longwatch.flow.attempt import AttemptSpec, NewAttempt
from longwatch.flow.map_plan import MapPlan, StoredElement
from longwatch.flow.node_record import NodeRecord
from longwatch.store.claims import Claim, claim_parameters
from longwatch.store.database import Parameters, Row, Transaction
from longwatch.store.named_sql import load_queries

_MEMBERSHIP_SQL = {
    "sqlite": "IN (SELECT value FROM json_each(:{0}))",
    "postgresql": "= ANY (:{0}::int8[])",
}

WriteRows = Callable[[Transaction, str, list[dict[str, object]]], None]
"""Writes rows with a named query, many at once."""


class ElementResult(NamedTuple):
    """How an element ended: with a value as JSON, or with an error."""

    element: int
    position: int
    is_set: bool
    value: str | None
    error: str | None


class ClaimedElement(NamedTuple):
    """An element whose claim holds. `record` has its budgets."""

    claim: Claim
    execution: int
    node: str
    number: int
    spec: AttemptSpec
    computed_with: str
    element: int
    record: NodeRecord


class OpenMap(NamedTuple):
    """The open attempt of a map. `opened` is the place up to which its elements were opened; None:
    all of them.
    """

    execution: int
    node: str
    seq: int
    pending: int
    opened: int | None


class MapProgress(NamedTuple):
    """How far a map is. `failed_indices` are the first failed elements."""

    elements: int
    open: int
    failed: int
    failed_indices: tuple[int, ...] = ()

    @property
    def done(self) -> int:
        return self.elements - self.open - self.failed

    def __str__(self) -> str:
        """`12 of 1,000 elements done, 2 failed (indices 3, 17)`."""
        text = f"{self.done:,} of {self.elements:,} elements done"
        if not self.failed:
            return text
        noun = "index" if self.failed == 1 else "indices"
        more = ", …" if self.failed > len(self.failed_indices) else ""
        indices = ", ".join(str(each) for each in self.failed_indices)
        return f"{text}, {self.failed:,} failed ({noun} {indices}{more})"


class MapSize(NamedTuple):
    """How many elements of a map have no result, and how many characters all results have."""

    missing: int
    characters: int


class FailedElement(NamedTuple):
    """A failed element of a map."""

    position: int
    error: str
    traceback: str | None


class MapRecords:
    """Runs the statements, each in a transaction of the caller."""

    def __init__(self, dialect: str) -> None:
        membership = _MEMBERSHIP_SQL[dialect]
        self.sql = load_queries(
            "longwatch.flow",
            "map_queries",
            dialect,
            in_elements=membership.format("elements"),
            in_executions=membership.format("executions"),
        )
        self._takes_arrays = dialect == "postgresql"

    # --- reading ---

    def stored(self, tx: Transaction, execution: int, node: str) -> list[StoredElement]:
        """Read the elements of a map, without their values."""
        rows = tx.rows(self.sql["elements_of_map"], {"execution": execution, "node": node})
        return [StoredElement(*row[:4], *map(bool, row[4:])) for row in rows]

    def results(self, tx: Transaction, execution: int, node: str) -> list[ElementResult]:
        """Read how the elements of a map ended, in the order of the list."""
        rows = tx.rows(self.sql["results_of_map"], {"execution": execution, "node": node})
        return [
            ElementResult(element, position, bool(is_set), value, error)
            for element, position, is_set, value, error in rows
        ]

    def size(self, tx: Transaction, execution: int, node: str) -> MapSize:
        """Read how large the results of a map are, without loading them."""
        [row] = tx.rows(self.sql["size_of_map"], {"execution": execution, "node": node})
        return MapSize(*map(int, row))

    def claimed_query(self, claims: Sequence[Claim]) -> tuple[str, Parameters]:
        """The statement that locks these claims and returns the rows of `claimed_element`."""
        return self.sql["valid_elements"], claim_parameters(claims, arrays=self._takes_arrays)

    def open_maps_query(self, executions: Any) -> tuple[str, Parameters]:
        """The statement that returns the rows of `OpenMap`."""
        return self.sql["open_maps"], {"executions": executions}

    def leased(self, tx: Transaction, execution: int, node: str) -> list[Claim]:
        """The claims of the running elements of a map."""
        rows = tx.rows(self.sql["leased_elements"], {"execution": execution, "node": node})
        return [Claim(*row) for row in rows]

    def progress(
        self, tx: Transaction, execution: int, *, indices: int = 10
    ) -> dict[str, MapProgress]:
        """Read how far each map of an execution is, with the first failed indices."""
        rows = tx.rows(self.sql["progress_of_maps"], {"execution": execution})
        return {
            node: MapProgress(
                int(elements),
                int(opened),
                int(failed),
                tuple(each.position for each in self.failed(tx, execution, node, limit=indices))
                if failed
                else (),
            )
            for node, elements, opened, failed in rows
        }

    def failed(
        self, tx: Transaction, execution: int, node: str, *, limit: int
    ) -> list[FailedElement]:
        """Read the first failed elements of a map."""
        parameters = {"execution": execution, "node": node, "limit": limit}
        rows = tx.rows(self.sql["failed_elements"], parameters)
        return [FailedElement(position, error or "", trace) for position, error, trace in rows]

    # --- writing ---

    def write_plan(self, tx: Transaction, execution: int, node: str, plan: MapPlan) -> None:
        """Write what a plan changes about existing elements, and insert the new ones."""
        place = {"execution": execution, "node": node}
        if plan.cancelled is None:
            tx.defer(self.sql["cancel_map"], {**place, "cause": str(plan.cause)})
        elif plan.cancelled:
            cancelled = self._array(plan.cancelled)
            tx.defer(
                self.sql["cancel_elements"],
                {"execution": execution, "elements": cancelled, "cause": str(plan.cause)},
            )
        if plan.is_cleared:
            tx.defer(self.sql["delete_map"], place)
        if plan.removed:
            tx.defer(self.sql["delete_elements"], {"elements": self._array(plan.removed)})
        if plan.in_flight:
            tx.defer(self.sql["hasten_elements"], place)
        self.write_rows(
            tx,
            "move_element",
            [{"element": each, "position": at} for each, at in plan.moved.items()],
        )
        with_inputs = {"computed_with": plan.computed_with}
        self.write_rows(
            tx,
            "reset_element",
            [{"element": each, "position": at, **with_inputs} for each, at in plan.reset.items()],
        )
        self.write_rows(
            tx,
            "insert_element",
            [
                {**place, **with_inputs, "position": at, "key": new.key, "input": new.input}
                for at, new in plan.inserted.items()
            ],
        )

    def open_map(self, tx: Transaction, row: dict[str, object], plan: MapPlan) -> None:
        """Insert the attempt of a map, and attempts for as many elements as it may have open. `row`
        has the columns of the attempt.
        """
        place = {"execution": row["execution"], "node": row["node"]}
        tx.defer(self.sql["insert_map"], {**_map_row(row), "pending": plan.pending})
        self.open_elements(tx, place, after=-1, room=plan.room)

    def open_elements(
        self, tx: Transaction, place: dict[str, object], *, after: int | None, room: int
    ) -> None:
        """Open the next elements of a map, behind the place up to which they were opened."""
        if room and after is not None:
            tx.defer(self.sql["advance_map"], {**place, "after": after, "room": room})
            tx.defer(self.sql["open_elements"], {**place, "after": after})

    def count_ended(self, tx: Transaction, open_map: OpenMap, ended: int) -> None:
        """Count ended elements of a map, and open as many others."""
        place: dict[str, object] = {"execution": open_map.execution, "node": open_map.node}
        tx.defer(self.sql["count_ended"], {**place, "ended": ended})
        self.open_elements(tx, place, after=open_map.opened, room=ended)

    def write_rows(self, tx: Transaction, query: str, rows: list[dict[str, object]]) -> None:
        if rows:
            many = self.sql.get(f"{query}_many", self.sql[query])
            tx.defer_many(many, rows)

    def _array(self, numbers: list[int]) -> Any:
        return numbers if self._takes_arrays else str(numbers)


_MAP_COLUMNS = (
    "queue",
    "execution",
    "node",
    "attempt",
    "term",
    "computed_with",
    "heartbeat_timeout",
    "abandon_after",
    "max_attempts",
)


def _map_row(row: dict[str, object]) -> dict[str, object]:
    return {column: row[column] for column in _MAP_COLUMNS}


def claimed_element(row: Row) -> ClaimedElement:
    """An element from a row of `MapRecords.claimed_query`."""
    failed_attempts, crashes, lost, error, traceback = row[12:]
    record = NodeRecord(
        failed_attempts=failed_attempts,
        crashes=crashes,
        lost=lost,
        error=error,
        traceback=traceback,
        attempted_with=row[10],
    )
    execution, node, number = row[3:6]
    return ClaimedElement(
        Claim(*row[:3]), execution, node, number, AttemptSpec(*row[6:10]), row[10], row[11], record
    )


def element_row(element: ClaimedElement, value: str | None) -> dict[str, object]:
    """The parameters of `end_element`; `value` is the result, None if it has none."""
    record = element.record
    return {
        "element": element.element,
        "is_open": int(value is None and not record.failed),
        "is_set": int(value is not None),
        "value": value,
        "failed_attempts": record.failed_attempts,
        "crashes": record.crashes,
        "lost": record.lost,
        "failed": int(record.failed),
        "error": record.error,
        "traceback": record.traceback,
        "term": element.claim.term,
    }


def next_attempt_row(element: ClaimedElement, new_attempt: NewAttempt) -> dict[str, object]:
    """The parameters of `insert_attempt` for the next attempt of an element."""
    return {
        **new_attempt.columns(),
        "term": element.claim.term,
        "execution": element.execution,
    }
