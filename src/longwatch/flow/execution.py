"""`Execution`: the public handle of one execution of a graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from longwatch.core.deadline import Deadline
from longwatch.core.duration import format_duration
from longwatch.core.tracing import active as active_tracer
from longwatch.errors import (
    DeadlineExceededError,
    NotSetError,
    UnknownExecutionError,
    UsageError,
)
from longwatch.flow.archiving import archived_error
from longwatch.flow.attempt import LEASED, MAP_OPEN, AttemptEndCause
from longwatch.flow.computation import Computation, Value
from longwatch.flow.execution_metadata import merge_metadata, read_metadata
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.explanation import (
    Explanation,
    explain,
    node_statuses,
    require_attainable,
)
from longwatch.flow.graph import Graph
from longwatch.flow.history import HistoryEntry, read_history
from longwatch.flow.map_records import MapProgress
from longwatch.flow.map_settler import abandon_elements
from longwatch.flow.node_status import FRESH_STATUSES
from longwatch.flow.nodes import NodeKind
from longwatch.flow.records import LoadedExecutions, change_channel
from longwatch.flow.spans import change_work, encode_trace
from longwatch.flow.ticks import set_paused
from longwatch.store.database import Transaction

if TYPE_CHECKING:
    from longwatch.flow.flow import Flow

T = TypeVar("T")

_NOTIFIED_WITHIN = 0.9
"""Seconds. A waiter that was woken sooner was notified of a change. Later it may be the regular
wakeup of the store.
"""


class Execution:
    """Sets inputs, waits for values, and shows the state of one execution. Thread-safe; it caches
    nothing.
    """

    def __init__(self, flow: Flow, execution_id: str, number: int, graph_id: GraphId) -> None:
        self.id = execution_id
        self.graph = graph_id.graph
        self.version = graph_id.version
        self._flow = flow
        self._number = number
        self._graph_id = graph_id

    # --- inputs ---

    def set(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> int:
        """Set inputs in one revision, and queue the nodes that depend on them.

        Returns the new revision. A value that is equal to the present one changes nothing.
        """
        encoded = self._flow.encode_inputs(self._graph_id, {**(values or {}), **named})

        def work(state: ExecutionState) -> None:
            for node, text in encoded.items():
                state.set_value(node, text)

        return self._change(work)

    def unset(self, *nodes: str) -> int:
        """Unset inputs in one revision, and clear the values that depend on them.

        Returns the new revision. An input without a value stays as it is.
        """
        for node in nodes:
            self._definition.require_input(node)

        def work(state: ExecutionState) -> None:
            for node in nodes:
                state.unset_value(node)

        return self._change(work)

    # --- values ---

    def get(
        self,
        node: str,
        *,
        wait: bool = True,
        newer_than: int | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the value of a node.

        With `wait`, block until the value was computed from the present inputs, and is newer than
        the revision `newer_than` if given. Queues nodes that were added to the graph. Raises
        DeadlineExceededError after `timeout` seconds, ComputationFailedError as soon as the node
        cannot get a value, and NotSetError if the node has no value and `wait` is false.
        """
        self._definition.node(node)
        if not wait:
            return self._get_present(node, newer_than)
        return self._wait(node, newer_than, timeout)

    def value(self, node: str) -> Value | None:
        """The present value of a node with its revision, fresh or not; None if it is not set."""
        self._definition.node(node)
        return self._value(self._load_state(), node)

    def values(self) -> dict[str, Any]:
        """The values of all nodes that are set, by node."""
        state = self._load_state()
        return {node: state.value(node) for node in self._definition.nodes if state.is_set(node)}

    @property
    def revision(self) -> int:
        return self._load_state().revision

    # --- metadata ---

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata, a JSON object beside the values; empty if there is none."""
        records = self._flow.records
        return self._require_exists(
            self._flow.database.read(lambda tx: read_metadata(tx, records, self._number))
        )

    def set_metadata(self, changes: Mapping[str, Any], /) -> dict[str, Any]:
        """Merge these keys into the metadata, where None removes a key; returns the new metadata.

        It is no new revision, and also works after `cancel`. Raises UsageError if the result is not
        a JSON object of at most 64 KiB.
        """
        records = self._flow.records
        return self._require_exists(
            self._flow.database.write(lambda tx: merge_metadata(tx, records, self._number, changes))
        )

    # --- state ---

    def computations(self) -> list[Computation]:
        """All attempts, the oldest first."""
        query = self._flow.records.sql["attempts_of_execution"]
        rows = self._read(lambda tx: tx.rows(query, {"execution": self._number}))
        return [Computation.from_row(row) for row in rows]

    def history(self, node: str | None = None, *, limit: int = 100) -> list[HistoryEntry]:
        """How attempts ended and inputs changed, the newest first, of all nodes or of this one.

        The entry that left the present value of a node has it, with its revision.
        """
        if node is not None:
            self._definition.node(node)
        records, number = self._flow.records, self._number
        return self._read(lambda tx: read_history(tx, records, number, node=node, limit=limit))

    def explain(self) -> Explanation:
        """Explain for every node what state it is in and what it waits for."""
        state, maps = self._flow.database.read(self._load_with_maps)
        return explain(
            self._definition, self._require_loaded(state), maps, now=self._flow.registry.wall()
        )

    # --- operator actions ---

    def retry(self, node: str) -> int:
        """Try a node again now, with a new budget of attempts; returns the revision.

        The node was given up, or waits for its next attempt. Otherwise raises UsageError, also for
        a tick that waits for its time. Of a map, the failed elements are tried again, and the
        others keep their results.
        """
        self._require_computed(node)

        def work(state: ExecutionState) -> None:
            if state.cancelled:
                raise self._cancelled_error()
            attempt, record = state.open_attempts.get(node), state.nodes.get(node)
            if attempt is not None and attempt.lease_state == LEASED:
                raise UsageError(
                    f"node {node!r} of {self.id} is being computed; abandon it first, or wait"
                )
            if attempt is not None and attempt.due_at is not None:
                raise UsageError(
                    f"tick {node!r} of {self.id} is scheduled and fires at its time; see explain() "
                    f"or `longwatch flow explain`"
                )
            if attempt is None and not (record is not None and record.failed):
                raise UsageError(
                    f"node {node!r} of {self.id} was not given up, so there is nothing to "
                    f"retry; see explain() or `longwatch flow explain`"
                )
            if attempt is not None:
                state.cancel_attempt(attempt, AttemptEndCause.ASKED)
            if record is not None:
                record.reset_attempts(None)
                state.changed_nodes.add(node)

        return self._change(work)

    def abandon(self, node: str) -> int:
        """Abandon the running attempt of a node; returns the revision.

        It counts as failed, and another attempt is queued if `max_attempts` allows. Of a map, all
        running elements are abandoned. Raises UsageError if no attempt runs.
        """
        self._require_computed(node)

        def abandon_map(tx: Transaction, state: ExecutionState) -> None:
            attempt = state.open_attempts.get(node)
            if attempt is None or attempt.lease_state != MAP_OPEN:
                return
            if not abandon_elements(tx, self._flow.records, state, node):
                raise UsageError(
                    f"no element of map {node!r} of {self.id} is running; see explain() or "
                    f"`longwatch flow explain`"
                )

        def work(state: ExecutionState) -> None:
            if state.cancelled:
                raise self._cancelled_error()
            attempt = state.open_attempts.get(node)
            if attempt is not None and attempt.lease_state == MAP_OPEN:
                return
            if attempt is None:
                raise UsageError(
                    f"node {node!r} of {self.id} has no open attempt to abandon; see explain() or "
                    f"`longwatch flow explain`"
                )
            if attempt.lease_state != LEASED:
                raise UsageError(
                    f"node {node!r} of {self.id} is queued and not running; see explain() or "
                    f"`longwatch flow explain`"
                )
            state.fail(attempt, AttemptEndCause.ASKED, error="abandoned by hand")

        return self._change(work, also=abandon_map)

    def pause(self, node: str) -> int:
        """Pause a recurring tick: it does not fire until `resume`; returns the revision.
        Idempotent. Raises UsageError for any other node.
        """
        return self._set_paused(node, paused=True)

    def resume(self, node: str) -> int:
        """Resume a paused tick with its next time from now; returns the revision. Times that
        passed meanwhile are not caught up. Idempotent. Raises UsageError for any other node.
        """
        return self._set_paused(node, paused=False)

    def cancel(self) -> int:
        """Cancel all open attempts, for good; returns the revision. Values stay. Idempotent."""

        def work(state: ExecutionState) -> None:
            state.cancelled = True

        def cancel(tx: Transaction, _: ExecutionState) -> None:
            tx.execute(self._flow.records.sql["cancel_execution"], {"execution": self._number})
            tx.notify(change_channel(self.id))

        return self._change(work, also=cancel, allows_archived=True)

    def archive(self) -> int:
        """Archive the execution: cancel all open attempts, and hide it from lists; returns the
        revision. Values stay, and change no more until `unarchive`. Idempotent.
        """

        def work(state: ExecutionState) -> None:
            state.archived = True

        return self._change(work, allows_archived=True)

    def unarchive(self) -> int:
        """Continue an archived execution, and compute what was left; returns the revision. An
        archive node archives it again only after a change of its inputs. Ticks are scheduled from
        now, and times that passed meanwhile are not caught up. Idempotent.
        """

        def work(state: ExecutionState) -> None:
            state.archived = False

        return self._change(work, allows_archived=True)

    def __repr__(self) -> str:
        return f"<Execution {self.id} of {self.graph} {self.version}>"

    # --- internals ---

    @property
    def _definition(self) -> Graph:
        return self._flow.registry.graphs[self._graph_id]

    def _cancelled_error(self) -> UsageError:
        return UsageError(f"execution {self.id} was cancelled and changes no more; start another")

    def _require_computed(self, node: str) -> None:
        if self._definition.node(node).is_input:
            raise UsageError(
                f"node {node!r} of graph {self.graph!r} is an input and not computed; set it"
            )

    def _set_paused(self, node: str, *, paused: bool) -> int:
        tick = self._definition.node(node)
        if tick.kind is not NodeKind.TICK_RECURRING:
            raise UsageError(
                f"node {node!r} of graph {self.graph!r} is {tick.kind}, and only a recurring tick "
                f"can be paused; cancel() ends all nodes of an execution"
            )
        return self._change(lambda state: set_paused(tick, state, paused=paused))

    def _change(
        self,
        change: Callable[[ExecutionState], None],
        *,
        also: Callable[[Transaction, ExecutionState], None] = lambda _, __: None,
        allows_archived: bool = False,
    ) -> int:
        """Change the execution and propagate the change in one transaction; returns the
        revision.
        """

        def transaction(tx: Transaction) -> ExecutionState:
            state = self._require_loaded(self._flow.records.load(tx, [self._number]))
            self._flow.local_workers.forget(self._number)
            was_cancelled = state.cancelled
            if state.archived and not allows_archived:
                raise archived_error(self.id)
            change(state)
            also(tx, state)
            if was_cancelled and state.needs_write:
                raise self._cancelled_error()
            self._flow.registry.propagate(tx, state)
            return state

        if (tracer := active_tracer()) is None:
            return self._flow.write_execution(self._graph_id, transaction).revision
        with tracer.span(change_work("change", self._graph_id)) as span:
            span.set({"longwatch.execution.id": self.id})
            trace = {"execution": self._number, "trace_context": encode_trace(span)}

            def traced(tx: Transaction) -> ExecutionState:
                tx.execute(self._flow.records.sql["set_trace_context"], trace)
                return transaction(tx)

            return self._flow.write_execution(self._graph_id, traced).revision

    def _load_state(self) -> ExecutionState:
        loaded = self._flow.database.read(
            lambda tx: self._flow.records.load(tx, [self._number], for_update=False)
        )
        return self._require_loaded(loaded)

    def _load_with_maps(self, tx: Transaction) -> tuple[LoadedExecutions, dict[str, MapProgress]]:
        records = self._flow.records
        maps = records.maps.progress(tx, self._number) if self._definition.map_nodes else {}
        return records.load(tx, [self._number], for_update=False), maps

    def _require_loaded(self, loaded: LoadedExecutions) -> ExecutionState:
        return self._require_exists(loaded.get(self._number))

    def _read(self, work: Callable[[Transaction], T]) -> T:
        """Read rows of the execution, which has to exist."""
        records, number = self._flow.records, self._number

        def read(tx: Transaction) -> T | None:
            return work(tx) if read_metadata(tx, records, number) is not None else None

        return self._require_exists(self._flow.database.read(read))

    def _require_exists(self, found: T | None) -> T:
        if found is None:
            raise UnknownExecutionError(
                f"execution {self.id!r} does not exist any more; it was deleted, or its store "
                f"was restored"
            )
        return found

    def _value(self, state: ExecutionState, node: str) -> Value | None:
        if not state.is_set(node):
            return None
        is_input = self._definition.nodes[node].is_input
        fresh = is_input or node_statuses(self._definition, state)[node] in FRESH_STATUSES
        return Value(state.value(node), state.revision_of(node), fresh)

    def _is_outgrown(self, state: ExecutionState) -> bool:
        """Whether the graph has more nodes than when the execution was last propagated."""
        known = state.progress.known_nodes
        return not state.has_ended and known < len(self._definition.computed_nodes)

    def _upgrade(self) -> ExecutionState:
        """Propagate the nodes that were added to the graph, and load the execution again. Of
        several processes that do this at once, the first opens the attempts.
        """
        self._change(lambda _: None, allows_archived=True)
        return self._load_state()

    def _get_present(self, node: str, newer_than: int | None) -> Any:
        state = self._load_state()
        if self._is_outgrown(state):
            state = self._upgrade()
        found = self._value(state, node)
        if found is None or (newer_than is not None and found.revision <= newer_than):
            raise NotSetError(
                f"node {node!r} of {self.id} has no value"
                + ("" if found is None else f" newer than {newer_than}")
            )
        return found.value

    def _poll_value(self, node: str, newer_than: int | None, *, was_notified: bool) -> Value | None:
        """The awaited value if it exists; raises ComputationFailedError if it never will."""
        state = self._flow.database.read(
            lambda tx: self._load_if_relevant(tx, node, was_notified=was_notified)
        )
        if state is None:
            return None
        if self._is_outgrown(state):
            state = self._upgrade()
        found = self._value(state, node)
        if (
            found is not None
            and found.fresh
            and (newer_than is None or found.revision > newer_than)
        ):
            return found
        require_attainable(self._definition, state, node)
        return None

    def _is_computing_here(self, node: str) -> bool:
        """Whether a worker of this process is about to compute a node. It delivers the value to
        callers that wait, which then need no read.
        """
        return self._flow.local_workers.are_computing(
            self._number, node, known_nodes=len(self._definition.computed_nodes)
        )

    def _load_if_relevant(
        self, tx: Transaction, node: str, *, was_notified: bool
    ) -> ExecutionState | None:
        """Load the execution. Without a notification, ask a cheap query first whether the node may
        have a value: most polls end there.
        """
        if not was_notified:
            rows = tx.rows(
                self._flow.records.sql["may_have_value"],
                {
                    "execution": self._number,
                    "node": node,
                    "nodes": len(self._definition.computed_nodes),
                },
            )
            if rows and not rows[0][0]:
                return None
        return self._require_loaded(self._flow.records.load(tx, [self._number], for_update=False))

    def _wait(self, node: str, newer_than: int | None, timeout: float | None) -> Any:
        clock, deadline, was_notified = (
            self._flow.clock,
            Deadline.after(timeout, self._flow.clock),
            False,
        )
        with self._flow.waiting(self.id, node) as waiter:
            is_computing = self._is_computing_here(node)
            while True:
                waiter.clear()
                if (computed := waiter.take()) is not None and (
                    newer_than is None or computed.revision > newer_than
                ):
                    return msgspec.json.decode(computed.json)
                found = (
                    None
                    if is_computing
                    else self._poll_value(node, newer_than, was_notified=was_notified)
                )
                if found is not None:
                    return found.value
                if deadline.expired:
                    explanation = self.explain().describe(node)
                    raise DeadlineExceededError(
                        f"node {node!r} of {self.id} has no value after "
                        f"{format_duration(timeout or 0.0)}; {explanation}"
                    )
                began, is_computing = clock.monotonic(), False
                was_notified = (
                    clock.wait(waiter, deadline.remaining())
                    and clock.monotonic() - began < _NOTIFIED_WITHIN
                )
