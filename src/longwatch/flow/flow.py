"""`Flow`: a store and the graphs that are computed in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, Unpack

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.masking import mask_text
from longwatch.core.tracing import active as active_tracer
from longwatch.engine.event_logging import logged_events
from longwatch.errors import UnknownExecutionError, UsageError
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.eager_lease.leaser import LocalWorkers
from longwatch.flow.execution import Execution
from longwatch.flow.execution_metadata import encode_metadata
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.execution_summary import ExecutionSummary
from longwatch.flow.graph import Graph
from longwatch.flow.invocation import VALUE_CODEC
from longwatch.flow.listing import Conditions, Listing
from longwatch.flow.records import Records, change_channel, notify_workers
from longwatch.flow.registry import RegisteredGraph, Registry
from longwatch.flow.retention import Retention, validate_age, validate_finished
from longwatch.flow.save_callbacks import SaveCallbacks
from longwatch.flow.spans import change_work, encode_trace
from longwatch.flow.statistics import (
    GraphStatistics,
    read_statistics,
    require_stored,
    stored_graphs,
)
from longwatch.flow.sweeper import SweepRun
from longwatch.flow.waiters import Waiter, Waiters
from longwatch.flow.worker import FlowWorker
from longwatch.store.database import Database, Transaction
from longwatch.store.url import SQL_SCHEMES, open_database, suggest_url

MAX_IDEMPOTENCY_KEY_LENGTH = 1000
_SINGLETON_KEY = "\x1fsingleton "
"""The beginning of the key of an execution of `find_or_start`. It is not printable, so it differs
from every key of a user.
"""


class Flow:
    """Starts executions of its graphs, finds them again, and makes workers that compute them.

    `store` is a URL (`sqlite:///flow.db`, `postgresql://…`) or an open store. The constructor opens
    nothing. The first call that uses the store opens it and registers the graphs. `close` closes
    only a store that this Flow has opened. Thread-safe.

    A SQLite file gets its tables when it is opened. A PostgreSQL store needs `longwatch db
    migrate`, or `auto_migrate=True`.
    """

    def __init__(
        self,
        store: str | Database,
        graphs: Iterable[Graph] = (),
        *,
        auto_migrate: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.database = _open_store(store, auto_migrate=auto_migrate)
        self.clock = clock or SystemClock()
        self.records = Records(self.database.dialect)
        self.registry = Registry(self.database, self.records, graphs, clock=self.clock)
        self._listing = Listing(self.database, self.records, self.registry)
        self.local_workers = LocalWorkers()
        self.waiters = Waiters()
        self.save_callbacks = SaveCallbacks()
        self.closed = False
        """Whether `close` has closed the store."""
        self._events = logged_events()
        self._owns_database = not isinstance(store, Database)

    # --- executions ---

    def start(
        self,
        graph: str,
        /,
        inputs: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Execution:
        """Start an execution with these inputs set.

        If the graph has an execution of this key, return that one with its own inputs and its own
        metadata. `metadata` is a JSON object of at most 64 KiB beside the values. Inputs named like
        a parameter go into `inputs`. Raises UnknownGraphError, UsageError for a node that is not an
        input and for metadata that cannot be kept, and SerializationError.
        """
        graph_id = self.registry.find(graph, version)
        encoded = self.encode_inputs(graph_id, {**(inputs or {}), **named})
        return self._start(
            graph_id,
            encoded,
            _validate_key(idempotency_key),
            metadata=encode_metadata(metadata),
        )

    def find_or_start(
        self,
        graph: str,
        /,
        inputs: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Execution:
        """Find the one execution of a version of a graph that all callers share; start it if there
        is none.

        An execution that is found keeps its own inputs and metadata. One that was cancelled or
        archived is replaced. Executions of `start` are others.
        """
        graph_id = self.registry.find(graph, version)
        encoded = self.encode_inputs(graph_id, {**(inputs or {}), **named})
        return self._start(
            graph_id,
            encoded,
            f"{_SINGLETON_KEY}{graph_id.version}",
            metadata=encode_metadata(metadata),
            replaces_ended=True,
        )

    def execution(self, execution_id: str) -> Execution:
        """Find an execution by its id.

        Raises UnknownExecutionError, and UnknownGraphError if this Flow does not have its graph.
        """
        rows = _is_printable(execution_id) and self.database.read(
            lambda tx: tx.rows(self.records.sql["execution_by_id"], {"id": execution_id})
        )
        if not rows:
            raise UnknownExecutionError(
                f"there is no execution {execution_id!r} in {mask_text(self.database.url)}; "
                f"`longwatch flow ls` lists them"
            )
        number, graph, version = rows[0][:3]
        return Execution(self, execution_id, number, self.registry.find(graph, version))

    def executions(
        self,
        graph: str | None = None,
        *,
        sort: str = "-created",
        limit: int = 100,
        before: int | None = None,
        after: str | None = None,
        **conditions: Unpack[Conditions],
    ) -> list[ExecutionSummary]:
        """List the executions that meet all conditions, the newest first.

        `where` takes filters, such as `[value("country") == "CH", value("age") >= 18]`. `state` is
        one word or several. Archived executions are listed only with `include_archived`, or if
        their state is asked for. `sort` is `created`, `updated` or the name of a node, with `-` in
        front for the largest first. Sorted by a node, executions in which it has no value, or a
        list or an object, are left out. For the next page pass the `cursor` of the last execution
        as `after`. `before` leaves out executions with this `number` and above. Raises
        UnknownGraphError as `statistics` does, and UsageError for anything else that is wrong.
        """
        return self._listing.page(
            graph, conditions, sort=sort, limit=limit, before=before, after=after
        )

    def count(self, graph: str | None = None, **conditions: Unpack[Conditions]) -> int:
        """Count the executions that meet all conditions, which are those of `executions`."""
        return self._listing.count(graph, conditions)

    def statistics(self, graph: str) -> GraphStatistics:
        """Count the executions of all versions of a graph by state, and for each node how many
        have computed it and how long that takes.

        Reads every execution of the graph. Raises UnknownGraphError for a graph that was not given
        to this Flow and that the store does not have.
        """
        graphs = self.registry.graphs.values()
        return self.database.read(lambda tx: read_statistics(tx, self.records, graph, graphs))

    # --- work ---

    def worker(self, **settings: Any) -> FlowWorker:
        """Make a worker that computes nodes: `with flow.worker(concurrency=8): …`, or a loop in a
        LoopGroup. `settings` are those of `FlowWorker`.
        """
        return FlowWorker(self, **settings)

    def sweep(self) -> int:
        """Run all sweeps now: reclaim attempts of dead workers, and continue stalled executions.

        Returns how many rows changed.
        """
        return FlowClaimSource(self.database, self.registry, clock=self.clock).sweeper.sweep_all()

    def prune(
        self,
        *,
        older_than: float,
        graph: str | None = None,
        states: Sequence[str] | None = None,
        dry_run: bool = False,
        on_progress: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Remove finished executions that were last changed more than `older_than` seconds ago, in
        short transactions; returns how many.

        `states` are some of done, failed, cancelled, archived; None means all of them. Without a
        graph it removes those of all graphs in the store. `dry_run` only counts. `on_progress` gets
        the number of executions that each transaction removed. Raises UnknownGraphError as
        `statistics` does.
        """
        age, statuses = validate_age(older_than), validate_finished(states)
        retention = Retention(self.database, self.records, self.clock)
        graphs = self._stored_graphs(graph)
        if dry_run:
            return sum(retention.count(name, age=age, states=statuses) for name in graphs)
        return sum(
            retention.remove(name, age=age, states=statuses, on_batch=on_progress)
            for name in graphs
        )

    def sweeps(self, *, limit: int = 100) -> list[SweepRun]:
        """List the last sweeps of all workers, the newest first."""
        return FlowClaimSource(self.database, self.registry, clock=self.clock).sweeper.runs(
            limit=limit
        )

    # --- closing ---

    def close(self) -> None:
        """Close the store if this Flow has opened it. Waits a few seconds for calls of `on_save`.
        Idempotent.
        """
        self.save_callbacks.flush()
        if self._owns_database:
            self.closed = True
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Flow {mask_text(self.database.url)}: "
            f"{', '.join(graph_id.graph for graph_id in self.registry.graphs) or 'no graphs'}>"
        )

    # --- for graphs and executions ---

    def _stored_graphs(self, name: str | None) -> list[str]:
        """All graphs of the store; with a name only that one, which is stored or of this Flow."""
        if name is None:
            return self.database.read(lambda tx: stored_graphs(tx, self.records))
        if all(graph.name != name for graph in self.registry.graphs.values()):
            self.database.read(lambda tx: require_stored(tx, self.records, name))
        return [name]

    def _start(
        self,
        graph_id: GraphId,
        inputs: Mapping[str, str],
        key: str | None,
        *,
        metadata: str | None,
        replaces_ended: bool = False,
    ) -> Execution:
        def start(trace_context: str | None) -> Execution:
            return self._start_now(
                graph_id,
                inputs,
                key,
                metadata=metadata,
                trace_context=trace_context,
                replaces_ended=replaces_ended,
            )

        if (tracer := active_tracer()) is None:
            return start(None)
        with tracer.span(change_work("start", graph_id)) as span:
            execution = start(encode_trace(span))
            span.set({"longwatch.execution.id": execution.id})
        return execution

    def _start_now(  # noqa: PLR0913 - a new execution
        self,
        graph_id: GraphId,
        inputs: Mapping[str, str],
        key: str | None,
        *,
        metadata: str | None,
        trace_context: str | None,
        replaces_ended: bool,
    ) -> Execution:
        registered = self.registry.registered()[graph_id]
        execution_id = secrets.token_hex(8)

        def change(tx: Transaction) -> ExecutionState:
            state = ExecutionState(0, execution_id, graph_id)
            state.metadata = metadata
            state.trace_context = trace_context
            for node, text in inputs.items():
                state.set_value(node, text)
            self.registry.propagate(tx, state)
            while not self.records.insert(tx, state, key):
                existing = self._load_by_key(tx, registered, key)
                if existing is None:
                    continue
                if not (replaces_ended and (existing.cancelled or existing.archived)):
                    return existing
                tx.execute(self.records.sql["release_key"], {"execution": existing.number})
            return state

        found = self.write_execution(graph_id, change)
        if not found.number:  # the connection was lost before the reply to the commit
            return self.execution(found.id)
        return Execution(self, found.id, found.number, self.registry.find(*found.graph_id))

    def _load_by_key(
        self, tx: Transaction, registered: RegisteredGraph, key: str | None
    ) -> ExecutionState | None:
        """Lock and load the execution of this key, and propagate nodes that were added to its
        graph; None if it was deleted meanwhile.
        """
        rows = tx.rows(
            self.records.sql["execution_by_key"], {"graph": registered.graph.name, "key": key}
        )
        loaded = self.records.load(tx, [number for (number,) in rows])
        state = next(iter(loaded.values()), None)
        if state is not None and state.graph_id == registered.graph_id:
            self.registry.propagate(tx, state)
        return state

    def write_execution(
        self, graph_id: GraphId, change: Callable[[Transaction], ExecutionState]
    ) -> ExecutionState:
        """Change and save an execution in one transaction, and notify workers of new attempts."""
        self.registry.registered()  # registers before the transaction, which cannot contain another

        def change_and_call(tx: Transaction) -> ExecutionState:
            state = change(tx)
            if (graph := self.registry.graphs.get(state.graph_id)) is not None:
                self.save_callbacks.call_on_commit(tx, graph, state, self._events)
            return state

        if (eager_write := self.local_workers.reserve(graph_id)) is not None:
            return eager_write.write(change_and_call)

        def work(tx: Transaction) -> ExecutionState:
            state = change_and_call(tx)
            notify_workers(tx, self.records.save(tx, [state]))
            return state

        return self.database.write(work)

    def encode_inputs(self, graph_id: GraphId, values: Mapping[str, Any]) -> dict[str, str]:
        """Encode values of inputs as JSON, by node.

        Raises UsageError for a node that is not an input, SerializationError for a value that is
        not JSON.
        """
        graph = self.registry.graphs[graph_id]
        for name in values:
            graph.require_input(name)
        return {name: VALUE_CODEC.encode(value).decode() for name, value in values.items()}

    @contextmanager
    def waiting(self, execution: str, node: str) -> Iterator[Waiter]:
        """A waiter that is set when this node changes, or when a change concerns all nodes. The
        store also sets it from time to time, because notifications may get lost.
        """
        with self.waiters.waiting(execution, node) as waiter:
            leave = self.database.listen(
                (change_channel(execution, node), change_channel(execution)), waiter
            )
            try:
                yield waiter
            finally:
                leave()


def _open_store(store: Any, *, auto_migrate: bool) -> Database:
    if isinstance(store, Database):
        return store
    database = open_database(store, auto_migrate=auto_migrate)
    if database is None:
        raise UsageError(
            f"graphs are computed in a SQL store, which {mask_text(store)!r} does not name; "
            f"{suggest_url(store, SQL_SCHEMES)}"
        )
    return database


def _is_printable(text: Any) -> bool:
    return isinstance(text, str) and text.isprintable()


def _validate_key(key: Any) -> str | None:
    if key is not None and (
        not isinstance(key, str)
        or not 1 <= len(key) <= MAX_IDEMPOTENCY_KEY_LENGTH
        or not key.isprintable()
    ):
        raise UsageError(
            f"idempotency_key must be printable text of 1 to {MAX_IDEMPOTENCY_KEY_LENGTH} "
            f"characters, not {key!r}"
        )
    return key
