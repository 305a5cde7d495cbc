"""Sweeps the attempts of graphs for one engine in a SQL store that many machines share, by turns.

    turn of a graph       all sweeps that are due (`sweeper.py`), and a look for attempts that wait
    lock of this host     attempts of dead owners that this host sees

`store.sweep_turns` describes the turns, `store.host_owners` the lock. The holder of a turn looks
once a second, and when the next delayed attempt is due. If an attempt can be claimed, it notifies
the workers of the graph. The claim frees the due attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import NamedTuple

from longwatch.core.clock import Clock
from longwatch.engine.claim_source import GivenUp, SweepRound
from longwatch.flow.execution_state import GraphId
from longwatch.flow.records import TABLE, Records, work_channel
from longwatch.flow.registry import GraphQueue, Registry
from longwatch.flow.sweeper import FlowSweeper
from longwatch.host.incarnation import Incarnation
from longwatch.store.blame import DEFAULT_BUDGET
from longwatch.store.claims import NO_LIMIT, RowSelection
from longwatch.store.database import Database, Transaction
from longwatch.store.host_owners import sql_host_owners
from longwatch.store.scan_bound import LookBounds
from longwatch.store.sweep_turns import SqlTurnStorage, SweepTurns, WaitingQueues

LOOK_INTERVAL = 1.0
"""Seconds between two looks of an engine that has a turn."""


class _Found(NamedTuple):
    """The queues in which attempts wait, and the seconds until a delayed attempt is due."""

    ready: frozenset[int]
    next_due: float


class FlowTurnSweeper:
    """The `EngineSweeper` of an engine over the registered graphs."""

    def __init__(  # noqa: PLR0913 - a store, its parts, and the engine
        self,
        database: Database,
        records: Records,
        registry: Registry,
        sweeper: FlowSweeper,
        *,
        refresh: Callable[[], None],
        incarnation: Incarnation,
        selection: RowSelection,
        clock: Clock,
    ) -> None:
        self._database = database
        self._records = records
        self._registry = registry
        self._sweeper = sweeper
        self._refresh = refresh
        self._clock = clock
        is_ordinary = selection is RowSelection.ORDINARY
        self._budgets = {
            "max_crashes": DEFAULT_BUDGET.max_crashes if is_ordinary else NO_LIMIT,
            "max_lost": DEFAULT_BUDGET.max_lost if is_ordinary else NO_LIMIT,
        }
        self._graphs = {_turn_name(graph_id): graph_id for graph_id in registry.graphs}
        self._turns = SweepTurns(
            SqlTurnStorage(database), list(self._graphs), holder=str(incarnation), clock=clock
        )
        self._owners = sql_host_owners(database, sweeper.claim_sweeper, TABLE, clock)
        self._bounds = LookBounds(database.scan_bounds, TABLE)
        self._waiting = WaitingQueues()
        self._look_at = -inf

    def sweep(self, on_given_up: Callable[[GivenUp], None]) -> SweepRound:  # noqa: ARG002 - a node that is given up is no dead letter
        self._refresh()
        led = {self._graphs[name] for name in self._turns.update()}
        has_dead = self._owners.find_dead() is not None
        changed = self._sweeper.reclaim_from_dead_owners() if has_dead else 0
        if not led:
            self._look_at = -inf
            return SweepRound(changed, leads=False)
        if self._clock.monotonic() >= self._look_at:
            self._look(led)
            changed += self._sweeper.sweep_due()
        return SweepRound(changed, next_in=self._look_at - self._clock.monotonic())

    def pause(self) -> None:
        self._turns.pause()
        self._owners.release()

    def close(self) -> None:
        self._owners.release()
        self._turns.release()

    def _look(self, led: Iterable[GraphId]) -> None:
        """Notify the workers of the graphs in which attempts wait, and plan the next look."""
        now = self._clock.monotonic()
        registered = self._registry.registered()
        queues = [queue for graph_id in led for queue in registered[graph_id].queues]
        found = self._database.read(lambda tx: self._find(tx, queues))
        self._look_at = now + min(LOOK_INTERVAL, self._sweeper.interval, found.next_due)
        ready = {queue.graph_id for queue in queues if queue.number in found.ready}
        self._waiting.notify(self._database, [work_channel(graph_id) for graph_id in ready])

    def _find(self, tx: Transaction, queues: Sequence[GraphQueue]) -> _Found:
        numbers = [each.number for each in queues]
        parameters = {"queues": self._records.array_parameter(numbers)}
        with self._bounds.begin_look(numbers) as lows:
            ready = tx.rows(
                self._records.sql["ready_queues"], {**parameters, **self._budgets, "lows": lows}
            )
        [(due,)] = tx.rows(self._records.sql["next_due_later"], parameters)
        return _Found(frozenset(number for (number,) in ready), inf if due is None else float(due))


def _turn_name(graph_id: GraphId) -> str:
    return f"{TABLE}/{graph_id.graph}/{graph_id.version}"
