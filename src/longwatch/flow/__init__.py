"""Durable computation graphs that survive the death of their worker.

A graph is named nodes and what each waits for (`graph.py`, `nodes.py`, `gates.py`). An execution
stores a value for every node and a row for every attempt to compute one; an attempt is a claimable
row (`longwatch.store`), and the work engine runs it (`longwatch.engine`). The database is the
supervisor: any worker anywhere picks up what is ready, and what a dead one had is found by its
missing pulse.

The life of an attempt
    opened    in the transaction that made its node ready: a start, a set, or the result that it
              waited for (`propagation.py`)
    claimed   by a worker, with its inputs; `heartbeat_deadline` is its timeout from then,
              `deadline` is `abandon_after_seconds`. Where nobody is in line that is in the
              statement that opens it, for a worker that has room (`eager_lease.py`)
    computed  in a slot (`attempt_runner.py`): in a thread, on the loop, or in a process of its own;
              renewed with all others of its worker in one statement; watched by its worker, to the
              second (`attempt_watchdog.py`)
    settled   its result, what follows from it and the release of the claim are one transaction
              (`settler.py`, `execution_state.py`). An attempt without a result (raised, abandoned
              at a deadline, without a heartbeat, with its worker, by hand) is counted by one
              function, which also opens the next (`ExecutionState.fail`).

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

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
