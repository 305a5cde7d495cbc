"""Sweeps of flow workers: reclaim the attempts of dead workers and continue stalled executions.

    dead        at every call: owners that have certainly ended. Their begun attempts are abandoned
                as `crash` or `lost` and tried again at once.
    abandoned   every 10 s: attempts whose heartbeat has lapsed, or whose deadline has passed
    stalled     every 60 s: executions of a graph that have no open attempt, though a node could be
                computed. Only executions that may be stalled are read: those whose last writer left
                an attempt open, and those that were settled when the graph had fewer nodes.
    index       every 10 s, until it is complete: values of nodes that are indexed (`indexing.py`)
    retention   every 60 s, for graphs with `retention_days`: finished executions that are older,
                and older attempts of executions with ticks (`retention.py`)

In a store that one machine uses, every worker runs them. In a store that many machines share, the
worker that has the turn of a graph does (`turn_sweeper.py`). An error in one sweep does not stop
the others. The first worker that finds a periodic sweep due runs it and records its result; the
others skip it. A sweep finds rows by a read, locks their executions, and changes a row only if it
is still unchanged. It skips executions that another transaction has locked. So sweepers that meet
do not wait for each other, and a sweeper that froze in the middle delays no other. The sweeper
reads beat pages and processes of owners before the transaction, because a file may be slow.
`attempt_blame` decides how each attempt ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import NamedTuple, TypeVar

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptAbandoned
from longwatch.core.jitter import random_fraction
from longwatch.flow.attempt import AttemptEndCause
from longwatch.flow.attempt_blame import ReclaimedLease, end_cause
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.indexing import COMPLETE, NodeIndexes
from longwatch.flow.indexing import sweep_name as index_sweep_name
from longwatch.flow.lapsed_owners import LapsedOwners
from longwatch.flow.map_settler import ElementEnding, EndedMaps, end_elements, finish_map
from longwatch.flow.records import LoadedExecutions, Records, ValidClaim, notify_workers
from longwatch.flow.registry import Registry
from longwatch.flow.retention import DAY_SECONDS, Retention
from longwatch.flow.work_reports import emit_ends_on_commit, emit_sweep, run_reported
from longwatch.host.incarnation import boot_id
from longwatch.store.blame import Blame
from longwatch.store.claims import Claim, Claims
from longwatch.store.database import Database, Parameters, Transaction
from longwatch.store.sweep import ClaimSweeper, LeaseOwner

SWEEP_INTERVAL = 10.0
STALLED_INTERVAL = 60.0
STALLED_SECONDS = 1.0
"""Seconds after which a sweep for stalled executions begins no further page."""
RETENTION_INTERVAL = 60.0
RETENTION_SECONDS = 1.0
"""Seconds after which a sweep for finished executions begins no further transaction."""
PAGE_SIZE = 200
"""Attempts or executions in one transaction: a sweep never holds the store for long."""
_MAX_RUNS = 1000

T = TypeVar("T")


class SweepRun(NamedTuple):
    """One recorded run of a sweep."""

    sweep: str
    started_at: float
    seconds: float
    row_count: int
    error: str | None


class FlowSweeper:
    """The sweeps over one store. Only the sweep for stalled executions needs the graphs."""

    def __init__(  # noqa: PLR0913 - a store, its parts, and the seams of a worker
        self,
        database: Database,
        records: Records,
        claims: Claims,
        registry: Registry,
        *,
        interval: float = SWEEP_INTERVAL,
        clock: Clock | None = None,
        events: Events | None = None,
    ) -> None:
        self.events = events or Events()
        self.interval = interval
        self._database = database
        self._records = records
        self._claims = claims
        self._registry = registry
        self._clock = clock or SystemClock()
        self.claim_sweeper = ClaimSweeper(claims, is_shared=database.is_shared)
        self._indexes = NodeIndexes(database)
        self._complete_indexes: set[tuple[int, str]] = set()
        self._retention = Retention(database, records, self._clock)
        self._lapsed_owners = LapsedOwners(database, records, self.claim_sweeper, self._clock)
        self._not_before: dict[str, float] = {}

    def sweep_due(self) -> int:
        """Run the sweeps that are due; returns how many rows they changed.

        Runs all of them, then raises the first error.
        """
        is_overdue = self._clock.monotonic() >= self._lapsed_owners.look_again_at
        return self._run_all(
            [
                self.reclaim_from_dead_owners,
                *self._timed_sweeps(0.0 if is_overdue else self.interval, STALLED_INTERVAL),
                *self._index_sweeps(self.interval),
                *self._retention_sweeps(RETENTION_INTERVAL),
            ]
        )

    def sweep_all(self) -> int:
        """Run every sweep, due or not, and hold no owner (`lapsed_owners`)."""
        return self._run_all(
            [
                self.reclaim_from_dead_owners,
                *self._timed_sweeps(0.0, 0.0, holds=False),
                *self._index_sweeps(0.0),
                *self._retention_sweeps(0.0),
            ]
        )

    def runs(self, *, limit: int) -> list[SweepRun]:
        """List recorded runs, the newest first."""
        rows = self._database.read(
            lambda tx: tx.rows(self._records.sql["sweep_runs"], {"limit": limit})
        )
        return [SweepRun(*row) for row in rows]

    # --- owners that have ended ---

    def reclaim_from_dead_owners(self) -> int:
        """Reclaim the attempts of ended owners, and delete owners that hold none."""
        return run_reported("dead", self._reclaim_from_dead, self.events, self._clock)

    def _reclaim_from_dead(self) -> int:
        return sum(map(self._reclaim_from, self._database.read(self.claim_sweeper.dead_owners)))

    def _reclaim_from(self, owner: LeaseOwner) -> int:
        leased = self._database.read(
            lambda tx: tx.rows(
                self._records.sql["leases_of_owner"], {"owner": owner.id, "limit": PAGE_SIZE}
            )
        )
        if not leased:
            if self._database.write(lambda tx: self.claim_sweeper.delete_owner(tx, owner)):
                self.claim_sweeper.remove_pages([owner])
            return 0
        if not self.claim_sweeper.has_ended(owner.incarnation):
            return 0
        look = self._lapsed_owners.look_at(owner)
        return self._reclaim([look.lease(row) for row in leased])

    # --- leases that have ended ---

    def _reclaim_lapsed(self, *, holds: bool = True) -> int:
        """Reclaim all lapsed attempts, a page at a time.

        Skips a row that cannot be reclaimed, and raises its error at the end. Attempts that lapse
        meanwhile, of owners that were not looked at, wait for the next sweep.
        """
        looks = self._lapsed_owners.look(holds=holds)
        unseen = [each for each, look in looks.items() if look.is_held and not look.end.is_alive]
        found, seen, errors = 0, list[int](), []
        while looks:
            parameters = {
                "boot": boot_id(),
                "skip": self._records.array_parameter(seen),
                "skip_owners": self._records.array_parameter(unseen),
                "limit": PAGE_SIZE,
            }
            rows = self._database.read(
                lambda tx, parameters=parameters: tx.rows(  # type: ignore[misc]
                    self._records.sql["lapsed_leases"], parameters
                )
            )
            try:
                found += self._reclaim(
                    [looks[row[1]].lease(row) for row in rows if row[1] in looks]
                )
            except Exception as error:  # noqa: BLE001 - the next page has nothing to do with it
                errors.append(error)
            if len(rows) < PAGE_SIZE:
                break
            seen += [row[0] for row in rows]
        if errors:
            raise errors[0]
        return found

    def _reclaim(self, lost: Sequence[ReclaimedLease]) -> int:
        """Reclaim leases in one transaction; if that fails, one by one, so that a bad row does not
        stop the others.
        """
        return self._retry_one_by_one(lost, self._reclaim_together)

    def _reclaim_together(self, lost: Sequence[ReclaimedLease]) -> int:
        def work(tx: Transaction) -> tuple[int, list[AttemptAbandoned]]:
            loaded, gone = self._records.load_unlocked(tx, (each.execution for each in lost))
            valid = self._records.unlocked_claims(
                tx,
                [each.claim for each in lost if each.execution in loaded or each.execution in gone],
            )
            due = [
                (each, found)
                for each in lost
                if (found := valid.get(each.claim)) and each.is_due(found)
            ]
            self._records.cancel_orphans(tx, [found for _, found in due if found.execution in gone])
            ends = [
                (found, state := loaded[found.execution], end_cause(each, found, state))
                for each, found in due
                if found.execution in loaded
            ]
            unspent = {found.claim: state for found, state, cause in ends if cause is None}
            self._claims.release(tx, sorted(unspent), blame=Blame.RELEASE)
            notify_workers(tx, {state.graph_id for state in unspent.values()})
            spent = [(found, state, cause) for found, state, cause in ends if cause is not None]
            abandoned = [
                abandonment
                for found, state, cause in spent
                if found.element is None and (abandonment := _abandon(found, state, cause))
            ]
            elements = {
                found.claim: cause for found, _, cause in spent if found.element is not None
            }
            ended = self._abandon_elements(tx, elements, loaded) if elements else EndedMaps()
            abandoned += _abandonments(ended, elements)
            notify_workers(tx, self._records.save(tx, loaded.values()) | ended.ready)
            emit_ends_on_commit(
                tx, self.events, chain(loaded.values(), ended.by_execution.values())
            )
            return len(unspent) + len(abandoned), abandoned

        count, abandoned = self._database.write(work)
        for event in abandoned:
            self.events.emit(event)
        return count

    def _abandon_elements(
        self,
        tx: Transaction,
        causes: Mapping[Claim, AttemptEndCause],
        loaded: LoadedExecutions,
    ) -> EndedMaps:
        """Abandon elements of maps, and end the maps whose last element that was."""
        endings = [
            ElementEnding(claim, cause, error=_ERROR_TEXTS[cause])
            for claim, cause in causes.items()
        ]
        ended = end_elements(tx, self._records, endings, loaded)
        for execution, node in ended.finished:
            finish_map(tx, self._records, loaded[execution], node)
            self._registry.propagate(tx, loaded[execution])
        return ended

    # --- stalled executions ---

    def _propagate_stalled(self, graph_id: GraphId) -> int:
        """Propagate the executions of a graph that may be stalled and have no open attempt.

        It reads them a page at a time, from where the last run stopped. Executions that were
        settled with all nodes of the graph are not read: the index has them elsewhere.
        """
        name = {"sweep": _sweep_name(graph_id)}
        [(position,)] = self._database.read(
            lambda tx: tx.rows(self._records.sql["sweep_position"], name)
        ) or [(0,)]
        moved, errors = 0, []
        after: tuple[int, int] | None = (0, position)
        stop_at = self._clock.monotonic() + STALLED_SECONDS
        while after is not None:
            page = self._unsettled_page(graph_id, after)
            try:
                moved += self._retry_one_by_one(
                    [number for _, number, is_open in page if not is_open], self._propagate
                )
            except Exception as error:  # noqa: BLE001 - the next page has nothing to do with it
                errors.append(error)
            after = page[-1][:2] if len(page) == PAGE_SIZE else None
            if self._clock.monotonic() >= stop_at:
                break
        self._set_position(name, position, after)
        if errors:
            raise errors[0]
        return moved

    def _unsettled_page(
        self, graph_id: GraphId, after: tuple[int, int]
    ) -> list[tuple[int, int, bool]]:
        """Settled nodes, number, and whether an attempt is open, of the executions after this."""
        parameters = {
            **graph_id._asdict(),
            "nodes": len(self._registry.graphs[graph_id].computed_nodes),
            "after_nodes": after[0],
            "after": after[1],
            "limit": PAGE_SIZE,
        }
        query = self._records.sql["unsettled_executions"]
        rows = self._database.read(lambda tx: tx.rows(query, parameters))
        return [(settled, number, bool(is_open)) for settled, number, is_open in rows]

    def _set_position(self, name: Parameters, position: int, after: tuple[int, int] | None) -> None:
        """Keep where the next run continues. Executions that a run has settled leave the range, so
        only a position among those with open attempts has to be kept.
        """
        next_position = after[1] if after is not None and not after[0] else 0
        if next_position != position:
            self._write_position(name, next_position)

    def _write_position(self, name: Parameters, position: int) -> None:
        self._database.write(
            lambda tx: tx.execute(
                self._records.sql["set_sweep_position"], {**name, "position": position}
            )
        )

    def _propagate(self, executions: Sequence[int]) -> int:
        def work(tx: Transaction) -> int:
            loaded, _ = self._records.load_unlocked(tx, executions)
            for state in loaded.values():
                self._registry.propagate(tx, state)
            notify_workers(tx, self._records.save(tx, loaded.values()))
            return sum(state.has_changes for state in loaded.values())

        return self._database.write(work) if executions else 0

    # --- indexes ---

    def _index_sweeps(self, interval: float) -> Iterator[Callable[[], int]]:
        """One sweep for every indexed node whose index may not be complete."""
        for graph in sorted({graph_id.graph for graph_id in self._registry.graphs}):
            for node in sorted(self._registry.indexed_nodes(graph)):
                name = index_sweep_name(graph, node)
                if (self._database.generation, name) not in self._complete_indexes:
                    yield partial(self._run_index_sweep, graph, node, name, interval)

    def _run_index_sweep(self, graph: str, node: str, name: str, interval: float) -> int:
        if self._database.read(lambda tx: node in self._indexes.complete(tx, graph)):
            self._complete_indexes.add((self._database.generation, name))
            return 0
        return self._run_timed("index", name, interval, lambda: self._add_to_index(graph, node))

    def _add_to_index(self, graph: str, node: str) -> int:
        """Add values to the index of a node, a page at a time, from where the last run stopped."""
        name = {"sweep": index_sweep_name(graph, node)}
        [(position,)] = self._database.read(
            lambda tx: tx.rows(self._records.sql["sweep_position"], name)
        )
        added, stop_at = 0, self._clock.monotonic() + STALLED_SECONDS
        while position < COMPLETE and self._clock.monotonic() < stop_at:
            count, position = self._indexes.add_page(graph, node, position)
            added += count
            self._write_position(name, position)
        return added

    # --- running sweeps ---

    def _run_all(self, sweeps: Iterable[Callable[[], int]]) -> int:
        found, errors = 0, []
        for sweep in sweeps:
            try:
                found += sweep()
            except Exception as error:  # noqa: BLE001 - raised after the other sweeps
                errors.append(error)
        if errors:
            raise errors[0]
        return found

    def _timed_sweeps(
        self, abandoned_interval: float, stalled_interval: float, *, holds: bool = True
    ) -> Iterator[Callable[[], int]]:
        """The periodic sweeps. The one for stalled executions runs once per graph, by a worker that
        has the graph.
        """
        yield lambda: self._run_timed(
            "abandoned", "abandoned", abandoned_interval, lambda: self._reclaim_lapsed(holds=holds)
        )
        for graph_id in self._registry.graphs:
            yield lambda graph_id=graph_id: self._run_timed(  # type: ignore[misc]
                "stalled",
                _sweep_name(graph_id),
                stalled_interval,
                lambda: self._propagate_stalled(graph_id),
            )

    def _retention_sweeps(self, interval: float) -> Iterator[Callable[[], int]]:
        """One sweep for every graph that does not keep its executions. Of its versions, the last
        one decides.
        """
        last_versions = {graph.name: graph for graph in self._registry.graphs.values()}
        for name, graph in last_versions.items():
            if graph.retention_days is not None:
                remove = partial(self._remove_old, name, graph.retention_days * DAY_SECONDS)
                yield partial(self._run_timed, "retention", f"retention/{name}", interval, remove)

    def _remove_old(self, graph: str, age: float) -> int:
        removed = self._retention.remove(graph, age=age, max_seconds=RETENTION_SECONDS)
        return removed + self._retention.trim(graph, age=age, max_seconds=RETENTION_SECONDS)

    def _run_timed(
        self, name: str, sweep_name: str, interval: float, sweep: Callable[[], int]
    ) -> int:
        """Run a sweep if it is due and no other worker runs it, and record its result."""
        now = self._clock.monotonic()
        if interval and now < self._not_before.get(sweep_name, -inf):
            return 0
        self._not_before[sweep_name] = now + interval * (0.8 + 0.2 * random_fraction())
        parameters = {"sweep": sweep_name, "interval": interval * 0.75}
        if not self._database.write(lambda tx: self._claim_sweep(tx, parameters)):
            return 0
        try:
            row_count = sweep()
        except Exception as error:
            self._record_run(name, now, 0, describe_error(error))
            raise
        self._record_run(name, now, row_count, None)
        return row_count

    def _claim_sweep(self, tx: Transaction, parameters: Parameters) -> bool:
        if (insert := self._records.sql.get("insert_sweep")) is not None:
            tx.execute(insert, {"sweep": parameters["sweep"]})
        return bool(tx.rows(self._records.sql["claim_sweep"], parameters))

    def _record_run(self, name: str, started: float, row_count: int, error: str | None) -> None:
        seconds = self._clock.monotonic() - started
        emit_sweep(self.events, name, seconds, row_count, error)
        run = {
            "sweep": name,
            "seconds": seconds,
            "row_count": row_count,
            "error": error,
        }

        def work(tx: Transaction) -> None:
            tx.execute(self._records.sql["insert_sweep_run"], run)
            tx.execute(self._records.sql["trim_sweep_runs"], {"keep": _MAX_RUNS})

        self._database.write(work)

    def _retry_one_by_one(self, rows: Sequence[T], work: Callable[[Sequence[T]], int]) -> int:
        if not rows:
            return 0
        try:
            return work(rows)
        except Exception:
            if len(rows) == 1:
                raise
            return self._run_all([lambda row=row: work([row]) for row in rows])  # type: ignore[misc]


def _abandon(
    valid: ValidClaim, state: ExecutionState, cause: AttemptEndCause
) -> AttemptAbandoned | None:
    """Abandon an attempt, which opens another one within its budget; returns the event."""
    attempt = state.open_attempts.get(valid.node)
    if attempt is None or attempt.seq != valid.claim.seq:
        return None
    state.fail(attempt, cause, error=_ERROR_TEXTS[cause])
    return AttemptAbandoned(
        execution=state.id, node=attempt.node, attempt=attempt.number, cause=str(cause)
    )


def _abandonments(
    ended: EndedMaps, causes: Mapping[Claim, AttemptEndCause]
) -> list[AttemptAbandoned]:
    """The events of abandoned elements."""
    return [
        AttemptAbandoned(
            execution=each.execution, node=end.node, attempt=number, cause=str(causes[claim])
        )
        for each in ended.by_execution.values()
        for end, (claim, number) in zip(each.attempt_ends, each.numbers.items(), strict=True)
    ]


_ERROR_TEXTS = {
    AttemptEndCause.DEADLINE: "it took longer than abandon_after_seconds",
    AttemptEndCause.HEARTBEAT: "its worker sent no heartbeat for heartbeat_timeout_seconds",
    AttemptEndCause.CRASH: "its worker ended while it ran",
    AttemptEndCause.LOST: "its worker was lost with its host or its parent",
}


def _sweep_name(graph_id: GraphId) -> str:
    return f"stalled/{graph_id.graph}/{graph_id.version}"
