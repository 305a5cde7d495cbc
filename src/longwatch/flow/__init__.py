"""Durable computation graphs that survive the death of their worker.

A graph is named nodes and what each waits for (`graph.py`, `nodes.py`, `gates.py`). An execution
stores a value for every node and a row for every attempt to compute one; an attempt is a claimable
row (`longwatch.store`), and the work engine runs it (`longwatch.work`). The database is the
supervisor: any worker anywhere picks up what is ready, and what a dead one had is found by its
missing pulse.

The life of an attempt
    opened    in the transaction that made its node ready: a start, a set, or the result that it
              waited for (`advancing.py`)
    claimed   by a worker, with its inputs; `heartbeat_deadline` is its timeout from then,
              `deadline` is `abandon_after_seconds`. Where nobody is in line that is in the
              statement that opens it, for a worker that has room (`leasing.py`)
    computed  in a slot (`running.py`): in a thread, on the loop, or in a process of its own;
              renewed with all others of its worker in one statement; watched by its worker, to the
              second (`overtime.py`)
    concluded its result, what follows from it and the release of the claim are one transaction
    (`concluding.py`, `standing.py`) or it came to nothing: raised, abandoned at a deadline, without
    a heartbeat, with its worker, by hand: one function counts it and opens the next
    (`standing.Standing.end`), whoever noticed

Invariants
    1. Whoever changes an execution has it to itself until the end of the transaction: nothing is
       written on a state that was read before another wrote. Every write counts in `changes`: who
       remembers an execution makes sure that nobody has written since.
    2. A result counts only for the (attempt, owner, term) that was claimed, and an attempt only for
       the inputs that it was opened with: a late one changes nothing, an upstream change calls off
       what was begun with the old value.
    3. Two limits, never one: `heartbeat_deadline` proves life and is short, `deadline` bounds one
       attempt and may be long. Each is found by the pulse of the worker itself and by every
       worker's sweep; null is no limit.
    4. Only attempts that had begun are spent; what was merely claimed goes back as it was.
    5. All times are the store's.

Failure cases
    A worker dies: one on the same machine sees that at once (`host.incarnation`), any other when
    the heartbeat is missing. A worker freezes, or cannot reach the store: its attempts are
    abandoned by others; it learns that its leases are not trusted, or that its claims do not hold,
    and its results are refused. Code runs away and still beats: its deadline ends it. A thread
    cannot be killed: it is told, its slot stays out of service. The store restarts: calls are tried
    again with backoff, renewals before trust ends; what was committed is there. Nobody opened what
    could be: the sweep for stalled executions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from longwatch.lazy import lazy_names

if TYPE_CHECKING:
    from longwatch.errors import ComputationFailedError as ComputationFailedError
    from longwatch.errors import FlowError as FlowError
    from longwatch.errors import GraphError as GraphError
    from longwatch.errors import NotSetError as NotSetError
    from longwatch.errors import UnknownExecutionError as UnknownExecutionError
    from longwatch.errors import UnknownGraphError as UnknownGraphError
    from longwatch.flow.context import FlowContext as FlowContext
    from longwatch.flow.execution import Computation as Computation
    from longwatch.flow.execution import Execution as Execution
    from longwatch.flow.execution import Summary as Summary
    from longwatch.flow.execution import Value as Value
    from longwatch.flow.explaining import Explanation as Explanation
    from longwatch.flow.flow import Flow as Flow
    from longwatch.flow.gates import Gate as Gate
    from longwatch.flow.gates import and_ as and_
    from longwatch.flow.gates import not_ as not_
    from longwatch.flow.gates import or_ as or_
    from longwatch.flow.gates import when as when
    from longwatch.flow.graph import Graph as Graph
    from longwatch.flow.nodes import Node as Node
    from longwatch.flow.nodes import compute as compute
    from longwatch.flow.nodes import input as input  # noqa: A004 - the contract's word
    from longwatch.flow.worker import FlowWorker as FlowWorker

_HOMES = {
    "ComputationFailedError": "longwatch.errors",
    "FlowError": "longwatch.errors",
    "GraphError": "longwatch.errors",
    "NotSetError": "longwatch.errors",
    "UnknownExecutionError": "longwatch.errors",
    "UnknownGraphError": "longwatch.errors",
    "FlowContext": "longwatch.flow.context",
    "Computation": "longwatch.flow.execution",
    "Execution": "longwatch.flow.execution",
    "Summary": "longwatch.flow.execution",
    "Value": "longwatch.flow.execution",
    "Explanation": "longwatch.flow.explaining",
    "Flow": "longwatch.flow.flow",
    "Gate": "longwatch.flow.gates",
    "and_": "longwatch.flow.gates",
    "not_": "longwatch.flow.gates",
    "or_": "longwatch.flow.gates",
    "when": "longwatch.flow.gates",
    "Graph": "longwatch.flow.graph",
    "Node": "longwatch.flow.nodes",
    "compute": "longwatch.flow.nodes",
    "input": "longwatch.flow.nodes",
    "FlowWorker": "longwatch.flow.worker",
}

__all__ = [
    "Computation",
    "ComputationFailedError",
    "Execution",
    "Explanation",
    "Flow",
    "FlowContext",
    "FlowError",
    "FlowWorker",
    "Gate",
    "Graph",
    "GraphError",
    "Node",
    "NotSetError",
    "Summary",
    "UnknownExecutionError",
    "UnknownGraphError",
    "Value",
    "and_",
    "compute",
    "input",
    "not_",
    "or_",
    "when",
]

if not TYPE_CHECKING:  # or a checker would take every misspelt name for one of these
    __getattr__ = lazy_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
