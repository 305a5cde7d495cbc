"""Explains the state of a tick in words: when it fires, that it is paused, that it has ended."""

from __future__ import annotations

from datetime import UTC, datetime

from longwatch.core.duration import format_duration
from longwatch.flow.attempt import LEASED, Attempt
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.node_status import NodeStatus
from longwatch.flow.nodes import Node, NodeKind
from longwatch.flow.ticks import last_due


def explain_tick(
    node: Node, state: ExecutionState, status: NodeStatus, *, now: float
) -> tuple[str, str] | None:
    """The state of a tick and a text that completes "the tick is …"; None if both are those of any
    other node.
    """
    attempt = state.open_attempts.get(node.name)
    if status is NodeStatus.PAUSED:
        return "paused", f"paused{_last_text(node, state)}; resume it to go on"
    if status is NodeStatus.ENDED:
        return "ended", f"ended: its schedule returned no further time{_last_text(node, state)}"
    if status is NodeStatus.FRESH:
        plan = "" if attempt is None else f"; {_plan_text(attempt, now)}"
        word = "done" if node.kind is NodeKind.TICK_ONCE else "up to date"
        return "fresh", f"{word}{_last_text(node, state)}{plan}"
    if (
        status is NodeStatus.ATTEMPT_OPEN
        and attempt is not None
        and attempt.due_at is not None
        and attempt.lease_state != LEASED
    ):
        return "waiting", f"scheduled: it {_plan_text(attempt, now)}"
    return None


def _plan_text(attempt: Attempt, now: float) -> str:
    if attempt.due_at is None:
        return "its next time is being computed"
    if attempt.due_at <= now:
        return f"fires as soon as a worker is free, was due at {time_text(attempt.due_at)}"
    return f"fires at {time_text(attempt.due_at)}, in {format_duration(attempt.due_at - now)}"


def _last_text(node: Node, state: ExecutionState) -> str:
    last = last_due(node, state)
    return "" if last is None else f", last due at {time_text(last)}"


def time_text(wall: float) -> str:
    """A wall time for people, in UTC, to the second."""
    return f"{datetime.fromtimestamp(wall, UTC):%Y-%m-%d %H:%M:%S} UTC"
