"""Removes finished executions: those that are done, failed, cancelled or archived, and that have
not changed for a while.

Each batch is one short transaction. It finds the oldest executions by an index, locks them, and
deletes their attempts, their elements of maps, their values and their rows. The lock and the
condition are one statement, so an execution that has changed meanwhile is not removed. A server
skips executions that another transaction has locked. The size of a batch follows from the time that
the last one took, so that no transaction holds its locks for long.

An execution with very many attempts is removed over several transactions: its attempts go first, in
pieces, and its row last. If it is changed in between, the execution stays, without the history of
the attempts that are gone.

An execution with a recurring tick may never finish, and each firing adds attempts to it. `trim`
removes those of its attempts that ended long ago; values and elements of maps stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Any, NamedTuple

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.errors import UsageError
from longwatch.flow.execution_state import ExecutionStatus
from longwatch.flow.node_options import is_finite_number
from longwatch.flow.records import Records
from longwatch.store.database import Database, Transaction
from longwatch.store.named_sql import load_queries

DAY_SECONDS = 86_400.0
FINISHED = (
    ExecutionStatus.DONE,
    ExecutionStatus.FAILED,
    ExecutionStatus.CANCELLED,
    ExecutionStatus.ARCHIVED,
)
"""The states of executions that may be removed."""
BATCH_SECONDS = 0.025
"""How long the statements of one transaction should take."""
FIRST_BATCH, SMALLEST_BATCH, LARGEST_BATCH = 100, 10, 500
_ROWS_PER_EXECUTION = 10
"""Attempts that a batch deletes for each of its executions, and as many elements of maps."""
_TRIMMED_EXECUTIONS, _TRIMMED_ATTEMPTS = 1000, 500
"""Executions that one call of `trim` reads, and attempts that each of its transactions deletes."""

_CONSTANTS = {
    "sqlite": {"skip_locked": "", "of_executions": "IN (SELECT value FROM json_each(:executions))"},
    "postgresql": {
        "skip_locked": "FOR UPDATE SKIP LOCKED",
        "of_executions": "= ANY (:executions::int8[])",
    },
}


class _Batch(NamedTuple):
    """What one transaction removed. `after`: the next one continues there; None if none is left."""

    removed: int
    after: float | None
    seconds: float


class Retention:
    """Removes finished executions of one store. Thread-safe."""

    def __init__(self, database: Database, records: Records, clock: Clock | None = None) -> None:
        self._database = database
        self._records = records
        self._clock = clock or SystemClock()
        self._sql = load_queries(
            "longwatch.flow", "retention", database.dialect, **_CONSTANTS[database.dialect]
        )
        self._trimmed_up_to: dict[str, int] = {}
        """By graph: the execution behind which `trim` goes on."""

    def count(self, graph: str, *, age: float, states: Iterable[ExecutionStatus] = FINISHED) -> int:
        """Count the executions that `remove` would remove."""
        queries = [
            (self._sql["count_expired"], {"graph": graph, "state": int(state), "age": age})
            for state in states
        ]
        return sum(found for [(found,)] in self._database.read(lambda tx: tx.rows_many(queries)))

    def remove(
        self,
        graph: str,
        *,
        age: float,
        states: Iterable[ExecutionStatus] = FINISHED,
        max_seconds: float = inf,
        on_batch: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Remove the executions of a graph that were last changed longer ago than `age` seconds.

        Returns how many. Begins no further transaction after `max_seconds`. `on_batch` gets the
        number of executions that each transaction removed.
        """
        removed, size = 0, FIRST_BATCH
        stop_at = self._clock.monotonic() + max_seconds
        for state in states:
            after: float | None = -inf
            while after is not None and self._clock.monotonic() < stop_at:
                batch = self._remove_batch(graph, state, age=age, after=after, size=size)
                removed, after = removed + batch.removed, batch.after
                size = _next_size(size, batch.seconds)
                on_batch(batch.removed)
                if after is not None:
                    self._let_others_write(batch.seconds)
        return removed

    def trim(self, graph: str, *, age: float, max_seconds: float = inf) -> int:
        """Delete the attempts that ended longer ago than `age` seconds, of executions with planned
        ticks; returns how many. The next call goes on with other executions.
        """
        stop_at, deleted = self._clock.monotonic() + max_seconds, 0
        page = {
            "graph": graph,
            "after": self._trimmed_up_to.pop(graph, 0),
            "limit": _TRIMMED_EXECUTIONS,
        }
        found = self._database.read(lambda tx: tx.rows(self._sql["ticking_executions"], page))
        for (execution,) in found:
            if self._clock.monotonic() >= stop_at:
                break
            deleted += self._trim_execution(execution, age, stop_at)
            self._trimmed_up_to[graph] = execution
        if len(found) < _TRIMMED_EXECUTIONS and self._clock.monotonic() < stop_at:
            self._trimmed_up_to.pop(graph, None)  # the next call begins anew
        return deleted

    def _trim_execution(self, execution: int, age: float, stop_at: float) -> int:
        old = {"execution": execution, "age": age, "limit": _TRIMMED_ATTEMPTS}
        deleted = 0
        while self._clock.monotonic() < stop_at:
            began = self._clock.monotonic()
            count = self._database.write(
                lambda tx: tx.execute(self._sql["delete_old_attempts"], old)
            )
            deleted += count
            if count < _TRIMMED_ATTEMPTS:
                break
            self._let_others_write(self._clock.monotonic() - began)
        return deleted

    def _let_others_write(self, seconds: float) -> None:
        """Wait as long as a batch took, if the store has one writer: another process polls for the
        lock, and would otherwise find it taken each time.
        """
        if self._database.has_single_writer and seconds > 0:
            self._clock.wait(Wakeup(), seconds)

    def _remove_batch(
        self, graph: str, state: ExecutionStatus, *, age: float, after: float, size: int
    ) -> _Batch:
        page = {"graph": graph, "state": int(state), "age": age, "after": after, "limit": size}

        def work(tx: Transaction) -> _Batch:
            started = self._clock.monotonic()
            rows = tx.rows(self._sql["expired_executions"], page)
            is_whole = not rows or self._delete(tx, [number for number, _ in rows], size)
            is_last = is_whole and len(rows) < size
            return _Batch(
                len(rows) if is_whole else 0,
                None if is_last else rows[-1][1] if is_whole else after,
                self._clock.monotonic() - started,
            )

        return self._database.write(work)

    def _delete(self, tx: Transaction, numbers: list[int], size: int) -> bool:
        """Delete these executions, which are locked; False if only some of their attempts or
        elements were deleted, because they have too many.
        """
        executions = {"executions": self._records.array_parameter(numbers)}
        most = size * _ROWS_PER_EXECUTION
        for query in ("delete_attempts", "delete_elements"):
            if tx.execute(self._sql[query], {**executions, "limit": most}) >= most:
                return False
        for query in ("delete_values", "delete_executions"):
            tx.execute(self._sql[query], executions)
        return True


def _next_size(size: int, seconds: float) -> int:
    """The size of the next batch: at most twice this one, at least a quarter of it."""
    factor = min(2.0, max(0.25, BATCH_SECONDS / seconds)) if seconds > 0 else 2.0
    return round(min(LARGEST_BATCH, max(SMALLEST_BATCH, size * factor)))


def validate_age(seconds: Any) -> float:
    """Validate the age of executions to remove. Raises UsageError."""
    if not is_finite_number(seconds) or seconds < 0:
        raise UsageError(f"older_than must be a number of seconds, 0 or more, not {seconds!r}")
    return float(seconds)


def validate_finished(states: Sequence[Any] | None) -> tuple[ExecutionStatus, ...]:
    """The states with these names, all finished ones for None. Raises UsageError for a state that
    may not be removed.
    """
    if states is None:
        return FINISHED
    known = {state.name.lower(): state for state in FINISHED}
    for name in (states := [states] if not isinstance(states, list | tuple) else states):
        if not isinstance(name, str) or name not in known:
            raise UsageError(
                f"only finished executions are removed: states are {', '.join(known)}, not {name!r}"
            )
    return tuple(known[name] for name in dict.fromkeys(states))
