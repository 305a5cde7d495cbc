"""The state of an execution and its transitions: pure decisions between the load and the save of
one transaction.

    set_value, unset_value  an input changes; all changes of one transaction share a revision
    succeed                 an attempt has a result. A new value is a new revision; an equal one
                            stops the propagation.
    fail                    an attempt ended without a result. It is counted, and another one is
                            opened unless that was the last. It is the one way for every cause: an
                            exception, a deadline, a sweep, a request.
    `propagation.propagate` then opens, cancels and clears what follows.

Each cause spends one budget of the node (`store.blame`):

    crash       `crashes`: the worker ended while the attempt ran; 3 give the node up as `poison`
    lost        `lost`: the worker ended with its host or its parent; 5 give it up as `lost`
    the others  `failed_attempts`: the code raised, was too slow or gave no sign of life;
                `max_attempts` give it up

The number of an attempt rises with every one of them. A released attempt spends nothing.

`computed_with` identifies the inputs of an attempt: the revisions of all upstream nodes, as a text.
So an attempt with other inputs is recognised, and its failures do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from longwatch.flow.attempt import (
    LEASED,
    Attempt,
    AttemptEnd,
    AttemptEndCause,
    AttemptSpec,
    AttemptState,
    NewAttempt,
)
from longwatch.flow.attempt_failure import count_failure
from longwatch.flow.map_plan import MapPlan
from longwatch.flow.node_record import NodeRecord

_CANONICAL = msgspec.json.Encoder(order="deterministic")


class GraphId(NamedTuple):
    """The graph that an execution belongs to."""

    graph: str
    version: str


class ExecutionStatus(IntEnum):
    """The state of an execution as its row has it. All but the first are settled: no attempt is
    open.
    """

    ACTIVE = 0  # an attempt is open
    IDLE = 1  # a node waits for an input
    FAILED = 2  # a node was given up
    DONE = 3  # nothing is left to compute, and no input is missing
    CANCELLED = 4
    ARCHIVED = 5


class Progress(NamedTuple):
    """What the last propagation of an execution left.

    `known_nodes` is the number of computed nodes that the graph had. `settled_nodes` is the same
    number if no attempt was left open, else 0.
    """

    known_nodes: int = 0
    settled_nodes: int = 0
    status: ExecutionStatus = ExecutionStatus.ACTIVE


class RecordedChange(NamedTuple):
    """A change of a node that a historian has recorded: the new value, and the entry. Both are None
    for none.
    """

    value: str | None
    entry: bytes | None


class ExecutionState:
    """One execution in a transaction that has locked it; a `gates.NodeView`.

    `changes` counts the writes of the execution; None for a new one. Two states of an execution
    with the same count are equal, except for the owners and terms of the open attempts.
    """

    def __init__(  # noqa: PLR0913 - the columns of its row
        self,
        number: int,
        execution_id: str,
        graph_id: GraphId,
        *,
        revision: int = 0,
        cancelled: bool = False,
        changes: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.number = number
        self.id = execution_id
        self.graph_id = graph_id
        self.revision = revision
        self.cancelled = cancelled
        self.metadata: str | None = None
        """The metadata of a new execution, as JSON."""
        self.trace_context: str | None = None
        """The headers of the span that starts a new execution, as JSON."""
        self.indexed_nodes: frozenset[str] = frozenset()
        """The nodes whose values an index finds."""
        self.changes = changes
        self.progress = self._loaded_progress = progress or Progress()
        self.archived = self.progress.status is ExecutionStatus.ARCHIVED
        self.nodes: dict[str, NodeRecord] = {}
        self.open_attempts: dict[str, Attempt] = {}
        self.changed_nodes: set[str] = set()
        self.value_changes: dict[str, bool] = {}
        """The nodes whose value has changed since the load, each with whether it was set then."""
        self.recorded_changes: dict[tuple[str, str], RecordedChange] = {}
        """What historians have recorded since the load, by historian and node."""
        self.new_attempts: dict[str, NewAttempt] = {}
        self.attempt_ends: list[AttemptEnd] = []
        self.map_plans: dict[str, MapPlan] = {}
        """What the next save changes about the elements of maps."""
        self._ended_attempts: list[Attempt] = []
        self._has_unchanged_result = False
        self._loaded_revision = revision

    # --- queries ---

    def node(self, name: str) -> NodeRecord:
        return self.nodes.setdefault(name, NodeRecord())

    def is_set(self, node: str) -> bool:
        found = self.nodes.get(node)
        return found is not None and found.is_set

    def value(self, node: str) -> Any:
        return msgspec.json.decode(self.nodes[node].value or "null")

    def revision_of(self, node: str) -> int:
        """The revision of a node's value; 0 if it is not set."""
        found = self.nodes.get(node)
        return found.revision if found is not None and found.is_set else 0

    def has_attempt(self, node: str, inputs: str) -> bool:
        """Whether an attempt of a node with these inputs is open, or about to be opened."""
        attempt, new_attempt = self.open_attempts.get(node), self.new_attempts.get(node)
        return (attempt is not None and attempt.computed_with == inputs) or (
            new_attempt is not None and new_attempt.computed_with == inputs
        )

    def new_values(self) -> set[str]:
        """The nodes that got a value of a new revision since the load."""
        if self.revision == self._loaded_revision:
            return set()
        return {node for node in self.changed_nodes if self.revision_of(node) == self.revision}

    @property
    def has_ended(self) -> bool:
        """Whether the execution was cancelled or archived, and has no attempts."""
        return self.cancelled or self.archived

    @property
    def has_changes(self) -> bool:
        """Whether a value, an attempt or the revision has changed since the load."""
        return bool(
            self.changed_nodes
            or self.new_attempts
            or self.attempt_ends
            or self.map_plans
            or self.revision != self._loaded_revision
        )

    @property
    def needs_write(self) -> bool:
        """Whether anything differs from the row that was loaded."""
        return self.has_changes or self.progress != self._loaded_progress

    @property
    def affects_all_nodes(self) -> bool:
        """Whether a change concerns waiters of unchanged nodes: a node was given up, a result was
        equal to the value before, or the execution was cancelled or archived.
        """
        return (
            self.has_ended
            or self._has_unchanged_result
            or any(self.nodes[node].failed for node in self.changed_nodes)
        )

    @property
    def cancels_running(self) -> bool:
        """Whether a running attempt was cancelled or abandoned on request."""
        cancelled = {
            attempt_end.seq
            for attempt_end in self.attempt_ends
            if attempt_end.state is AttemptState.CANCELLED
            or attempt_end.cause is AttemptEndCause.ASKED
        }
        return any(
            attempt.lease_state == LEASED and attempt.seq in cancelled
            for attempt in self._ended_attempts
        )

    # --- transitions ---

    def set_value(self, node: str, value: str, *, always_new: bool = False) -> None:
        """Set the value of a node; an equal value changes nothing, unless `always_new`."""
        record = self.node(node)
        if not always_new and record.is_set and _is_same_value(record.value, value):
            return
        self._note_value_change(node)
        record.is_set, record.value, record.revision = True, value, self._next_revision()

    def replace_value(self, node: str, value: str) -> None:
        """Change the value of a node and keep its revision; a node without a value gets one, which
        is a new revision.
        """
        record = self.node(node)
        if not record.is_set:
            self.set_value(node, value)
        elif not _is_same_value(record.value, value):
            self._note_value_change(node)
            record.value = value

    def unset_value(self, node: str) -> None:
        """Unset a node; a node without a value stays as it is."""
        record = self.node(node)
        if record.is_set:
            self._note_value_change(node)
            record.is_set, record.value, record.computed_with, record.revision = (
                False,
                None,
                None,
                self._next_revision(),
            )

    def succeed(self, attempt: Attempt, value: str, *, always_new: bool = False) -> None:
        """End an attempt with a result, which is a new revision if it differs or `always_new`."""
        self._end_attempt(attempt, AttemptState.SUCCESS, AttemptEndCause.DONE)
        self.compute_value(attempt.node, value, attempt.computed_with, always_new=always_new)

    def compute_value(
        self, node: str, value: str, inputs: str, *, always_new: bool = False
    ) -> None:
        """Set the value that was computed from these inputs, as a new revision if it differs or
        `always_new`. It drops a new attempt.
        """
        record = self.node(node)
        before = record.revision
        self.set_value(node, value, always_new=always_new)
        self._has_unchanged_result = self._has_unchanged_result or record.revision == before
        record.computed_with = inputs
        record.reset_attempts(None)
        self.changed_nodes.add(node)
        self.new_attempts.pop(node, None)

    def give_up(self, node: str, inputs: str, error: str) -> None:
        """Give a node up that cannot be computed from these inputs. It drops a new attempt."""
        record = self.node(node)
        record.reset_attempts(inputs)
        count_failure(record, AttemptEndCause.PERMANENT, max_attempts=1, error=error)
        self.changed_nodes.add(node)
        self.new_attempts.pop(node, None)

    def end_schedule(self, attempt: Attempt) -> None:
        """End an attempt that has computed when a tick fires. The value stays."""
        self._end_attempt(attempt, AttemptState.SUCCESS, AttemptEndCause.DONE)
        self.node(attempt.node).reset_attempts(None)

    def fail(
        self,
        attempt: Attempt,
        cause: AttemptEndCause,
        *,
        error: str | None = None,
        traceback: str | None = None,
        delay: float = 0.0,
    ) -> None:
        """End an attempt without a result: count it, and open another after the delay.

        If a budget is spent, the node is given up instead (`attempt_failure`).
        """
        record = self.node(attempt.node)
        if record.attempted_with != attempt.computed_with:
            record.reset_attempts(attempt.computed_with)
        failure = count_failure(
            record,
            cause,
            max_attempts=attempt.spec.max_attempts,
            error=error,
            traceback=traceback,
        )
        self._end_attempt(attempt, *failure)
        if not (record.failed or self.has_ended):
            self.open_attempt(
                attempt.node,
                attempt.computed_with,
                attempt.spec,
                delay=delay,
                due_at=attempt.due_at,
            )

    def cancel_attempt(self, attempt: Attempt, cause: AttemptEndCause) -> None:
        """End an attempt whose result is not needed any more."""
        self._end_attempt(attempt, AttemptState.CANCELLED, cause)

    def open_attempt(
        self,
        node: str,
        inputs: str,
        spec: AttemptSpec,
        *,
        delay: float = 0.0,
        due_at: float | None = None,
    ) -> None:
        """Open an attempt to compute a node from these inputs; with `due_at`, one that fires a
        tick at this wall time.
        """
        record = self.nodes.get(node)
        if record is None or record.attempted_with != inputs:
            self.new_attempts[node] = NewAttempt(node, inputs, 1, 0, 0, 0, delay, spec, due_at)
            return
        self.new_attempts[node] = NewAttempt(
            node,
            inputs,
            record.spent_attempts + 1,
            record.failed_attempts,
            record.crashes,
            record.lost,
            delay,
            spec,
            due_at,
        )

    def drop_outdated(self, node: str, inputs: str) -> None:
        """Drop a new attempt, or a give-up, that belongs to other inputs than these."""
        new_attempt, record = self.new_attempts.get(node), self.nodes.get(node)
        if new_attempt is not None and new_attempt.computed_with != inputs:
            del self.new_attempts[node]
        if record is not None and record.failed and record.attempted_with != inputs:
            record.reset_attempts(None)
            self.changed_nodes.add(node)

    def mark_written(self, opened: Mapping[str, Attempt]) -> None:
        """Make this the state that a load would return after the commit.

        `opened` has the rows of the new attempts, by node.
        """
        self.open_attempts.update(opened)
        self.changes = 0 if self.changes is None else self.changes + 1
        self._loaded_revision, self._has_unchanged_result = self.revision, False
        self._loaded_progress = self.progress
        for decided in (
            self.changed_nodes,
            self.value_changes,
            self.recorded_changes,
            self.new_attempts,
            self.attempt_ends,
            self.map_plans,
            self._ended_attempts,
        ):
            decided.clear()

    def _end_attempt(
        self,
        attempt: Attempt,
        state: AttemptState,
        cause: AttemptEndCause,
        error: str | None = None,
        traceback: str | None = None,
    ) -> None:
        if self.open_attempts.get(attempt.node) == attempt:
            del self.open_attempts[attempt.node]
        record = self.node(attempt.node)
        record.term = max(record.term, attempt.term)
        self.changed_nodes.add(attempt.node)
        self._ended_attempts.append(attempt)
        self.attempt_ends.append(
            AttemptEnd(attempt.seq, state, cause, error, traceback, attempt.node)
        )

    def _note_value_change(self, node: str) -> None:
        self.value_changes.setdefault(node, self.is_set(node))
        self.changed_nodes.add(node)

    def _next_revision(self) -> int:
        """The revision of all changes of this transaction."""
        self.revision = self._loaded_revision + 1
        return self.revision


def _is_same_value(old: str | None, new: str) -> bool:
    """Whether two JSON texts are the same value; the order of keys does not matter."""
    if old == new or old is None or len(old) != len(new):
        return old == new
    try:
        return _CANONICAL.encode(msgspec.json.decode(old)) == _CANONICAL.encode(
            msgspec.json.decode(new)
        )
    except RecursionError:  # too deep to compare: treating it as changed costs a computation
        return False
