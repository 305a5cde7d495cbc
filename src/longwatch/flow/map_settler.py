"""Ends attempts of the elements of maps, without loading their executions.

The transaction locks the executions and the attempts, writes how the elements ended, lowers the
`pending` counters of the maps by as many, and opens the next elements. Only the end of the last
element loads the execution: `finish_map` then ends the attempt of the map, with the list of the
results or with the indices of the failed elements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from longwatch.flow.attempt import AttemptEnd, AttemptEndCause, AttemptState, NewAttempt
from longwatch.flow.attempt_failure import count_failure
from longwatch.flow.execution_state import ExecutionState, GraphId
from longwatch.flow.map_opener import join_values, too_large_error
from longwatch.flow.map_records import (
    ClaimedElement,
    FailedElement,
    OpenMap,
    claimed_element,
    element_row,
    next_attempt_row,
)
from longwatch.flow.records import Records, cancel_channel, end_row, notify_workers
from longwatch.store.claims import Claim
from longwatch.store.database import Transaction

_MAX_NAMED = 10
"""Failed elements that an error names."""


class ElementEnding(NamedTuple):
    """How the attempt of an element ends: with a result as JSON, or with a cause."""

    claim: Claim
    cause: AttemptEndCause
    result: str | None = None
    error: str | None = None
    traceback: str | None = None
    delay: float = 0.0


class EndedElements(NamedTuple):
    """The ended attempts of elements of one execution; `work_reports.HasEnds`."""

    graph_id: GraphId
    execution: str
    attempt_ends: list[AttemptEnd]
    numbers: dict[Claim, int]
    """The numbers of the attempts, by their claims."""


@dataclass(slots=True)
class EndedMaps:
    """What `end_elements` did: the executions whose elements ended, the maps whose last element
    ended, and the graphs that have new attempts in their queues.
    """

    by_execution: dict[int, EndedElements] = field(default_factory=dict)
    finished: list[tuple[int, str]] = field(default_factory=list)
    ready: set[GraphId] = field(default_factory=set)

    @property
    def claims(self) -> set[Claim]:
        """The claims that held."""
        return {claim for each in self.by_execution.values() for claim in each.numbers}


def end_elements(
    tx: Transaction,
    records: Records,
    endings: Sequence[ElementEnding],
    executions: Iterable[int],
) -> EndedMaps:
    """End these attempts; one whose claim does not hold changes nothing.

    `executions` are all executions that the transaction is going to lock: it locks them here, in
    the order of their numbers.
    """
    numbers = records.array_parameter(sorted(set(executions)))
    found, claimed, open_maps = tx.rows_many(
        [
            (records.sql["executions"], {"executions": numbers}),
            records.maps.claimed_query([each.claim for each in endings]),
            records.maps.open_maps_query(numbers),
        ]
    )
    result = EndedMaps(
        {row[0]: EndedElements(GraphId(row[5], row[6]), row[1], [], {}) for row in found}
    )
    ending_by_claim = {each.claim: each for each in endings}
    elements = [
        each for each in map(claimed_element, claimed) if each.execution in result.by_execution
    ]
    ended = _write_ends(
        tx, records, [(each, ending_by_claim[each.claim]) for each in elements], result
    )
    for each in map(OpenMap._make, open_maps):
        _count_ended(tx, records, each, ended[each.execution, each.node], result)
    result.by_execution = {
        number: each for number, each in result.by_execution.items() if each.attempt_ends
    }
    return result


def _write_ends(
    tx: Transaction,
    records: Records,
    pairs: Sequence[tuple[ClaimedElement, ElementEnding]],
    result: EndedMaps,
) -> Counter[tuple[int, str]]:
    """Write how the elements ended, and insert the next attempts of those that are tried again.
    Returns how many elements of each map ended for good.
    """
    rows, opened = [], []
    ended: Counter[tuple[int, str]] = Counter()
    for element, ending in pairs:
        execution = result.by_execution[element.execution]
        execution.attempt_ends.append(_end(element, ending))
        execution.numbers[element.claim] = element.number
        rows.append(element_row(element, ending.result))
        if ending.result is not None or element.record.failed:
            ended[element.execution, element.node] += 1
            continue
        new_attempt = _next_attempt(element, ending.delay)
        opened.append(next_attempt_row(element, new_attempt))
        result.ready.add(execution.graph_id)
        if new_attempt.is_suspect:  # the worker that settles it may not run suspects
            notify_workers(tx, [execution.graph_id])
    ends = [end for each in result.by_execution.values() for end in each.attempt_ends]
    records.write_rows(tx, "end_attempt", list(map(end_row, ends)))
    records.maps.write_rows(tx, "end_element", rows)
    records.write_rows(tx, "insert_attempt", opened)
    return ended


def _end(element: ClaimedElement, ending: ElementEnding) -> AttemptEnd:
    """End an attempt, and count it if it failed."""
    if ending.result is not None:
        element.record.reset_attempts(None)
        return AttemptEnd(
            element.claim.seq, AttemptState.SUCCESS, AttemptEndCause.DONE, node=element.node
        )
    failure = count_failure(
        element.record,
        ending.cause,
        max_attempts=element.spec.max_attempts,
        error=ending.error,
        traceback=ending.traceback,
    )
    return AttemptEnd(element.claim.seq, *failure, element.node)


def _next_attempt(element: ClaimedElement, delay: float) -> NewAttempt:
    record = element.record
    return NewAttempt(
        element.node,
        element.computed_with,
        record.spent_attempts + 1,
        record.failed_attempts,
        record.crashes,
        record.lost,
        delay,
        element.spec,
        element=element.element,
    )


def _count_ended(
    tx: Transaction, records: Records, open_map: OpenMap, ended: int, result: EndedMaps
) -> None:
    if not ended:
        return
    records.maps.count_ended(tx, open_map, ended)
    if open_map.opened is not None:
        result.ready.add(result.by_execution[open_map.execution].graph_id)
    if open_map.pending <= ended:
        result.finished.append((open_map.execution, open_map.node))


def finish_map(tx: Transaction, records: Records, state: ExecutionState, node: str) -> None:
    """End the attempt of a map whose last element ended."""
    attempt = state.open_attempts.get(node)
    if attempt is None:
        return
    size = records.maps.size(tx, state.number, node)
    if size.missing:
        failed = records.maps.failed(tx, state.number, node, limit=_MAX_NAMED)
        error: str | None = _failure_text(failed, size.missing)
    else:
        error = too_large_error(node, size.characters)
    if error is None:
        results = records.maps.results(tx, state.number, node)
        value = join_values([each.value or "null" for each in results])
        error = too_large_error(node, len(value.encode()))
    if error is None:
        state.succeed(attempt, value)
    else:
        state.fail(attempt, AttemptEndCause.PERMANENT, error=error)


def _failure_text(failed: Sequence[FailedElement], count: int) -> str:
    """`elements 3, 17 and 40 failed; the first: …`."""
    named = name_elements([each.position for each in failed], count)
    return f"{named} failed; the first: {failed[0].error}"


def name_elements(indices: Sequence[int], count: int) -> str:
    """`element 3`, `elements 3, 17 and 40`, or `elements 3, 17 … and 90 others`."""
    named = [str(index) for index in indices[:_MAX_NAMED]]
    if count == 1:
        return f"element {named[0]}"
    if count > len(named):
        return f"elements {', '.join(named)} and {count - len(named):,} others"
    return f"elements {', '.join(named[:-1])} and {named[-1]}"


def abandon_elements(tx: Transaction, records: Records, state: ExecutionState, node: str) -> int:
    """Abandon the running elements of a map on request; returns how many."""
    claims = records.maps.leased(tx, state.number, node)
    if not claims:
        return 0
    endings = [
        ElementEnding(claim, AttemptEndCause.ASKED, error="abandoned by hand") for claim in claims
    ]
    ended = end_elements(tx, records, endings, [state.number])
    for _, each in ended.finished:
        finish_map(tx, records, state, each)
    tx.notify(cancel_channel(state.graph_id))
    notify_workers(tx, ended.ready)
    return len(ended.claims)
