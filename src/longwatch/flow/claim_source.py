"""The `ClaimSource` of the engine over the attempts of some graphs: claim, renew, settle, sweep.

An exchange settles attempts and claims the next ones in one transaction. While the queues are known
to be empty, the next ones are those that the results open, and `eager_lease` leases them as they
are inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from itertools import chain
from math import inf

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.events.base import Events
from longwatch.engine.claim_source import (
    ClaimedRow,
    EngineSweeper,
    EverySweep,
    ExchangeResult,
    GivenUp,
    Settlement,
    ignore_given_up,
)
from longwatch.engine.policy import PARENT_LEASE_SECONDS
from longwatch.flow.claimer import (
    AttemptClaimer,
    QueueCache,
    may_have_more,
    unselected_graphs,
)
from longwatch.flow.eager_lease.execution_cache import write_recalling
from longwatch.flow.eager_lease.leaser import EagerLeaser
from longwatch.flow.records import Records, notify_workers, work_channel
from longwatch.flow.registry import GraphQueue, Registry
from longwatch.flow.save_callbacks import SaveCallbacks
from longwatch.flow.settler import AttemptSettler, SettledAttempts
from longwatch.flow.sweeper import SWEEP_INTERVAL, FlowSweeper
from longwatch.flow.turn_sweeper import FlowTurnSweeper
from longwatch.flow.waiters import Waiters
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import DEFAULT_BUDGET
from longwatch.store.claims import NO_LIMIT, Claim, RowSelection
from longwatch.store.database import Database, Transaction

SOURCE_KIND = "flow"
_REFRESH_INTERVAL = 10.0


class FlowClaimSource:
    """An `engine.ClaimSource` over the attempts of registered graphs. Without graphs it renews and
    reclaims only.
    """

    def __init__(  # noqa: PLR0913 - a store, its graphs, and the seams of a worker
        self,
        database: Database,
        registry: Registry | None = None,
        *,
        waiters: Waiters | None = None,
        save_callbacks: SaveCallbacks | None = None,
        sweep_interval: float = SWEEP_INTERVAL,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.database = database
        self.records = Records(database.dialect)
        self.registry = registry or Registry(database, self.records, clock=clock)
        self._clock = clock or SystemClock()
        self._claimer = AttemptClaimer(database, self.records, self.registry)
        self._claims = self._claimer.claims
        self._settler = AttemptSettler(
            self.records,
            self.registry,
            self._claims,
            waiters or Waiters(),
            save_callbacks or SaveCallbacks(),
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
        self.emit_to(self.sweeper.events)
        self._queue_cache = QueueCache(self._clock)
        self.eager_leaser = EagerLeaser(
            database, self._claimer, self._settler, self._queue_cache, clock=self._clock
        )
        self._refresh_at = self._clock.monotonic() + _REFRESH_INTERVAL

    def emit_to(self, events: Events) -> None:
        """Emit ended attempts and sweeps to these events from now on."""
        self.sweeper.events = self._settler.events = events

    # --- engine.ClaimSource ---

    @property
    def is_shared(self) -> bool:
        return self.database.is_shared

    def register_owner(
        self,
        incarnation: Incarnation,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
    ) -> int:
        self.registry.registered()
        return self.database.write(
            lambda tx: self._claims.register_owner(
                tx, incarnation, page=page, parent=parent, renew_seconds=renew_seconds
            )
        )

    def report_draining(self, *, owner: int, is_draining: bool = True) -> None:
        self.database.write(
            lambda tx: self._claims.report_draining(tx, owner=owner, is_draining=is_draining)
        )

    def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        owner: int,
        limit: int,
        lease_seconds: float,  # noqa: ARG002 - every attempt has its own
        selection: RowSelection = RowSelection.ANY,
    ) -> ExchangeResult:
        queues = self._queues_in_turn()
        if settlements and self.eager_leaser.may_lease(queues, selection):
            return self.eager_leaser.exchange(settlements, owner=owner, limit=limit)
        if limit:
            self._queue_cache.invalidate()
        if (
            not settlements
            and self.database.has_single_writer
            and not self._has_ready(queues, selection)
        ):
            self._queue_cache.record_poll(has_waiting=False)
            return ExchangeResult([], [])
        claimed_at = self._clock.monotonic()

        def work(tx: Transaction, *, recall: bool) -> tuple[SettledAttempts, list[ClaimedRow]]:
            result = self._settler.settle(tx, settlements, recall=recall)
            claimed = (
                self._claimer.claim(
                    tx,
                    queues,
                    owner=owner,
                    limit=limit,
                    claimed_at=claimed_at,
                    selection=selection,
                )
                if limit
                else []
            )
            notify_workers(
                tx,
                result.ready
                if may_have_more(claimed, limit)
                else unselected_graphs(result.written, selection),
            )
            return result, claimed

        result, claimed = write_recalling(self.database, work)
        self._settler.record_commit(settlements, claimed, result.written, owner=owner)
        if limit or result.ready:
            self._queue_cache.record_poll(has_waiting=may_have_more(claimed, limit))
        return ExchangeResult([result.settled[each.claim] for each in settlements], claimed)

    def renew(self, *, owner: int, lease_seconds: float, skip: Collection[Claim] = ()) -> int:
        return self.database.write(
            lambda tx: self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds, skip=skip)
        )

    def renew_owners(self, owners: Sequence[int], *, lease_seconds: float) -> list[int]:
        return self.database.write(
            lambda tx: [
                self._claims.renew(tx, owner=owner, lease_seconds=lease_seconds) for owner in owners
            ]
        )

    def held(self, *, owner: int) -> list[Claim]:
        return self.database.read(lambda tx: self._claims.held(tx, owner=owner))

    def count_suspects(self, *, limit: int) -> int:
        """Count free suspects up to `limit`, without those that a cap holds back."""
        queues = {queue.number: queue for queue in self._queues_in_turn()}
        parameters = {
            "queues": self.records.array_parameter(list(queues)),
            "limit": limit,
            "max_crashes": DEFAULT_BUDGET.max_crashes,
            "max_lost": DEFAULT_BUDGET.max_lost,
        }

        def count(tx: Transaction) -> int:
            rows = tx.rows(self.records.sql["suspects_by_queue"], parameters)
            return sum(
                max(self._claimer.free_capacity(tx, queues[number], suspects), 0)
                for number, suspects in rows
                if suspects
            )

        return min(self.database.read(count), limit)

    def row_ids(self, seqs: Collection[int]) -> dict[int, str]:
        """The id of each attempt: EXECUTION/NODE."""
        parameters = {"seqs": self.records.array_parameter(list(seqs))}
        query = self.records.sql["row_ids"]
        rows = self.database.read(lambda tx: tx.rows(query, parameters)) if seqs else []
        return {seq: f"{execution}/{node}" for seq, execution, node in rows}

    def sweep(self, on_given_up: Callable[[GivenUp], None] = ignore_given_up) -> int:  # noqa: ARG002 - a node that is given up is no dead letter
        self._refresh()
        return self.sweeper.sweep_due()

    def sweeper_for(self, incarnation: Incarnation, *, selection: RowSelection) -> EngineSweeper:
        if not self.is_shared:
            return EverySweep(self.sweep)
        return FlowTurnSweeper(
            self.database,
            self.records,
            self.registry,
            self.sweeper,
            refresh=self._refresh,
            incarnation=incarnation,
            selection=selection,
            clock=self._clock,
        )

    def next_due(self) -> float | None:
        return self._queue_cache.next_due(self._query_next_due)

    def locator(self) -> dict[str, str] | None:
        """Where a parent finds this source to renew its leases; None if a heartbeat timeout is too
        short for that.
        """
        return None if self._shortest_timeout() < PARENT_LEASE_SECONDS else self.place()

    def place(self) -> dict[str, str]:
        """The store and its graphs, for reports. Opens nothing."""
        return {
            "kind": SOURCE_KIND,
            "url": self.database.absolute_url,
            "name": ", ".join(graph_id.graph for graph_id in self.registry.graphs),
        }

    def listen(self, wakeup: Wakeup) -> Callable[[], None]:
        undo = ExitStack()
        notified, leave = self._queue_cache.listen(wakeup)
        undo.callback(leave)
        undo.callback(self.database.listen(map(work_channel, self.registry.graphs), notified))
        return undo.close

    # --- settling ---

    def settle(self, settlements: Sequence[Settlement]) -> list[bool]:
        """Settle attempts and claim none; returns for each whether its claim still held."""

        def work(tx: Transaction) -> dict[Claim, bool]:
            result = self._settler.settle(tx, settlements)
            notify_workers(tx, result.ready)
            return result.settled

        settled = self.database.write(work)
        self._settler.forget(settlements)
        return [settled[each.claim] for each in settlements]

    # --- queues ---

    def _refresh(self) -> None:
        """Read the graphs again from time to time: other processes may have changed them."""
        if self._clock.monotonic() >= self._refresh_at:
            self._refresh_at = self._clock.monotonic() + _REFRESH_INTERVAL
            self.registry.refresh()

    def _queues_in_turn(self) -> list[GraphQueue]:
        registered = self.registry.registered().values()
        return self._claimer.fair_claims.in_turn(
            chain.from_iterable(each.queues for each in registered)
        )

    def _shortest_timeout(self) -> float:
        nodes = chain.from_iterable(graph.computed_nodes for graph in self.registry.graphs.values())
        return min((node.options.heartbeat_timeout_seconds for node in nodes), default=inf)

    def _has_ready(self, queues: Sequence[GraphQueue], selection: RowSelection) -> bool:
        if selection is RowSelection.SUSPECTS:
            return bool(self.count_suspects(limit=1)) or self._query_next_due() == 0.0
        is_ordinary = selection is RowSelection.ORDINARY
        parameters = {
            "queues": self.records.array_parameter([queue.number for queue in queues]),
            "max_crashes": DEFAULT_BUDGET.max_crashes if is_ordinary else NO_LIMIT,
            "max_lost": DEFAULT_BUDGET.max_lost if is_ordinary else NO_LIMIT,
        }
        query = self.records.sql["ready_queues"]
        return bool(self.database.read(lambda tx: tx.rows(query, parameters)))

    def _query_next_due(self) -> float | None:
        numbers = self.records.array_parameter([queue.number for queue in self._queues_in_turn()])
        query = self.records.sql["next_due"]
        [(wait,)] = self.database.read(lambda tx: tx.rows(query, {"queues": numbers}))
        return None if wait is None else max(float(wait), 0.0)
