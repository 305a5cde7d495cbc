"""Leases new attempts to workers of this process; the package docstring has the rules."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from longwatch.core.clock import Clock
from longwatch.engine.claim_source import ClaimedRow, ExchangeResult, Settlement
from longwatch.engine.reservations import Reservation
from longwatch.errors import StoreError
from longwatch.flow.attempt import LEASED, Attempt, NewAttempt
from longwatch.flow.claimer import (
    AttemptClaimer,
    ClaimedAttempt,
    QueueCache,
    may_have_more,
    unselected_graphs,
)
from longwatch.flow.eager_lease.execution_cache import write_recalling
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.records import OpenedAttempt, attempt_row, notify_workers
from longwatch.flow.registry import GraphQueue
from longwatch.flow.settler import AttemptSettler, SettledAttempts
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, RowSelection
from longwatch.store.database import Database, Row, Transaction

if TYPE_CHECKING:
    from longwatch.engine.engine import Engine

_MAX_RESERVED = 4
"""Attempts that one change may lease: a change opens few, and other workers get the rest."""
_MAX_INPUT_CHARACTERS = 64 << 20
"""Characters of all inputs of an attempt, as in `inputs_column`."""

Change = Callable[[Transaction], ExecutionState]
"""Changes an execution in a transaction; the caller saves the returned state."""


class EagerLease:
    """The attempts that one transaction leases to one worker; a `records.AttemptTaker`.

    `claimed` and `attempts` are complete after the commit, unless its reply was lost.
    """

    def __init__(
        self,
        claimer: AttemptClaimer,
        graph_ids: Iterable[GraphId],
        *,
        owner: int,
        room: int,
        claimed_at: float,
    ) -> None:
        graphs = claimer.registry.registered()
        self.owner = owner
        self.claimed: list[ClaimedRow] = []
        self.attempts: dict[str, dict[str, Attempt]] = {}
        self.is_owner_registered = True
        self._claimed_at = claimed_at
        self._claimer = claimer
        self._room = room
        self._queues = {
            queue.number: queue
            for graph_id in graph_ids
            for queue in graphs[graph_id].queues
            if not queue.caps
        }
        self._inserted = 0

    @property
    def is_complete(self) -> bool:
        """Whether all leased rows are known."""
        return len(self.claimed) == self._inserted

    def insert(self, tx: Transaction, opened: Sequence[OpenedAttempt]) -> list[OpenedAttempt]:
        """Insert attempts as leased while there is room; return the others, to be queued."""
        queued = []
        for state, new_attempt in opened:
            if not self._accepts(new_attempt):
                queued.append((state, new_attempt))
                continue
            self._inserted += 1
            tx.defer_rows(
                self._claimer.records.sql["insert_leased_attempt"],
                {**attempt_row(state, new_attempt), "owner": self.owner},
                partial(self._record, state, new_attempt),
            )
        if not self.is_owner_registered:
            self._claimer.claims.insert_owner(tx, self.owner)
            self.is_owner_registered = True
        return queued

    def _accepts(self, new_attempt: NewAttempt) -> bool:
        return (
            self._inserted < self._room
            and not new_attempt.delay
            and new_attempt.due_at is None
            and not new_attempt.is_suspect
            and new_attempt.spec.queue in self._queues
        )

    def _record(self, state: ExecutionState, new_attempt: NewAttempt, rows: Sequence[Row]) -> None:
        [(seq, owner, term, _, node, is_owner_registered)] = rows
        self.attempts.setdefault(state.id, {})[node] = Attempt(
            seq,
            node,
            LEASED,
            new_attempt.computed_with,
            new_attempt.number,
            new_attempt.spec,
            term,
            owner,
        )
        item = _claimed_attempt(state, new_attempt, self._claimed_at)
        self.claimed.append(
            self._claimer.make_row(Claim(seq, owner, term), item, self._queues[item.queue])
        )
        self.is_owner_registered = self.is_owner_registered and bool(is_owner_registered)


class EagerLeaser:
    """The eager leases of one claim source. Thread-safe."""

    def __init__(
        self,
        database: Database,
        claimer: AttemptClaimer,
        settler: AttemptSettler,
        queue_cache: QueueCache,
        *,
        clock: Clock,
    ) -> None:
        self.database = database
        self.claimer = claimer
        self.settler = settler
        self.clock = clock
        self._queue_cache = queue_cache

    def knows_empty(self, queues: Iterable[GraphQueue]) -> bool:
        """Whether nothing waits in these queues. A queue with a cap may hold rows that no claim
        could take.
        """
        return self._queue_cache.is_known_empty and not any(queue.caps for queue in queues)

    def may_lease(self, queues: Iterable[GraphQueue], selection: RowSelection) -> bool:
        """Whether an engine of this selection may lease new attempts of these queues. One that runs
        suspects claims them from the queues only.
        """
        return selection is not RowSelection.SUSPECTS and self.knows_empty(queues)

    def exchange(
        self, settlements: Sequence[Settlement], *, owner: int, limit: int
    ) -> ExchangeResult:
        """Settle these attempts and lease the ones that they open, without a claim."""
        claimed_at = self.clock.monotonic()

        def work(tx: Transaction, *, recall: bool) -> tuple[SettledAttempts, EagerLease]:
            lease = EagerLease(
                self.claimer,
                self.claimer.registry.graphs,
                owner=owner,
                room=limit,
                claimed_at=claimed_at,
            )
            result = self.settler.settle(tx, settlements, lease, recall=recall)
            notify_workers(tx, result.ready)
            return result, lease

        result, lease = write_recalling(self.database, work)
        self.record_commit(lease, settlements, lease.claimed, result.written)
        self.register_again(lease)
        if result.ready:
            self._queue_cache.record_poll(has_waiting=True)
        if not lease.is_complete:
            raise StoreError(
                "the exchange was committed, but the reply with the leased attempts was lost"
            )
        settled = [result.settled[each.claim] for each in settlements]
        return ExchangeResult(settled, lease.claimed, is_queue_empty=not result.ready)

    def record_commit(
        self,
        lease: EagerLease,
        settlements: Iterable[Settlement],
        claimed: Iterable[ClaimedRow],
        written: Iterable[ExecutionState],
    ) -> None:
        """Remember the claims and the states of the executions, after the commit."""
        self.settler.record_commit(
            settlements,
            claimed,
            written if lease.is_complete else (),
            owner=lease.owner,
            leased=lease.attempts,
        )

    def register_again(self, lease: EagerLease) -> None:
        """Register an owner that a sweeper has deleted. If that fails, the next lease does it."""
        if not lease.is_owner_registered:
            with suppress(StoreError):
                self.database.write(lambda tx: self.claimer.claims.insert_owner(tx, lease.owner))


class EagerWrite:
    """One change of an execution of this graph, for a worker that has reserved room."""

    def __init__(
        self,
        leaser: EagerLeaser,
        reservation: Reservation,
        graph_id: GraphId,
        selection: RowSelection = RowSelection.ANY,
    ) -> None:
        self.leaser = leaser
        self.reservation = reservation
        self.graph_id = graph_id
        self.selection = selection

    def write(self, change: Change) -> ExecutionState:
        """Run and save a change in a transaction; lease its new attempts and deliver them."""
        try:
            state, lease = self.leaser.database.write(lambda tx: self._transact(tx, change))
            self.leaser.register_again(lease)
        except BaseException:
            self.reservation.is_uncertain = True
            raise
        finally:
            self.reservation.close()
        return state

    def _transact(self, tx: Transaction, change: Change) -> tuple[ExecutionState, EagerLease]:
        leaser, reservation = self.leaser, self.reservation
        requested_at, claimed_at = leaser.clock.boottime(), leaser.clock.monotonic()
        queues = leaser.claimer.registry.registered()[self.graph_id].queues
        is_empty = leaser.knows_empty(queues)
        lease = EagerLease(
            leaser.claimer,
            [self.graph_id],
            owner=reservation.owner,
            room=reservation.limit if is_empty and not reservation.is_closed else 0,
            claimed_at=claimed_at,
        )
        state = change(tx)
        has_queued = bool(leaser.claimer.records.save(tx, [state], lease))
        if reservation.is_closed:  # the caller gave up waiting, and the worker may have ended since
            claims = [each.claim for each in lease.claimed]
            leaser.claimer.claims.release(tx, claims, blame=Blame.RELEASE)
            has_queued = bool(state.new_attempts)
        elif state.new_attempts and is_empty:
            tx.after_commit(partial(self._deliver, lease, state, lease.claimed, requested_at))
        elif state.new_attempts:  # older rows may wait: claim from the head of the queues
            claimed = self._claim(tx, queues, claimed_at)
            has_queued = may_have_more(claimed, reservation.limit) or bool(
                unselected_graphs([state], self.selection)
            )
            tx.after_commit(partial(self._deliver, lease, state, claimed, requested_at))
        if has_queued:
            notify_workers(tx, [self.graph_id])
        return state, lease

    def _claim(
        self, tx: Transaction, queues: Sequence[GraphQueue], claimed_at: float
    ) -> list[ClaimedRow]:
        return self.leaser.claimer.claim(
            tx,
            queues,
            owner=self.reservation.owner,
            limit=self.reservation.limit,
            claimed_at=claimed_at,
            selection=self.selection,
        )

    def _deliver(
        self,
        lease: EagerLease,
        state: ExecutionState,
        claimed: list[ClaimedRow],
        requested_at: float,
    ) -> None:
        self.leaser.record_commit(lease, (), claimed, [state])
        self.reservation.is_uncertain = not lease.is_complete
        self.reservation.deliver(claimed, requested_at)


class _LocalWorker(NamedTuple):
    engine: Engine
    leaser: EagerLeaser
    pid: int


class LocalWorkers:
    """The running workers of one Flow in this process. Thread-safe: the tuple is replaced."""

    def __init__(self) -> None:
        self._workers: tuple[_LocalWorker, ...] = ()

    @contextmanager
    def registered(self, engine: Engine, leaser: EagerLeaser) -> Iterator[None]:
        """Offer the slots of this engine."""
        worker = _LocalWorker(engine, leaser, os.getpid())
        self._workers = (*self._workers, worker)
        try:
            yield
        finally:
            self._workers = tuple(each for each in self._workers if each is not worker)

    def reserve(self, graph_id: GraphId) -> EagerWrite | None:
        """Reserve slots in a worker of this graph; None if no worker has free slots. The caller has
        to call `write`, which closes the reservation.
        """
        for worker in self._workers:
            selection = worker.engine.policy.selection
            if (
                worker.pid == os.getpid()
                and selection is not RowSelection.SUSPECTS
                and graph_id in worker.leaser.claimer.registry.graphs
                and (reservation := worker.engine.reserve(_MAX_RESERVED))
            ):
                return EagerWrite(worker.leaser, reservation, graph_id, selection)
        return None

    def forget(self, execution: int) -> None:
        """Forget the cached state of an execution that is about to change."""
        for worker in self._workers:
            worker.leaser.settler.cache.forget(execution)

    def are_computing(self, execution: int, node: str, *, known_nodes: int) -> bool:
        """Whether one of the workers is about to compute this node, so that a read of its value
        would find none (`ExecutionCache.is_computing`).
        """
        return any(
            worker.pid == os.getpid()
            and worker.leaser.settler.cache.is_computing(execution, node, known_nodes=known_nodes)
            for worker in self._workers
        )


def _claimed_attempt(
    state: ExecutionState, new_attempt: NewAttempt, claimed_at: float
) -> ClaimedAttempt:
    """What a claim of this attempt would have returned."""
    spec = new_attempt.spec
    return ClaimedAttempt(
        execution=state.number,
        node=new_attempt.node,
        queue=spec.queue,
        number=new_attempt.number,
        computed_with=new_attempt.computed_with,
        failures=new_attempt.failures,
        crashes=new_attempt.crashes,
        lost=new_attempt.lost,
        releases=0,
        max_attempts=spec.max_attempts,
        abandon_after=spec.abandon_after,
        heartbeat_timeout=spec.heartbeat_timeout,
        element=None,
        due_at=None,
        inputs=_encode_inputs(state, new_attempt),
        is_stale=False,
        id=state.id,
        claimed_at=claimed_at,
    )


def _encode_inputs(state: ExecutionState, new_attempt: NewAttempt) -> str | None:
    names = msgspec.json.decode(new_attempt.computed_with)
    values = {name: state.nodes[name].value for name in names if state.is_set(name)}
    if sum(len(value or "") for value in values.values()) > _MAX_INPUT_CHARACTERS:
        return None
    return msgspec.json.encode(values).decode()
