"""Executions in a SQL store: read whole, changed by `execution_state` and
`propagation`, written back, in one transaction.

Whoever changes an execution has it to itself until the end of the transaction, so nothing is
decided on what was true a moment ago: the one writer of SQLite sees to that, a lock on the
execution's row on PostgreSQL. Several executions are loaded and saved together, with as many
statements as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from longwatch.flow.execution_state import (
    Attempt,
    AttemptEnd,
    AttemptEndCause,
    AttemptSpec,
    AttemptState,
    ExecutionState,
    NewAttempt,
    NodeRecord,
)
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
its hard deadline. A row without the former, from before there were heartbeats, has only the latter.
"""


_PLACEHOLDERS = {
    "sqlite": {"for_update": "", "execution": ":execution"},
    "postgresql": {
        "for_update": "FOR UPDATE",
        "execution": "coalesce(:execution, currval('longwatch_executions_execution_seq'))",
    },
}


class GraphId(NamedTuple):
    """What an execution is of."""

    graph: str
    version: str


class ValidClaim(NamedTuple):
    """A claim that still holds."""

    claim: Claim
    execution: int
    node: str
    is_past_deadline: bool
    has_lapsed: bool


class EagerLeaseTarget(Protocol):
    """A worker that takes attempts in the statement that makes them."""

    owner: int

    def reserve(self, new_attempt: NewAttempt) -> bool:
        """Whether it has room for this one; then that is taken."""

    def record_insert(
        self, state: ExecutionState, new_attempt: NewAttempt, rows: Sequence[Row]
    ) -> None:
        """One is made: seq, owner, term, execution, node, and whether the owner is entered."""


LoadedExecutions = dict[int, tuple[ExecutionState, GraphId]]
"""By their numbers, executions and what they are of."""


class Records:
    """The statements. Everything here runs inside a transaction that the caller opened."""

    def __init__(self, dialect: str) -> None:
        self.sql = load_queries(
            "longwatch.flow",
            "queries",
            dialect,
            **_PLACEHOLDERS[dialect],
            **LEASE_SQL[dialect].placeholders(dialect),
        )
        self._takes_arrays = dialect == "postgresql"

    # --- whole executions ---

    def load(
        self, tx: Transaction, executions: Iterable[int], *, for_update: bool = True
    ) -> LoadedExecutions:
        """Those that there are; `for_update`: and nobody else changes them until the end of the
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
    ) -> tuple[LoadedExecutions, dict[Claim, ValidClaim]]:
        """The same, and those of these claims that still hold, and hold until the end of the
        transaction.
        """
        parameters = {"executions": self.array_parameter(sorted(set(executions)))}
        statements = self._statements(
            self.sql["executions"] if for_update else self._without_lock, parameters
        )
        if claims:
            statements.append(
                (self.sql["valid_claims"], claim_parameters(claims, arrays=self._takes_arrays))
            )
        found, values, attempts, *valid = tx.rows_many(statements)
        return _build_executions(found, values, attempts), _valid_claims(valid[0] if valid else [])

    def load_unlocked(
        self, tx: Transaction, executions: Iterable[int]
    ) -> tuple[LoadedExecutions, set[int]]:
        """Those that nobody else has locked, and nobody changes until the end of the
        transaction; and which ones are gone.
        """
        numbers = set(executions)
        parameters = {"executions": self.array_parameter(sorted(numbers))}
        statements = [
            *self._statements(self._skip_locked(self.sql["executions"]), parameters),
            (self._without_lock, parameters),
        ]
        *unlocked, existing = tx.rows_many(statements)
        return _build_executions(*unlocked), numbers - {row[0] for row in existing}

    def unlocked_claims(self, tx: Transaction, claims: Sequence[Claim]) -> dict[Claim, ValidClaim]:
        """Those of these claims that still hold, and that nobody else has locked.

        Asked for only by whoever has their executions: of two that come at once, one locking the
        executions and the other the attempts, neither could do anything.
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
    def _without_lock(self) -> str:
        """Executions as they are seen; where nobody else writes, nothing needs locking."""
        return self.sql.get("executions_without_lock", self.sql["executions"])

    def _skip_locked(self, query: str) -> str:
        return f"{query} SKIP LOCKED" if self._takes_arrays else query

    def require_unchanged(
        self, tx: Transaction, loaded: LoadedExecutions, valid: Iterable[ValidClaim]
    ) -> None:
        """Go on only if these executions are as they were, and these claims still hold; nobody else
        changes that until the end of the transaction. ChangedError comes out of the whole if not.
        """
        for each in sorted(valid, key=lambda each: each.execution):
            parameters = {
                "execution": each.execution,
                "changes": loaded[each.execution][0].changes,
                **each.claim._asdict(),
            }
            tx.require(self.sql["unchanged"], parameters)

    def start(
        self,
        tx: Transaction,
        state: ExecutionState,
        graph_id: GraphId,
        key: str | None,
        eager_lease: EagerLeaseTarget | None,
    ) -> bool:
        """Write one that is new; False if there is one with its key. It has its number when that is
        committed.

        Where a server numbers it, what is written of it need not wait for the number: it is that of
        the last one made.
        """
        row = {**graph_id._asdict(), "id": state.id, "key": key, "revision": state.revision}
        if (
            key is None
            and self._takes_arrays
            and max(len(state.changed_nodes), len(state.new_attempts)) <= _MAX_SINGLE_STATEMENTS
        ):
            tx.defer_rows(self.sql["insert_execution"], row, partial(_set_number, state))
        else:
            inserted = tx.rows(self.sql["insert_execution"], row)
            if not inserted:
                return False
            _set_number(state, inserted)
        self.save(tx, [state], {state.number: graph_id}, eager_lease)
        return True

    def save(
        self,
        tx: Transaction,
        states: Iterable[ExecutionState],
        graph_ids: Mapping[int, GraphId],
        eager_lease: EagerLeaseTarget | None = None,
    ) -> set[GraphId]:
        """Write what has changed, and tell who waits for it; of which graphs there is something in
        line to be computed now.

        What the `eager_lease` takes is leased at once, and not queued. The caller claims the rest,
        or notifies the workers (`work_channel`).
        """
        changed = [state for state in states if state.needs_write]
        if not changed:
            return set()
        leased, queued = (
            list[tuple[ExecutionState, NewAttempt]](),
            list[tuple[ExecutionState, NewAttempt]](),
        )
        for state in changed:
            for new_attempt in state.new_attempts.values():
                (
                    leased
                    if eager_lease is not None and eager_lease.reserve(new_attempt)
                    else queued
                ).append((state, new_attempt))
        self._write_rows(
            tx,
            "end_attempt",
            [_end_row(attempt_end) for state in changed for attempt_end in state.attempt_ends],
        )
        self._write_rows(
            tx,
            "upsert_value",
            [_value_row(state, node) for state in changed for node in sorted(state.changed_nodes)],
        )
        self._write_rows(tx, "insert_attempt", [_attempt_row(*each) for each in queued])
        if eager_lease is not None:
            for state, new_attempt in leased:
                row = {**_attempt_row(state, new_attempt), "owner": eager_lease.owner}
                tx.defer_rows(
                    self.sql["insert_leased_attempt"],
                    row,
                    partial(eager_lease.record_insert, state, new_attempt),
                )
        self._write_rows(
            tx,
            "touch_execution",
            [_execution_row(state) for state in changed if state.changes is not None],
        )
        for state in changed:
            for node in state.changed_nodes:
                tx.notify(change_channel(state.id, node))
            if state.affects_all_nodes:
                tx.notify(change_channel(state.id))
            if state.cancels_running:
                tx.notify(cancel_channel(graph_ids[state.number]))
        return {graph_ids[state.number] for state, _ in queued}

    def cancel_orphans(self, tx: Transaction, orphans: Sequence[ValidClaim]) -> None:
        """End these attempts, whose execution is gone: nobody will miss them."""
        self._write_rows(
            tx,
            "end_attempt",
            [
                _end_row(
                    AttemptEnd(each.claim.seq, AttemptState.CANCELLED, AttemptEndCause.EXECUTION)
                )
                for each in orphans
            ],
        )

    # --- claims ---

    def executions_of(self, tx: Transaction, claims: Iterable[Claim]) -> dict[int, int]:
        """By the number of the attempt, that of its execution."""
        seqs = self.array_parameter([claim.seq for claim in claims])
        return dict(tx.rows(self.sql["executions_of_attempts"], {"seqs": seqs}))

    def array_parameter(self, numbers: list[int]) -> Any:
        """Numbers as a parameter."""
        return (
            numbers if self._takes_arrays else str(numbers)
        )  # which is JSON, and takes a tenth of the time

    def lock_queue(self, tx: Transaction, queue: int) -> None:
        """Where several write at the same time, those who have to count come one after the
        other.
        """
        if (lock := self.sql.get("lock_queue")) is not None:
            tx.rows(lock, {"queue": queue})

    def _write_rows(self, tx: Transaction, query: str, rows: list[dict[str, object]]) -> None:
        """A few one by one: a server takes longer to take arrays apart."""
        if len(rows) > _MAX_SINGLE_STATEMENTS or not self._takes_arrays:
            tx.defer_many(self.sql.get(f"{query}_many", self.sql[query]), rows)
        else:
            for row in rows:
                tx.defer(self.sql[query], row)


def notify_workers(tx: Transaction, graph_ids: Iterable[GraphId]) -> None:
    """Tell the workers of these graphs that there is something to be computed."""
    for graph_id in graph_ids:
        tx.notify(work_channel(graph_id))


def change_channel(execution: str, node: str = "") -> str:
    """The channel that tells of changes of a node; without one: of whatever may concern all
    nodes.
    """
    return f"execution/{execution}/{node}"


def work_channel(graph_id: GraphId) -> str:
    """The channel that tells of attempts to be made."""
    return f"flow/{graph_id.graph}/{graph_id.version}"


def cancel_channel(graph_id: GraphId) -> str:
    """The channel that tells of running attempts that are not wanted any more."""
    return f"flow-cancel/{graph_id.graph}/{graph_id.version}"


def _build_executions(
    found: Iterable[Row], values: Iterable[Row], attempts: Iterable[Row]
) -> LoadedExecutions:
    loaded = {
        number: (
            ExecutionState(
                number, execution_id, revision=revision, cancelled=bool(cancelled), changes=changes
            ),
            GraphId(graph, version),
        )
        for number, execution_id, revision, changes, cancelled, graph, version in found
    }
    for number, node, *record in values:
        if number in loaded:
            loaded[number][0].nodes[node] = _node_record(record)
    for number, *attempt in attempts:
        if number in loaded:
            read = _attempt(attempt)
            loaded[number][0].open_attempts[read.node] = read
    return loaded


def _valid_claims(rows: Iterable[Row]) -> dict[Claim, ValidClaim]:
    read = [ValidClaim(Claim(*row[:3]), row[3], row[4], bool(row[5]), bool(row[6])) for row in rows]
    return {each.claim: each for each in read}


def _node_record(row: Sequence[Any]) -> NodeRecord:
    is_set, value, revision, computed_with, tried_with, spent, crashes, failed, error, term = row
    return NodeRecord(
        bool(is_set),
        value,
        revision,
        computed_with,
        tried_with,
        spent,
        crashes,
        bool(failed),
        error,
        term,
    )


def _attempt(row: Sequence[Any]) -> Attempt:
    seq, node, lease_state, computed_with, number, term, *spec, owner = row
    return Attempt(seq, node, lease_state, computed_with, number, AttemptSpec(*spec), term, owner)


def _value_row(state: ExecutionState, node: str) -> dict[str, object]:
    record = state.nodes[node]
    return {
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
    }


def _attempt_row(state: ExecutionState, new_attempt: NewAttempt) -> dict[str, object]:
    record = state.nodes.get(new_attempt.node)
    return {
        "term": 0 if record is None else record.term,
        "queue": new_attempt.spec.queue,
        "delay": float(new_attempt.delay),
        "execution": state.number or None,
        "node": new_attempt.node,
        "attempt": new_attempt.number,
        "crashes": new_attempt.crashes,
        "computed_with": new_attempt.computed_with,
        "heartbeat_timeout": new_attempt.spec.heartbeat_timeout,
        "abandon_after": float(new_attempt.spec.abandon_after),
        "max_attempts": new_attempt.spec.max_attempts,
    }


def _set_number(state: ExecutionState, rows: Sequence[Row]) -> None:
    [(state.number,)] = rows


def _execution_row(state: ExecutionState) -> dict[str, object]:
    return {"execution": state.number, "revision": state.revision}


def _end_row(attempt_end: AttemptEnd) -> dict[str, object]:
    return {
        "seq": attempt_end.seq,
        "state": str(attempt_end.state),
        "cause": str(attempt_end.cause),
        "error": attempt_end.error,
    }
