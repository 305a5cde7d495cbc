"""Claims attempts from the queues of graphs, within their caps, and remembers what the last claim
found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from longwatch.core.clock import Clock, Wakeup
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.fair_claims import FairClaims, free_capacity
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.invocation import add_element
from longwatch.flow.records import LEASE_SQL, TABLE, Records, notify_workers
from longwatch.flow.registry import GraphQueue, Registry
from longwatch.store.blame import DEFAULT_BUDGET, Blame
from longwatch.store.claims import Claim, Claims, RowSelection
from longwatch.store.database import Database, Row, Transaction

_STALE_DELAY = 1.0
"""Seconds for which a stale attempt that cannot be cancelled here is left to other workers."""
_EMPTY_FOR = 0.05
"""Seconds for which a poll that found nothing counts: an attempt whose notification was lost may be
overtaken for as long.
"""
_NEXT_DUE_FOR = 1.0
"""Seconds for which the time of the next delayed attempt counts."""
_COLUMNS = (
    "execution",
    "node",
    "queue",
    "attempt",
    "computed_with",
    "failures",
    "crashes",
    "lost",
    "releases",
    "max_attempts",
    "abandon_after",
    "heartbeat_timeout",
    "element",
    "due_at",
)


class ClaimedAttempt(NamedTuple):
    """A claimed attempt. `inputs` is a JSON object that has each value as a JSON text."""

    execution: int
    node: str
    queue: int
    number: int
    computed_with: str
    failures: int
    crashes: int
    lost: int
    releases: int
    max_attempts: int
    abandon_after: float
    heartbeat_timeout: float | None
    element: int | None
    """The element of a map that it computes; None: a node."""
    due_at: float | None
    """When the tick was due that this attempt fires; None for an attempt that computes."""
    inputs: str | None
    """None if the values are too large together."""
    is_stale: bool
    id: str
    claimed_at: float
    """On the worker's own clock, just before the claim."""

    @property
    def deliveries(self) -> int:
        return self.number


class AttemptClaimer:
    """Claims attempts for a worker."""

    def __init__(self, database: Database, records: Records, registry: Registry) -> None:
        self.records = records
        self.registry = registry
        self.fair_claims = FairClaims()
        self.claims = Claims(
            dialect=database.dialect,
            table=TABLE,
            columns=(
                *_COLUMNS,
                *(
                    records.sql[name]
                    for name in (
                        "inputs_column",
                        "is_stale_column",
                        "execution_id_column",
                        "element_input_column",
                    )
                ),
            ),
            owners=database.owners,
            scan_bounds=database.scan_bounds,
            lease_sql=LEASE_SQL[database.dialect],
        )

    def claim(  # noqa: PLR0913 - which attempts, for which owner
        self,
        tx: Transaction,
        queues: Sequence[GraphQueue],
        *,
        owner: int,
        limit: int,
        claimed_at: float,
        selection: RowSelection = RowSelection.ANY,
    ) -> list[ClaimedRow]:
        """Claim up to `limit` attempts of these queues, of the suspects at most one. Stale attempts
        are cancelled instead.
        """
        limit = min(limit, 1) if selection is RowSelection.SUSPECTS else limit

        def claim_from(queue: GraphQueue, room: int) -> list[ClaimedRow]:
            rows = self.claims.claim(
                tx,
                queue=queue.number,
                owner=owner,
                lease_seconds=0.0,
                limit=room,
                selection=selection,
            )
            return [self._from_row(row, queue, claimed_at) for row in rows]

        claimed = self.fair_claims.claim(
            tx, queues, counts=self.records, limit=limit, claim_from=claim_from
        )
        stale = [each for each in claimed if each.item.is_stale]
        if stale:
            self._cancel_stale(tx, stale)
        return [each for each in claimed if not each.item.is_stale]

    def free_capacity(self, tx: Transaction, queue: GraphQueue, limit: int) -> int:
        """How many attempts the caps of a queue allow to claim, at most `limit`."""
        return free_capacity(tx, queue, limit, self.records)

    def _cancel_stale(self, tx: Transaction, stale: Sequence[ClaimedRow]) -> None:
        """Cancel claimed attempts whose inputs have changed, and open new ones. Attempts of an
        unknown node or of a locked execution are released.
        """
        loaded, _ = self.records.load_unlocked(tx, (each.item.execution for each in stale))
        for state in loaded.values():
            self.registry.propagate(tx, state)
        notify_workers(tx, self.records.save(tx, loaded.values()))
        cancelled = {end.seq for state in loaded.values() for end in state.attempt_ends}
        remaining = [each.claim for each in stale if each.claim.seq not in cancelled]
        self.claims.release(tx, remaining, blame=Blame.RELEASE, delay=_STALE_DELAY)

    def _from_row(self, row: Row, queue: GraphQueue, claimed_at: float) -> ClaimedRow:
        *columns, element_input = row[3:]
        item = ClaimedAttempt._make((*columns, claimed_at))
        if item.element is not None and item.inputs is not None:
            item = item._replace(inputs=add_element(item.inputs, element_input))
        return self.make_row(Claim(*row[:3]), item, queue)

    def make_row(self, claim: Claim, item: ClaimedAttempt, queue: GraphQueue) -> ClaimedRow:
        """Make the row that the engine runs for a claimed attempt."""
        node = self.registry.graphs[queue.graph_id].nodes.get(item.node)
        retry = None if node is None else node.options.retry
        return ClaimedRow(
            claim,
            item,
            is_exclusive=DEFAULT_BUDGET.is_suspect(crashes=item.crashes, lost=item.lost),
            lease_seconds=item.heartbeat_timeout,
            retry=retry,
            failures_left=max(item.max_attempts - item.failures, 1),
        )


class QueueCache:
    """What the last poll found in the queues: valid for a moment, until a notification arrives, and
    only while the worker listens.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notified = Wakeup()
        self._listeners = 0
        self._empty_until = -inf
        self._due: float | None = None
        self._due_until = -inf

    def listen(self, wakeup: Wakeup) -> tuple[Wakeup, Callable[[], None]]:
        """Returns the wakeup to call on a notification, which passes each call on to the given
        one, and a function that ends that.
        """
        self._listeners += 1

        def leave() -> None:
            self._listeners -= 1

        return _InvalidatingWakeup(self._notified, wakeup), leave

    def invalidate(self) -> None:
        """Forget the last poll, before the next one: a later notification may be about a new
        row.
        """
        self._notified.clear()
        self._empty_until = self._due_until = -inf

    def record_poll(self, *, has_waiting: bool) -> None:
        """Note whether attempts may wait in the queues after a poll."""
        self._empty_until = -inf if has_waiting else self._clock.monotonic() + _EMPTY_FOR
        if has_waiting:
            self._due_until = -inf

    @property
    def is_known_empty(self) -> bool:
        """Whether no attempt waits in the queues; False if that is unknown."""
        return self._is_valid(self._empty_until)

    def next_due(self, query: Callable[[], float | None]) -> float | None:
        """Seconds until a delayed attempt is due; None if none is delayed."""
        now = self._clock.monotonic()
        if not self._is_valid(self._due_until):
            wait = query()
            self._due, self._due_until = None if wait is None else now + wait, now + _NEXT_DUE_FOR
        return None if self._due is None else max(self._due - now, 0.0)

    def _is_valid(self, until: float) -> bool:
        return (
            self._listeners > 0 and not self._notified.is_set() and self._clock.monotonic() < until
        )


class _InvalidatingWakeup(Wakeup):
    """Invalidates a cache on each call, then passes the call on to the wakeup of an engine."""

    __slots__ = ("_cache", "_engine")

    def __init__(self, cache: Wakeup, engine: Wakeup) -> None:
        super().__init__()
        self._cache = cache
        self._engine = engine

    def set(self) -> None:
        self._cache.set()
        self._engine.set()

    def hint(self) -> None:
        self._cache.set()
        self._engine.hint()

    def poll(self) -> None:
        self._cache.set()
        self._engine.poll()


def unselected_graphs(states: Iterable[ExecutionState], selection: RowSelection) -> set[GraphId]:
    """The graphs of new attempts that a claim by this selection does not take: other workers have
    to be notified of them.
    """
    if selection is RowSelection.ANY:
        return set()
    takes_suspects = selection is RowSelection.SUSPECTS
    return {
        state.graph_id
        for state in states
        if any(new.is_suspect is not takes_suspects for new in state.new_attempts.values())
    }


def may_have_more(claimed: Sequence[ClaimedRow], limit: int) -> bool:
    """Whether attempts may still wait after a claim: it reached its limit, or returned an exclusive
    row.
    """
    return len(claimed) >= limit or any(each.is_exclusive for each in claimed)
