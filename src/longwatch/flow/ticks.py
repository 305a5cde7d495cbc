"""Propagates and settles ticks: nodes whose attempts wait for a time.

    schedule   A tick with a function opens an ordinary attempt first. Its result is the time of the
               firing. A tick with a delay, an interval or a cron expression needs no such attempt.
    fire       The firing is an attempt with `due_at`. It waits in the queue like any delayed
               attempt, and runs no code. Its due time becomes the value, with a new revision.
    again      A recurring tick is scheduled again in the transaction of its firing. The next time
               is after the present time: an outage is caught up once. It is also after the last
               due time: a clock that is behind cannot fire a tick twice.
    end        A schedule that returns None ends the tick until an input changes.

A change of an input cancels the open attempt, and the tick is scheduled anew.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from longwatch.flow.attempt import Attempt, AttemptEndCause, AttemptSpec
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.node_record import NodeRecord
from longwatch.flow.node_status import NodeStatus
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.schedules import MIN_SPACING, ScheduleAnswer, decode_answer

_ENDED = "ended "
"""In front of the inputs in `attempted_with`: with these inputs the tick has ended."""

# --- propagation ---


def tick_status(node: Node, state: ExecutionState, inputs: str) -> NodeStatus:
    """The status of a tick whose gate is met and whose upstream nodes are settled."""
    record = state.nodes.get(node.name) or NodeRecord()
    if record.failed and record.attempted_with == inputs:
        return NodeStatus.FAILED
    if has_ended(node, state, inputs):
        return NodeStatus.ENDED
    if record.paused:
        return NodeStatus.PAUSED
    is_recurring = node.kind is NodeKind.TICK_RECURRING
    if not is_recurring and record.is_set and record.computed_with == inputs:
        return NodeStatus.FRESH
    if not state.has_attempt(node.name, inputs):
        return NodeStatus.READY
    return NodeStatus.FRESH if is_recurring and record.is_set else NodeStatus.ATTEMPT_OPEN


def open_tick(
    node: Node, state: ExecutionState, inputs: str, spec: AttemptSpec, *, now: float
) -> None:
    """Open the next attempt of a tick: its firing, or the call of its schedule function."""
    if node.schedule is None:
        state.open_attempt(node.name, inputs, spec)
        return
    last = last_due(node, state)
    is_same = last is not None and state.node(node.name).computed_with == inputs
    due = node.schedule.next_due(_not_before(now, last), last if is_same else None)
    if due is None:
        _end(node, state, inputs)
    else:
        state.open_attempt(node.name, inputs, spec, due_at=due)


def has_ended(node: Node, state: ExecutionState, inputs: str) -> bool:
    """Whether a node is a tick that never fires with these inputs, or never again."""
    record = state.nodes.get(node.name)
    return record is not None and record.attempted_with == f"{_ENDED}{inputs}"


def drop_outdated_end(node: Node, state: ExecutionState, inputs: str) -> None:
    """Forget that a tick has ended if that was with other inputs than these."""
    record = state.nodes.get(node.name)
    if (
        record is not None
        and (record.attempted_with or "").startswith(_ENDED)
        and not has_ended(node, state, inputs)
    ):
        record.reset_attempts(None)
        state.changed_nodes.add(node.name)


def last_due(node: Node, state: ExecutionState) -> float | None:
    """The due time of the last firing of a tick; None if it has no value."""
    return float(state.value(node.name)) if state.is_set(node.name) else None


# --- settlement ---


def settle_tick(
    node: Node, state: ExecutionState, attempt: Attempt, result: str, *, now: float
) -> None:
    """End an attempt of a tick: keep its firing, or open the firing that its schedule function
    has asked for.
    """
    if attempt.due_at is not None:
        fired = msgspec.json.encode(attempt.due_at).decode()
        state.succeed(attempt, fired, always_new=True)
    else:
        _settle_schedule(node, state, attempt, decode_answer(result), now=now)


def _settle_schedule(
    node: Node, state: ExecutionState, attempt: Attempt, answer: ScheduleAnswer, *, now: float
) -> None:
    record, last = state.node(node.name), last_due(node, state)
    is_again = last is not None and record.computed_with == attempt.computed_with
    if answer.is_never:
        state.end_schedule(attempt)
        _end(node, state, attempt.computed_with)
        return
    due = _not_before(now, last) + (answer.after or 0.0) if answer.at is None else answer.at
    if is_again and last is not None:
        if answer.at is not None and answer.at <= last:
            _fail_repeated(node, state, attempt, answer.at)
            return
        due = max(due, last + MIN_SPACING)
    state.end_schedule(attempt)
    state.open_attempt(node.name, attempt.computed_with, attempt.spec, due_at=due)


def _fail_repeated(node: Node, state: ExecutionState, attempt: Attempt, at: float) -> None:
    """Fail a schedule that returned a time that has fired. It may be right after the delay: the
    clock of its machine may be behind.
    """
    failures = 1 + state.node(node.name).failed_attempts
    state.fail(
        attempt,
        AttemptEndCause.RAISED,
        error=(
            f"the time {datetime.fromtimestamp(at, UTC)} of tick {node.name!r} has fired already; "
            f"return a later time, or None to end the tick"
        ),
        delay=node.options.retry.delay(failures),
    )


def _end(node: Node, state: ExecutionState, inputs: str) -> None:
    """Note that a tick does not fire any more with these inputs. A firing with other inputs is
    cleared.
    """
    record = state.node(node.name)
    if record.computed_with != inputs:
        state.unset_value(node.name)
    record.reset_attempts(f"{_ENDED}{inputs}")
    state.changed_nodes.add(node.name)


def _not_before(now: float, last: float | None) -> float:
    return now if last is None else max(now, last)


# --- requests ---


def set_paused(node: Node, state: ExecutionState, *, paused: bool) -> None:
    """Pause a recurring tick and cancel its open attempt, or resume it. Idempotent."""
    record = state.node(node.name)
    if record.paused is paused:
        return
    record.paused = paused
    state.changed_nodes.add(node.name)
    attempt = state.open_attempts.get(node.name)
    if paused and attempt is not None:
        state.cancel_attempt(attempt, AttemptEndCause.ASKED)
