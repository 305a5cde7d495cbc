"""Events about the work on graphs: ended attempts, and sweeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.flow import AttemptsEnded, FlowSweepFinished
from longwatch.flow.attempt import AttemptEnd
from longwatch.flow.execution_state import GraphId
from longwatch.store.database import Transaction

NO_SECONDS: Mapping[int, float | None] = MappingProxyType({})


class HasEnds(Protocol):
    """Attempts of one graph that a transaction ends."""

    @property
    def graph_id(self) -> GraphId: ...

    @property
    def attempt_ends(self) -> list[AttemptEnd]: ...


def emit_ends_on_commit(
    tx: Transaction,
    events: Events,
    states: Iterable[HasEnds],
    seconds: Mapping[int, float | None] = NO_SECONDS,
) -> None:
    """Emit the attempts that these executions end, after the commit: one event for all that ended
    in the same way. `seconds` are the durations that are known, by the number of the attempt.
    """
    if events.has_debug_observers:
        for event in _count_ends(states, seconds):
            tx.after_commit(partial(events.emit, event))


def _count_ends(
    states: Iterable[HasEnds], seconds: Mapping[int, float | None]
) -> list[AttemptsEnded]:
    groups: dict[tuple[str, str, str, str], list[float | None]] = {}
    for state in states:
        for end in state.attempt_ends:
            group = state.graph_id.graph, end.node, str(end.state), str(end.cause)
            groups.setdefault(group, []).append(seconds.get(end.seq))
    return [
        AttemptsEnded(
            graph=graph,
            node=node,
            state=state,
            cause=cause,
            attempts=len(lasted),
            durations=tuple(each for each in lasted if each is not None),
        )
        for (graph, node, state, cause), lasted in groups.items()
    ]


def run_reported(name: str, sweep: Callable[[], int], events: Events, clock: Clock) -> int:
    """Run a sweep; emit it if it changed rows or failed."""
    started = clock.monotonic()
    try:
        rows = sweep()
    except Exception as error:
        emit_sweep(events, name, clock.monotonic() - started, 0, describe_error(error))
        raise
    if rows:
        emit_sweep(events, name, clock.monotonic() - started, rows, None)
    return rows


def emit_sweep(events: Events, name: str, seconds: float, rows: int, error: str | None) -> None:
    events.emit(FlowSweepFinished(sweep=name, seconds=seconds, rows=rows, error=error or ""))
