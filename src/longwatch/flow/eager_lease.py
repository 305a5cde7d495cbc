"""Attempts that a worker has from the first moment on: leased in the statement that makes them.

Whoever makes an attempt ready, and has or knows a worker with room, leases it to that at once,
where nobody waits in line before it. That saves the claim: a statement, a change of the row, and
where the store is a server, a round trip.

The workers of this process that have room: who makes an attempt ready leases it to one of them
in the same transaction.

That saves the worker's own claim, one commit of two between a `set` and the first line of the
node's code. Any other worker finds what was not handed over as always.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from longwatch.core.clock import Clock, Wakeup
from longwatch.engine.claim_source import ClaimedRow
from longwatch.engine.reservations import Reservation
from longwatch.flow.execution_state import LEASED, Attempt, ExecutionState, NewAttempt
from longwatch.flow.records import GraphId, notify_workers
from longwatch.store.claims import Claim
from longwatch.store.database import Database, Row, Transaction

if TYPE_CHECKING:
    from longwatch.engine.engine import Engine
    from longwatch.flow.claim_source import EagerWork, FlowClaimSource

_EMPTY_FOR = 0.05
"""Seconds for which it is believed that nobody waits in line: as long somebody may be overtaken
whose coming was not heard of.
"""
_NEXT_DUE_FOR = 1.0
"""The same for when a delayed attempt is due."""
_MAX_CACHED = 1000
_MAX_CACHED_CHARACTERS = 64 << 10

ClaimedRowFactory = Callable[[ExecutionState, NewAttempt, Claim], ClaimedRow]


class EagerLease:
    """Leases attempts to one worker as they are inserted, for one transaction, up to its free
    capacity. A `records.EagerLeaseTarget`.

    `queues` are the queues without a cap.
    """

    def __init__(
        self, owner: int, room: int, queues: Container[int], factory: ClaimedRowFactory
    ) -> None:
        self.owner = owner
        self.claimed: list[ClaimedRow] = []
        self.attempts: dict[int, dict[str, Attempt]] = {}
        self.is_owner_registered = True
        self._room = room
        self._queues = queues
        self._factory = factory
        self.reserved = 0

    @property
    def is_complete(self) -> bool:
        """Whether it was told of all that it has."""
        return len(self.claimed) == self.reserved

    def reserve(self, new_attempt: NewAttempt) -> bool:
        """One that has crashed before waits in line: it has to run alone."""
        if (
            self.reserved >= self._room
            or new_attempt.delay
            or new_attempt.crashes
            or new_attempt.spec.queue not in self._queues
        ):
            return False
        self.reserved += 1
        return True

    def record_insert(
        self, state: ExecutionState, new_attempt: NewAttempt, rows: Sequence[Row]
    ) -> None:
        [(seq, owner, term, execution, node, is_owner_registered)] = rows
        attempt = Attempt(
            seq,
            node,
            LEASED,
            new_attempt.computed_with,
            new_attempt.number,
            new_attempt.spec,
            term,
            owner,
        )
        self.attempts.setdefault(execution, {})[node] = attempt
        self.claimed.append(self._factory(state, new_attempt, Claim(seq, owner, term)))
        self.is_owner_registered = self.is_owner_registered and bool(is_owner_registered)


class QueueCache:
    """What is known of the lines without asking: from the last look, until somebody tells of more,
    and for a while only.

    As long as nobody listens, nothing is.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._notified = Wakeup()
        self._listeners = 0
        self._empty_until = -inf
        self._due: float | None = None
        self._due_until = -inf

    def listen(self, wakeup: Wakeup) -> tuple[Wakeup, Callable[[], None]]:
        """What is to be set when there is more; it sets the wakeup. With what ends that."""
        unsubscribe = self._notified.subscribe(wakeup.set)
        self._listeners += 1

        def leave() -> None:
            self._listeners -= 1
            unsubscribe()

        return self._notified, leave

    def invalidate(self) -> None:
        """Before a look: what is told from now on is news."""
        self._notified.clear()
        self._empty_until = self._due_until = -inf

    def record_poll(self, *, has_waiting: bool) -> None:
        """In line."""
        self._empty_until = -inf if has_waiting else self._clock.monotonic() + _EMPTY_FOR
        if has_waiting:
            self._due_until = -inf

    @property
    def is_known_empty(self) -> bool:
        """In line."""
        return self._is_valid(self._empty_until)

    def next_due(self, query: Callable[[], float | None]) -> float | None:
        """Seconds until something that is delayed is due; None if nothing is."""
        now = self._clock.monotonic()
        if not self._is_valid(self._due_until):
            wait = query()
            self._due, self._due_until = None if wait is None else now + wait, now + _NEXT_DUE_FOR
        return None if self._due is None else max(self._due - now, 0.0)

    def _is_valid(self, until: float) -> bool:
        return (
            self._listeners > 0 and not self._notified.is_set() and self._clock.monotonic() < until
        )


class ExecutionCache:
    """Executions as this worker has left them, those that nobody else is at: what it does next to
    one need not read it again.

    They are taken out to be used, once; `Records.require_unchanged` makes sure that no
    transaction has changed them. Every method may be called from any thread.
    """

    def __init__(self) -> None:
        self._cached: dict[int, tuple[ExecutionState, GraphId]] = {}

    def take(self, numbers: Iterable[int]) -> dict[int, tuple[ExecutionState, GraphId]] | None:
        """All of these; None if one is not known."""
        found = {number: self._cached.pop(number, None) for number in set(numbers)}
        complete = {number: each for number, each in found.items() if each is not None}
        return complete if len(complete) == len(found) else None

    def put(
        self, written: Iterable[tuple[ExecutionState, GraphId]], eager_lease: EagerLease
    ) -> None:
        """These were just written, and the eager lease was given some of their attempts."""
        for state, graph_id in written:
            opened = eager_lease.attempts.get(state.number, {})
            if len(opened) == len(state.new_attempts) and eager_lease.is_complete:
                state.mark_written(opened)
                if _is_cacheable(state, eager_lease.owner):
                    self._cached[state.number] = state, graph_id
        for number in list(self._cached)[:-_MAX_CACHED]:
            self._cached.pop(number, None)


def _is_cacheable(state: ExecutionState, owner: int) -> bool:
    """Whether all that is open is this worker's, and it is small enough to be kept."""
    if (
        state.cancelled
        or not state.open_attempts
        or any(attempt.owner != owner for attempt in state.open_attempts.values())
    ):
        return False
    return sum(len(record.value or "") for record in state.nodes.values()) <= _MAX_CACHED_CHARACTERS


T = TypeVar("T")


class LocalWorker(NamedTuple):
    """A worker that runs."""

    engine: Engine
    source: FlowClaimSource
    pid: int


class LocalWorkers:
    """The running workers of one Flow. Thread-safe: the list is replaced, never changed."""

    def __init__(self) -> None:
        self._workers: tuple[LocalWorker, ...] = ()

    @contextmanager
    def registered(self, engine: Engine, source: FlowClaimSource) -> Iterator[None]:
        """For as long as this engine runs."""
        worker = LocalWorker(engine, source, os.getpid())
        self._workers = (*self._workers, worker)
        try:
            yield
        finally:
            self._workers = tuple(each for each in self._workers if each is not worker)

    def write(self, database: Database, graph_id: GraphId, work: EagerWork[T]) -> T:
        """Do this work in a transaction, and hand over what it made ready."""
        worker, reservation = self._reserve(graph_id)
        if worker is None or reservation is None:
            return database.write(lambda tx: _notify_if_queued(tx, work(tx, None), graph_id))
        try:
            return database.write(
                lambda tx: worker.source.write_with_lease(tx, reservation, graph_id, work)
            )
        except BaseException:
            reservation.is_uncertain = True
            raise
        finally:
            reservation.close()

    def _reserve(self, graph_id: GraphId) -> tuple[LocalWorker | None, Reservation | None]:
        for worker in self._workers:
            if (
                worker.pid == os.getpid()
                and graph_id in worker.source.registry.graphs
                and (reservation := worker.engine.reserve(_MAX_RESERVED))
            ):
                return worker, reservation
        return None, None


_MAX_RESERVED = 4
"""Attempts handed over at once: a change makes few ready, and a worker that is handed much
leaves nothing to others.
"""


def _notify_if_queued(
    tx: Transaction, outcome: tuple[T, ExecutionState | None], graph_id: GraphId
) -> T:
    result, state = outcome
    if state is not None and state.new_attempts:
        notify_workers(tx, [graph_id])
    return result
