"""The attempts of some graphs as a source of work: claimed, renewed, concluded, swept.

An exchange concludes attempts and claims the next ones in one transaction. As a rule nobody waits
in line, and the next ones are those that the conclusion makes: they are leased as they are made
(`eager_lease.py`). Where an attempt may be queued, they go to the end of the queue, which is
claimed from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from math import inf
from typing import TypeVar

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.events.base import Events
from longwatch.engine.claim_source import ClaimedRow, ExchangeResult, Settlement
from longwatch.engine.policy import PARENT_LEASE_SECONDS
from longwatch.engine.reservations import Reservation
from longwatch.errors import StoreError
from longwatch.flow.claimer import AttemptClaimer
from longwatch.flow.eager_lease import EagerLease, QueueCache
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.records import GraphId, Records, notify_workers, work_channel
from longwatch.flow.registry import GraphQueue, Registry
from longwatch.flow.settler import AttemptSettler, SettledAttempts
from longwatch.flow.sweeper import SWEEP_INTERVAL, FlowSweeper
from longwatch.flow.waiters import Waiters
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Blame, Claim
from longwatch.store.database import Database, PreconditionFailedError, Transaction

SOURCE_KIND = "flow"
_REFRESH_INTERVAL = 10.0

T = TypeVar("T")
EagerWork = Callable[[Transaction, EagerLease | None], tuple[T, ExecutionState | None]]
"""Work that may make attempts, for a worker that takes some: what it returns, and the execution
that it has changed.
"""


class FlowClaimSource:
    """A `ClaimSource` over the attempts of registered graphs. Without any it can still renew,
    and bring back what others lost.
    """

    def __init__(  # noqa: PLR0913 - a store, what knows it, and who is told
        self,
        database: Database,
        registry: Registry | None = None,
        *,
        waiters: Waiters | None = None,
        sweep_interval: float = SWEEP_INTERVAL,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.database = database
        self.records = Records(database.dialect)
        self.registry = registry or Registry(database, self.records)
        self._clock = clock or SystemClock()
        self._claimer = AttemptClaimer(database, self.records, self.registry)
        self._claims = self._claimer.claims
        self._settler = AttemptSettler(
            self.records, self.registry, self._claims, waiters or Waiters()
        )
        self.sweeper = FlowSweeper(
            database,
            self.records,
            self._claims,
            self.registry,
            interval=sweep_interval,
            clock=self._clock,
            events=events,
        )
        self._queue_cache = QueueCache(self._clock)
        self._unregistered: set[int] = set()
        self._refresh_at = self._clock.monotonic() + _REFRESH_INTERVAL
        self._rotation = 0

    # --- work.Source ---

    def register_owner(self, incarnation: Incarnation, *, page: str | None = None) -> int:
        self.registry.registered()
        return self.database.write(
            lambda tx: self._claims.register_owner(tx, incarnation, page=page)
        )

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,  # noqa: ARG002 - every attempt has its own
    ) -> ExchangeResult:
        queues = self._rotated_queues()
        polls = not (settlements and self._is_known_empty(queues))
        if polls and limit:
            self._queue_cache.invalidate()
        if (
            not settlements
            and self.database.has_single_writer
            and not self.database.read(lambda tx: self._has_ready(tx, queues))
        ):
            self._queue_cache.record_poll(has_waiting=False)
            return ExchangeResult([], [])
        try:
            return self._exchange(settlements, queues if polls else [], owner=owner, limit=limit)
        except PreconditionFailedError:
            return self._exchange(
                settlements, queues if polls else [], owner=owner, limit=limit, use_cache=False
            )

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds, skip=skip)
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.of_owner(tx, owner=owner))

    def sweep(self) -> int:
        if self._clock.monotonic() >= self._refresh_at:
            self._refresh_at = self._clock.monotonic() + _REFRESH_INTERVAL
            self.registry.refresh()
        return self.sweeper.sweep_due()

    def next_due(self) -> float | None:
        return self._queue_cache.next_due(self._query_next_due)

    def locator(self) -> dict[str, str] | None:
        """Nobody else renews attempts whose heartbeats have to come more often than a parent's."""
        if self._shortest_timeout() < PARENT_LEASE_SECONDS:
            return None
        return {
            "kind": SOURCE_KIND,
            "url": self.database.absolute_url,
            "name": ", ".join(graph_id.graph for graph_id in self.registry.graphs),
        }

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        notified, leave = self._queue_cache.listen(wakeup)
        undo = leave, self.database.listen(map(work_channel, self.registry.graphs), notified)
        return lambda: _call_all(undo)

    # --- hand over hand ---

    def write_with_lease(
        self, tx: Transaction, reservation: Reservation, graph_id: GraphId, work: EagerWork[T]
    ) -> T:
        """Do this, lease some of what it makes to a worker that has room, and give it that once
        it is committed.
        """
        requested_at, queues = self._clock.monotonic(), self.registry.registered()[graph_id].queues
        polls = not self._is_known_empty(queues)
        room = 0 if polls or reservation.is_closed else reservation.limit
        eager_lease = self._claimer.eager_lease(
            [graph_id], owner=reservation.owner, room=room, requested_at=requested_at
        )
        result, state = work(tx, eager_lease)
        self._register_again(tx, eager_lease)
        if state is None or not state.new_attempts:
            return result
        if (
            reservation.is_closed
        ):  # whoever began this has given up waiting for it, and the worker may have ended since
            self._claims.release(
                tx, [each.claim for each in eager_lease.claimed], blame=Blame.RELEASE
            )
            notify_workers(tx, [graph_id])
            return result
        claimed = (
            self._claimer.claim(
                tx,
                queues,
                owner=reservation.owner,
                limit=reservation.limit,
                requested_at=requested_at,
            )
            if polls
            else eager_lease.claimed
        )
        if (
            may_have_more(claimed, reservation.limit)
            if polls
            else eager_lease.reserved < len(state.new_attempts)
        ):
            notify_workers(tx, [graph_id])

        def give() -> None:
            self._remember(claimed, [(state, graph_id)], eager_lease)
            reservation.is_uncertain = not eager_lease.is_complete
            reservation.deliver(claimed, requested_at)

        tx.after_commit(give)
        return result

    # --- settling ---

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle without claiming; for each whether the attempt was still the claimant's."""

        def work(tx: Transaction) -> dict[Claim, bool]:
            result = self._settler.settle(tx, settlements)
            notify_workers(tx, result.ready)
            return result.settled

        settled = self.database.write(work)
        self._settler.forget(settlements)
        return [settled[each.claim] for each in settlements]

    # --- exchanging ---

    def _exchange(
        self,
        settlements: Sequence[Settlement],
        queues: Sequence[GraphQueue],
        *,
        owner: int,
        limit: int,
        use_cache: bool = True,
    ) -> ExchangeResult:
        """With `queues`, claim from them; without, no attempt is queued: lease those that the
        settlements make ready.
        """
        requested_at = self._clock.monotonic()
        room = 0 if queues else limit

        def work(tx: Transaction) -> tuple[SettledAttempts, EagerLease, list[ClaimedRow]]:
            eager_lease = self._claimer.eager_lease(
                list(self.registry.graphs), owner=owner, room=room, requested_at=requested_at
            )
            result = self._settler.settle(tx, settlements, eager_lease, use_cache=use_cache)
            self._register_again(tx, eager_lease)
            claimed = (
                self._claimer.claim(tx, queues, owner=owner, limit=limit, requested_at=requested_at)
                if queues and limit
                else eager_lease.claimed
            )
            if not queues or may_have_more(claimed, limit):
                notify_workers(tx, result.ready)
            return result, eager_lease, claimed

        result, eager_lease, claimed = self.database.write_inline(work)
        self._settler.forget(settlements)
        self._remember(claimed, result.written, eager_lease)
        if queues and limit:
            self._queue_cache.record_poll(has_waiting=may_have_more(claimed, limit))
        elif result.ready:
            self._queue_cache.record_poll(has_waiting=True)
        if not eager_lease.is_complete:
            raise StoreError(
                "it was written, but which attempts were leased by it was lost with the connection"
            )
        return ExchangeResult(
            [result.settled[each.claim] for each in settlements],
            claimed,
            is_queue_empty=not (queues or result.ready),
        )

    def _remember(
        self,
        claimed: Sequence[ClaimedRow],
        written: Sequence[tuple[ExecutionState, GraphId]],
        eager_lease: EagerLease,
    ) -> None:
        """After the commit: remember what was left, and whether somebody has struck us off."""
        self._settler.remember(claimed)
        self._settler.cache.put(written, eager_lease)
        if eager_lease.claimed:
            (
                self._unregistered.discard
                if eager_lease.is_owner_registered
                else self._unregistered.add
            )(eager_lease.owner)

    def _register_again(self, tx: Transaction, eager_lease: EagerLease) -> None:
        """One that held nothing for long may have been struck off. Where that is told with the
        commit, it is entered by the next one: a server's leases end without their owner, too.
        """
        if not eager_lease.is_owner_registered or eager_lease.owner in self._unregistered:
            self._claims.insert_owner(tx, eager_lease.owner)
            eager_lease.is_owner_registered = True

    # --- looking ---

    def _rotated_queues(self) -> list[GraphQueue]:
        """In which lines to look, another one first each time."""
        queues = list(
            chain.from_iterable(
                registered.queues for registered in self.registry.registered().values()
            )
        )
        self._rotation += 1
        start = self._rotation % max(len(queues), 1)
        return queues[start:] + queues[:start]

    def _is_known_empty(self, queues: Iterable[GraphQueue]) -> bool:
        """Whether nobody is in line. Where there are caps, somebody may be who could not come
        in.
        """
        return self._queue_cache.is_known_empty and not any(queue.caps for queue in queues)

    def _shortest_timeout(self) -> float:
        nodes = chain.from_iterable(graph.computed_nodes for graph in self.registry.graphs.values())
        return min((node.options.heartbeat_timeout_seconds for node in nodes), default=inf)

    def _has_ready(self, tx: Transaction, queues: Sequence[GraphQueue]) -> bool:
        return bool(
            tx.rows(
                self.records.sql["ready_queues"],
                {"queues": self.records.array_parameter([queue.number for queue in queues])},
            )
        )

    def _query_next_due(self) -> float | None:
        queues = self.records.array_parameter([queue.number for queue in self._rotated_queues()])
        [(wait,)] = self.database.read(
            lambda tx: tx.rows(self.records.sql["next_due"], {"queues": queues})
        )
        return None if wait is None else max(float(wait), 0.0)


def may_have_more(claimed: Sequence[ClaimedRow], limit: int) -> bool:
    """Whether something may be ready after a claim: it took as many as it wanted, or one that
    comes alone.
    """
    return len(claimed) >= limit or any(each.is_exclusive for each in claimed)


def _call_all(undo: Iterable[Callable[[], None]]) -> None:
    for each in undo:
        each()
