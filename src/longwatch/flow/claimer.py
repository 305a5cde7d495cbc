"""Claims attempts: queued ones, within the caps of their queues, and those that are leased as
they are inserted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from longwatch.engine.claim_source import ClaimedRow
from longwatch.flow.eager_lease import EagerLease
from longwatch.flow.execution_state import ExecutionState, NewAttempt
from longwatch.flow.propagation import propagate
from longwatch.flow.records import LEASE_SQL, TABLE, GraphId, Records, notify_workers
from longwatch.flow.registry import GraphQueue, Registry
from longwatch.store.claims import Blame, Claim, Claims
from longwatch.store.database import Database, Row, Transaction

_STALE_DELAY = 1.0
"""Seconds for which a stale attempt that cannot be called off here is left to others."""
_MAX_INPUT_CHARACTERS = 64 << 20
"""Characters of all values together, as in the query `inputs_column`."""
_COLUMNS = (
    "execution",
    "node",
    "queue",
    "attempt",
    "computed_with",
    "failures",
    "crashes",
    "abandon_after",
    "heartbeat_timeout",
)


class ClaimedAttempt(NamedTuple):
    """An attempt that was claimed, and what it is computed from: the values, as JSON, in a JSON
    object.
    """

    execution: int
    node: str
    queue: int
    number: int
    computed_with: str
    failures: int
    crashes: int
    abandon_after: float
    heartbeat_timeout: float | None
    inputs: str | None
    """None: they are too large together."""
    is_stale: bool
    id: str
    claimed_at: float
    """On the worker's own clock, from just before it was asked for."""

    @property
    def deliveries(self) -> int:
        return self.number


class AttemptClaimer:
    """What a worker takes."""

    def __init__(self, database: Database, records: Records, registry: Registry) -> None:
        self.records = records
        self.registry = registry
        self.claims = Claims(
            dialect=database.dialect,
            table=TABLE,
            columns=(
                *_COLUMNS,
                *(
                    records.sql[name]
                    for name in ("inputs_column", "is_stale_column", "execution_id_column")
                ),
            ),
            owners=database.owners,
            lease_sql=LEASE_SQL[database.dialect],
        )

    def claim(
        self,
        tx: Transaction,
        queues: Sequence[GraphQueue],
        *,
        owner: int,
        limit: int,
        requested_at: float,
    ) -> list[ClaimedRow]:
        """Some of what waits in these lines. What turns out to be stale is called off instead."""
        claimed: list[ClaimedRow] = []
        self._lock_capped(tx, queues)
        for queue in queues:
            room = self._free_capacity(tx, queue, limit - len(claimed))
            if room > 0:
                rows = self.claims.claim(
                    tx, queue=queue.number, owner=owner, lease_seconds=0.0, limit=room
                )
                claimed += [self._from_row(row, queue, requested_at) for row in rows]
        stale = [each for each in claimed if each.item.is_stale]
        if stale:
            self._cancel_stale(tx, stale)
        return [each for each in claimed if not each.item.is_stale]

    def eager_lease(
        self, graph_ids: Sequence[GraphId], *, owner: int, room: int, requested_at: float
    ) -> EagerLease:
        """The same worker for what is about to be made of these graphs; those whose lines have
        caps have to be counted in line.
        """
        graphs = self.registry.registered()
        queues = {
            queue.number: queue
            for graph_id in graph_ids
            for queue in graphs[graph_id].queues
            if not queue.caps
        }
        return EagerLease(
            owner,
            room,
            queues,
            lambda state, new_attempt, claim: self._from_insert(
                state, new_attempt, claim, queues, requested_at
            ),
        )

    def _lock_capped(self, tx: Transaction, queues: Sequence[GraphQueue]) -> None:
        """All of them, in one order: two who lock one by one would wait for each other."""
        for number in sorted({numbers[0] for queue in queues for numbers, _ in queue.caps}):
            self.records.lock_queue(tx, number)

    def _free_capacity(self, tx: Transaction, queue: GraphQueue, limit: int) -> int:
        """How many may be taken from a line: no more than its caps allow, counted while nobody
        else counts.
        """
        for numbers, maximum in queue.caps:
            if limit > 0:
                running = sum(
                    tx.rows(self.records.sql["count_running"], {"queue": number})[0][0]
                    for number in numbers
                )
                limit = min(limit, maximum - running)
        return limit

    def _cancel_stale(self, tx: Transaction, stale: Sequence[ClaimedRow]) -> None:
        """Attempts that were just claimed, and whose inputs have changed: called off, and begun
        anew. Those of a node that is not known here, or of an execution that somebody else is
        changing just now, go back.
        """
        graphs = self.registry.registered()
        loaded, _ = self.records.load_unlocked(tx, (each.item.execution for each in stale))
        for state, graph_id in loaded.values():
            propagate(graphs[graph_id].graph, state, graphs[graph_id].queue_by_node)
        graph_ids = {number: graph_id for number, (_, graph_id) in loaded.items()}
        notify_workers(
            tx, self.records.save(tx, (state for state, _ in loaded.values()), graph_ids)
        )
        cancelled = {
            attempt_end.seq for state, _ in loaded.values() for attempt_end in state.attempt_ends
        }
        remaining = [each.claim for each in stale if each.claim.seq not in cancelled]
        self.claims.release(tx, remaining, blame=Blame.RELEASE, delay=_STALE_DELAY)

    def _from_row(self, row: Row, queue: GraphQueue, requested_at: float) -> ClaimedRow:
        return self._make_row(
            Claim(*row[:3]), ClaimedAttempt._make((*row[3:], requested_at)), queue
        )

    def _from_insert(
        self,
        state: ExecutionState,
        new_attempt: NewAttempt,
        claim: Claim,
        queues: dict[int, GraphQueue],
        requested_at: float,
    ) -> ClaimedRow:
        spec = new_attempt.spec
        item = ClaimedAttempt(
            state.number,
            new_attempt.node,
            spec.queue,
            new_attempt.number,
            new_attempt.computed_with,
            new_attempt.number - 1,
            new_attempt.crashes,
            spec.abandon_after,
            spec.heartbeat_timeout,
            _encode_inputs(state, new_attempt),
            False,
            state.id,
            requested_at,
        )
        return self._make_row(claim, item, queues[spec.queue])

    def _make_row(self, claim: Claim, item: ClaimedAttempt, queue: GraphQueue) -> ClaimedRow:
        node = self.registry.graphs[queue.graph_id].nodes.get(item.node)
        retry = None if node is None else node.options.retry
        return ClaimedRow(
            claim,
            item,
            is_exclusive=item.crashes > 0,
            lease_seconds=item.heartbeat_timeout,
            retry=retry,
        )


def _encode_inputs(state: ExecutionState, new_attempt: NewAttempt) -> str | None:
    """The values that an attempt is computed from, as the store would tell them."""
    names = msgspec.json.decode(new_attempt.computed_with)
    values = {name: state.nodes[name].value for name in names if state.is_set(name)}
    if sum(len(value or "") for value in values.values()) > _MAX_INPUT_CHARACTERS:
        return None
    return msgspec.json.encode(values).decode()
