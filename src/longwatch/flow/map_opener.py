"""Opens and closes maps in the propagation of an execution: plans their elements, and ends a map at
once whose elements are all there.
"""

from __future__ import annotations

from collections.abc import Iterable

from longwatch.flow.attempt import AttemptEndCause, AttemptState, NewAttempt
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.graph import Graph
from longwatch.flow.invocation import MAX_VALUE_BYTES
from longwatch.flow.map_plan import (
    Element,
    MapInputError,
    StoredElement,
    closing_plan,
    plan_map,
    split_elements,
)
from longwatch.flow.map_records import ElementResult, MapRecords
from longwatch.flow.nodes import Node
from longwatch.flow.propagation import input_revisions
from longwatch.store.database import Transaction


def prepare_maps(tx: Transaction, records: MapRecords, graph: Graph, state: ExecutionState) -> bool:
    """Plan the elements of all maps that a propagation opened, and close those that it cancelled.

    The next save of the state writes the plans. Returns whether a map ended at once, so that the
    change has to be propagated.
    """
    has_ended = False
    for node in graph.map_nodes:
        new_attempt = state.new_attempts.get(node.name)
        if new_attempt is not None and new_attempt.pending is None:
            has_ended = _open(tx, records, node, state, new_attempt) or has_ended
        elif new_attempt is None and node.name not in state.open_attempts:
            _close(node, state)
    return has_ended


def _open(
    tx: Transaction, records: MapRecords, node: Node, state: ExecutionState, new: NewAttempt
) -> bool:
    assert node.over is not None
    try:
        elements = split_elements(state.nodes[node.over].value or "null", node.name, node.over)
    except MapInputError as error:
        state.give_up(node.name, new.computed_with, str(error))
        return True
    stored = records.stored(tx, state.number, node.name) if state.number else []
    others = input_revisions(node, state, without=node.over)
    plan = plan_map(elements, stored, others, max_in_flight=node.max_in_flight)
    state.map_plans[node.name] = plan
    if plan.pending:
        state.new_attempts[node.name] = new._replace(pending=plan.pending)
        return False
    too_large = None
    if stored and not plan.removed:
        too_large = too_large_error(node.name, records.size(tx, state.number, node.name).characters)
    values = "[]"
    if elements and too_large is None:
        values = _reused_values(elements, stored, records.results(tx, state.number, node.name))
        too_large = too_large_error(node.name, len(values.encode()))
    if too_large is not None:
        state.give_up(node.name, new.computed_with, too_large)
    else:
        state.compute_value(node.name, values, new.computed_with)
    return True


def _reused_values(
    elements: Iterable[Element], stored: Iterable[StoredElement], results: Iterable[ElementResult]
) -> str:
    """The value of a map whose elements are all computed."""
    keys = {each.element: each.key for each in stored}
    by_key = {keys[each.element]: each for each in results}
    return join_values([by_key[each.key].value or "null" for each in elements])


def _close(node: Node, state: ExecutionState) -> None:
    """Cancel the elements of a map whose attempt was cancelled; delete them if its gate is not met
    any more. A map that was superseded may have elements without an attempt or a value.
    """
    plan = state.map_plans.get(node.name)
    is_cancelled = any(
        end.node == node.name and end.state is AttemptState.CANCELLED for end in state.attempt_ends
    )
    if not state.has_ended and not node.gate.is_met(state):
        has_changed = state.number > 0 and not state.changed_nodes.isdisjoint(
            (node.name, *node.upstream)
        )
        if plan is not None or is_cancelled or has_changed:
            state.map_plans[node.name] = closing_plan(AttemptEndCause.GATE, is_cleared=True)
    elif is_cancelled and (plan is None or plan.pending):
        cause = AttemptEndCause.EXECUTION if state.has_ended else AttemptEndCause.SUPERSEDED
        state.map_plans[node.name] = closing_plan(cause)
    elif plan is not None and plan.pending:  # dropped again in the same transaction
        del state.map_plans[node.name]


def join_values(values: list[str]) -> str:
    return f"[{','.join(values)}]"


def too_large_error(node: str, size: int) -> str | None:
    """The error about the value of a map that has this many bytes or more; None if it is not too
    large.
    """
    if size <= MAX_VALUE_BYTES:
        return None
    return (
        f"the results of map {node!r} have {size:,} bytes or more together, and a value "
        f"{MAX_VALUE_BYTES:,} at most; store them elsewhere and let each say where"
    )
