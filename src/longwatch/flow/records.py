"""Loads and saves executions in a SQL store.

A transaction loads an execution whole, changes it (`execution_state`, `propagation`) and saves it.
The execution is locked from the load to the commit: SQLite has one writer, PostgreSQL locks the
row. Several executions are loaded and saved together, with as many statements as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from longwatch.flow.attempt import (
    Attempt,
    AttemptEnd,
    AttemptEndCause,
    AttemptSpec,
    AttemptState,
    NewAttempt,
)
from longwatch.flow.execution_state import ExecutionState, ExecutionStatus, GraphId, Progress
from longwatch.flow.map_records import MapRecords
from longwatch.flow.node_record import NodeRecord
from longwatch.flow.search_key import search_key
from longwatch.store.blame import IS_SUSPECT_SQL
from longwatch.store.claims import Claim, LeaseSql, claim_parameters
from longwatch.store.database import Parameters, Row, Transaction
from longwatch.store.named_sql import load_queries

TABLE = "longwatch_computations"
_MAX_SINGLE_STATEMENTS = 3

_RELEASED_SQL = (
    "heartbeat_deadline = NULL, deadline = NULL, last_heartbeat_at = NULL, started_at = NULL, "
    "state = 'not_set'"
)
_LAPSED_SQL = "(heartbeat_deadline < :lease_now OR deadline < :lease_now)"
LEASE_SQL = {
    dialect: LeaseSql(
        on_claim={
            "heartbeat_deadline": ":lease_now + heartbeat_timeout",
            "deadline": ":lease_now + abandon_after",
            "last_heartbeat_at": ":wall_now",
            "started_at": ":wall_now",
            "state": "'computing'",
        },
        on_renew=(
            f"heartbeat_deadline = CASE WHEN heartbeat_deadline IS NOT NULL THEN"
            f" {greatest}(heartbeat_deadline, :lease_now + heartbeat_timeout) END, "
            f"last_heartbeat_at = :wall_now"
        ),
        on_release=_RELEASED_SQL,
        lapsed=_LAPSED_SQL,
    )
    for dialect, greatest in (("sqlite", "max"), ("postgresql", "greatest"))
}
"""An attempt's lease is its heartbeat: it ends at `heartbeat_deadline`, by its own timeout, and at
its hard deadline. A row without a heartbeat timeout has only the hard deadline.
"""


_PLACEHOLDERS = {
    "sqlite": {"for_update": "", "execution": ":execution"},
    "postgresql": {
        "for_update": "FOR UPDATE",
        "execution": "coalesce(:execution, currval('longwatch_executions_execution_seq'))",
    },
}


class ValidClaim(NamedTuple):
    """A claim that still holds."""

    claim: Claim
    execution: int
    node: str
    is_past_deadline: bool
    is_heartbeat_missed: bool
    element: int | None = None
    """The element of a map that it computes; None: a node."""

    @property
    def has_lapsed(self) -> bool:
        return self.is_past_deadline or self.is_heartbeat_missed


class AttemptPlace(NamedTuple):
    """What an attempt computes: a node of an execution, or an element of one of its maps."""

    execution: int
    element: int | None = None


OpenedAttempt = tuple[ExecutionState, NewAttempt]
"""An attempt to insert, with its execution."""


class AttemptTaker(Protocol):
    """Inserts new attempts as leased instead of queued (`flow/eager_lease`)."""

    def insert(self, tx: Transaction, opened: Sequence[OpenedAttempt]) -> list[OpenedAttempt]:
        """Insert some of these attempts and return the others, which are then queued."""


LoadedExecutions = dict[int, ExecutionState]
"""Executions by their numbers."""
LoadedClaims = tuple[LoadedExecutions, dict[Claim, ValidClaim]]
"""Executions, and the claims that still hold."""


class Records:
    """Runs the statements, each in a transaction of the caller."""

    def __init__(self, dialect: str) -> None:
        self.sql = load_queries(
            "longwatch.flow",
            "queries",
            dialect,
            is_suspect=IS_SUSPECT_SQL,
            **_PLACEHOLDERS[dialect],
            **LEASE_SQL[dialect].placeholders(dialect),
        )
        self.maps = MapRecords(dialect)
        self._takes_arrays = dialect == "postgresql"

    # --- whole executions ---

    def load(
        self, tx: Transaction, executions: Iterable[int], *, for_update: bool = True
    ) -> LoadedExecutions:
        """Load the executions that exist; `for_update` locks them until the end of the
        transaction.
        """
        return self.load_with_claims(tx, executions, (), for_update=for_update)[0]

    def load_with_claims(
        self,
        tx: Transaction,
        executions: Iterable[int],
        claims: Sequence[Claim],
        *,
        for_update: bool = True,
    ) -> LoadedClaims:
        """Load executions, and lock and return those of these claims that still hold."""
        parameters = {"executions": self.array_parameter(sorted(set(executions)))}
        statements = self._statements(
            self.sql["executions"] if for_update else self.without_lock, parameters
        )
        if claims:
            statements.append(
                (self.sql["valid_claims"], claim_parameters(claims, arrays=self._takes_arrays))
            )
        found, values, attempts, *valid = tx.rows_many(statements)
        return build_executions(found, values, attempts), _valid_claims(valid[0] if valid else [])

    def load_unlocked(
        self, tx: Transaction, executions: Iterable[int]
    ) -> tuple[LoadedExecutions, set[int]]:
        """Lock and load the executions that no other transaction has locked; also return the
        numbers of those that do not exist.
        """
        numbers = set(executions)
        parameters = {"executions": self.array_parameter(sorted(numbers))}
        statements = [
            *self._statements(self._skip_locked(self.sql["executions"]), parameters),
            (self.without_lock, parameters),
        ]
        *unlocked, existing = tx.rows_many(statements)
        return build_executions(*unlocked), numbers - {row[0] for row in existing}

    def unlocked_claims(self, tx: Transaction, claims: Sequence[Claim]) -> dict[Claim, ValidClaim]:
        """Lock and return those of these claims that hold and that no other transaction has locked.

        The caller has locked their executions before. Another order would deadlock.
        """
        return (
            _valid_claims(
                tx.rows(
                    self._skip_locked(self.sql["valid_claims"]),
                    claim_parameters(claims, arrays=self._takes_arrays),
                )
            )
            if claims
            else {}
        )

    def _statements(self, executions: str, parameters: Parameters) -> list[tuple[str, Parameters]]:
        return [
            (executions, parameters),
            (self.sql["values"], parameters),
            (self.sql["open_attempts"], parameters),
        ]

    @property
    def without_lock(self) -> str:
        """The query for executions that locks nothing."""
        return self.sql.get("executions_without_lock", self.sql["executions"])

    def _skip_locked(self, query: str) -> str:
        return f"{query} SKIP LOCKED" if self._takes_arrays else query

    def require_unchanged(
        self, tx: Transaction, loaded: LoadedExecutions, valid: Iterable[ValidClaim]
    ) -> None:
        """Lock these executions and require that they are unchanged and that these claims hold.
        Otherwise the transaction ends with PreconditionFailedError.
        """
        for each in sorted(valid, key=lambda each: each.execution):
            parameters = {
                "execution": each.execution,
                "changes": loaded[each.execution].changes,
                **each.claim._asdict(),
            }
            tx.require(self.sql["unchanged"], parameters)

    def insert(self, tx: Transaction, state: ExecutionState, key: str | None) -> bool:
        """Insert a new execution, to be saved next; False if its key exists.

        It has its number after the commit at the latest. A server numbers it without a round trip
        of its own: the statements of a small `save` refer to the last execution inserted.
        """
        row = {
            **state.graph_id._asdict(),
            "id": state.id,
            "key": key,
            "revision": state.revision,
            "metadata": state.metadata,
            "trace_context": state.trace_context,
            **_progress_row(state),
        }
        if (
            key is None
            and self._takes_arrays
            and not state.map_plans
            and max(len(state.changed_nodes), len(state.new_attempts)) <= _MAX_SINGLE_STATEMENTS
        ):
            tx.defer_rows(self.sql["insert_execution"], row, partial(_set_number, state))
            return True
        inserted = tx.rows(self.sql["insert_execution"], row)
        if inserted:
            _set_number(state, inserted)
        return bool(inserted)

    def save(
        self,
        tx: Transaction,
        states: Iterable[ExecutionState],
        taker: AttemptTaker | None = None,
    ) -> set[GraphId]:
        """Write the changes of these executions and notify their waiters.

        Returns the graphs that have new attempts in their queues. The caller claims those or
        notifies the workers (`notify_workers`).
        """
        changed = [state for state in states if state.needs_write]
        if not changed:
            return set()
        opened = [(state, new) for state in changed for new in state.new_attempts.values()]
        ends = [end_row(attempt_end) for state in changed for attempt_end in state.attempt_ends]
        values = [
            _value_row(state, node) for state in changed for node in sorted(state.changed_nodes)
        ]
        self.write_rows(tx, "end_attempt", ends)
        self.write_rows(tx, "upsert_value", values)
        for state in changed:
            self._write_map_plans(tx, state)
        maps = [each for each in opened if each[1].pending is not None]
        opened = [each for each in opened if each[1].pending is None]
        queued = opened if taker is None else taker.insert(tx, opened)
        self.write_rows(tx, "insert_attempt", [attempt_row(*each) for each in queued])
        existing = [state for state in changed if state.changes is not None]
        self.write_rows(
            tx,
            "touch_execution",
            [_execution_row(state) for state in existing if state.has_changes],
        )
        self.write_rows(
            tx,
            "update_progress",
            [_execution_row(state) for state in existing if not state.has_changes],
        )
        for state in changed:
            _notify_changed(tx, state)
        return {state.graph_id for state, _ in [*queued, *maps]}

    def _write_map_plans(self, tx: Transaction, state: ExecutionState) -> None:
        for node, plan in state.map_plans.items():
            self.maps.write_plan(tx, state.number, node, plan)
            if plan.may_cancel_running:
                tx.notify(cancel_channel(state.graph_id))
            if plan.pending:
                self.maps.open_map(tx, attempt_row(state, state.new_attempts[node]), plan)

    def cancel_orphans(self, tx: Transaction, orphans: Sequence[ValidClaim]) -> None:
        """Cancel these attempts, whose execution does not exist any more."""
        self.write_rows(
            tx,
            "end_attempt",
            [
                end_row(
                    AttemptEnd(each.claim.seq, AttemptState.CANCELLED, AttemptEndCause.EXECUTION)
                )
                for each in orphans
            ],
        )

    # --- claims ---

    def places_of(self, tx: Transaction, claims: Iterable[Claim]) -> dict[int, AttemptPlace]:
        """The place of each of these claims, by the number of the attempt."""
        seqs = self.array_parameter([claim.seq for claim in claims])
        rows = tx.rows(self.sql["places_of_attempts"], {"seqs": seqs})
        return {seq: AttemptPlace(execution, element) for seq, execution, element in rows}

    def array_parameter(self, numbers: list[int]) -> Any:
        """Numbers as a parameter of a statement: an array, or JSON for SQLite."""
        return (
            numbers if self._takes_arrays else str(numbers)
        )  # str() of a list of numbers is JSON, and takes a tenth of the time

    def lock_queues(self, tx: Transaction, numbers: Sequence[int]) -> None:
        """Wait until no other transaction counts the leased attempts of these queues; part of
        `fair_claims.QueueCounts`.
        """
        if (lock := self.sql.get("lock_queue")) is not None:
            for number in numbers:
                tx.rows(lock, {"queue": number})

    def count_leased(self, tx: Transaction, number: int) -> int:
        [(leased,)] = tx.rows(self.sql["count_running"], {"queue": number})
        return int(leased)

    def write_rows(self, tx: Transaction, query: str, rows: list[dict[str, object]]) -> None:
        """Write a few rows one by one, which a server does faster than unpacking arrays."""
        if not rows:
            return
        if len(rows) > _MAX_SINGLE_STATEMENTS or not self._takes_arrays:
            tx.defer_many(self.sql.get(f"{query}_many", self.sql[query]), rows)
        else:
            for row in rows:
                tx.defer(self.sql[query], row)


def notify_workers(tx: Transaction, graph_ids: Iterable[GraphId]) -> None:
    """Notify the workers of these graphs of new attempts, at the commit."""
    for graph_id in graph_ids:
        tx.notify(work_channel(graph_id))


def _notify_changed(tx: Transaction, state: ExecutionState) -> None:
    """Notify the callers that wait for these changes; none can wait for a new execution."""
    if state.changes is None:
        return
    for node in state.changed_nodes:
        tx.notify(change_channel(state.id, node))
    if state.affects_all_nodes:
        tx.notify(change_channel(state.id))
    if state.cancels_running:
        tx.notify(cancel_channel(state.graph_id))


def change_channel(execution: str, node: str = "") -> str:
    """The channel for changes of a node; without a node, for changes that concern all nodes."""
    return f"execution/{execution}/{node}"


def work_channel(graph_id: GraphId) -> str:
    """The channel for new attempts of a graph."""
    return f"flow/{graph_id.graph}/{graph_id.version}"


def cancel_channel(graph_id: GraphId) -> str:
    """The channel for running attempts of a graph that were cancelled."""
    return f"flow-cancel/{graph_id.graph}/{graph_id.version}"


def build_executions(
    found: Iterable[Row], values: Iterable[Row], attempts: Iterable[Row]
) -> LoadedExecutions:
    """Executions from the rows of the queries `executions`, `values` and `open_attempts`."""
    loaded = {
        number: ExecutionState(
            number,
            execution_id,
            GraphId(graph, version),
            revision=revision,
            cancelled=bool(cancelled),
            changes=changes,
            progress=Progress(known_nodes, settled_nodes, ExecutionStatus(status)),
        )
        for (
            number,
            execution_id,
            revision,
            changes,
            cancelled,
            graph,
            version,
            known_nodes,
            settled_nodes,
            status,
        ) in found
    }
    for number, node, *record in values:
        if number in loaded:
            loaded[number].nodes[node] = _node_record(record)
    for number, *attempt in attempts:
        if number in loaded:
            read = _attempt(attempt)
            loaded[number].open_attempts[read.node] = read
    return loaded


def _valid_claims(rows: Iterable[Row]) -> dict[Claim, ValidClaim]:
    read = [
        ValidClaim(Claim(*row[:3]), row[3], row[4], bool(row[5]), bool(row[6]), row[7])
        for row in rows
    ]
    return {each.claim: each for each in read}


def _node_record(row: Sequence[Any]) -> NodeRecord:
    record = NodeRecord(*row)
    record.is_set, record.failed = bool(record.is_set), bool(record.failed)
    record.paused = bool(record.paused)
    return record


def _attempt(row: Sequence[Any]) -> Attempt:
    seq, node, lease_state, computed_with, number, term, *spec, owner, due_at = row
    return Attempt(
        seq, node, lease_state, computed_with, number, AttemptSpec(*spec), term, owner, due_at
    )


def _value_row(state: ExecutionState, node: str) -> dict[str, object]:
    record = state.nodes[node]
    key = search_key(record.value) if record.is_set else None
    return {
        "search_key": key,
        "indexed_key": key if node in state.indexed_nodes else None,
        "execution": state.number or None,
        "node": node,
        "is_set": int(record.is_set),
        "value": record.value,
        "revision": record.revision,
        "computed_with": record.computed_with,
        "attempted_with": record.attempted_with,
        "failed_attempts": record.failed_attempts,
        "crashes": record.crashes,
        "failed": int(record.failed),
        "error": record.error,
        "term": record.term,
        "lost": record.lost,
        "traceback": record.traceback,
        "paused": int(record.paused),
    }


def attempt_row(state: ExecutionState, new_attempt: NewAttempt) -> dict[str, object]:
    """The parameters of `insert_attempt`."""
    record = state.nodes.get(new_attempt.node)
    return {
        **new_attempt.columns(),
        "term": 0 if record is None else record.term,
        "execution": state.number or None,
    }


def _set_number(state: ExecutionState, rows: Sequence[Row]) -> None:
    [(state.number,)] = rows


def _execution_row(state: ExecutionState) -> dict[str, object]:
    return {"execution": state.number, "revision": state.revision, **_progress_row(state)}


def _progress_row(state: ExecutionState) -> dict[str, object]:
    return {
        "known_nodes": state.progress.known_nodes,
        "settled_nodes": state.progress.settled_nodes,
        "state": int(state.progress.status),
    }


def end_row(attempt_end: AttemptEnd) -> dict[str, object]:
    """The parameters of `end_attempt`."""
    return {
        "seq": attempt_end.seq,
        "state": str(attempt_end.state),
        "cause": str(attempt_end.cause),
        "error": attempt_end.error,
        "traceback": attempt_end.traceback,
    }
