"""Durable computation graphs: executions survive the death of their workers.

A graph consists of named nodes and of gates that decide when each is computed (`graph.py`,
`nodes.py`, `gates.py`). An execution stores a value for each node and a row for each attempt to
compute one. An attempt is a claimable row (`longwatch.store`), and the engine runs it
(`longwatch.engine`). Any worker on any machine claims ready attempts. A sweeper reclaims those of
dead workers, whose heartbeats are missing.

The life of an attempt
    opened    The transaction that made its node ready inserts it: a start, a set, or the result of
              another node (`propagation.py`).
    claimed   A worker leases it, with its inputs (`claimer.py`). `heartbeat_deadline` is its
              heartbeat timeout from then, `deadline` is its `abandon_after_seconds`. A worker of
              the same process may lease it in the statement that inserts it (`eager_lease/`).
    computed  The worker calls the function of the node in a slot (`attempt_runner.py`): in a
              thread, on the event loop, or in a process of its own (`isolated/`). One statement
              renews all leases of the worker. A watchdog checks its limits, to the second
              (`attempt_watchdog.py`).
    settled   One transaction stores the result, opens what follows from it, and ends the claim
              (`settler.py`). An attempt also ends without a result: it raised, was abandoned, or
              was cancelled. One function counts the failure and opens the next attempt, for every
              cause: `ExecutionState.fail`.

Invariants
    1. A transaction that changes an execution locks it first. Every write raises the count
       `changes`, so a cached execution can be proved unchanged.
    2. A result counts only for the claim (attempt, owner, term) that was settled, and only for the
       inputs that the attempt was opened with. A late result changes nothing. A change of an input
       cancels the attempts that were opened with its old value.
    3. There are two limits: `heartbeat_deadline` is short and proves that the worker lives,
       `deadline` bounds one attempt and may be long. The worker enforces both on its own attempts,
       and the sweep of every worker on all attempts. Null means no limit.
    4. Only attempts that had begun count as failed. An attempt that was claimed and not begun is
       released as it was.
    5. All times are those of the store's clocks.

Failure cases
    A worker dies: workers on the same machine detect it at once (`host.incarnation`), others when
    its heartbeats are missing.
    A worker freezes or cannot reach the store: other workers abandon its attempts. Its leases are
    not trusted any more, its claims do not hold, and its results are refused.
    Code runs too long while its worker renews the lease: the deadline ends the attempt. Python
    cannot kill a thread, so the code is cancelled, and its slot stays out of service until it ends.
    The store restarts: calls are retried with backoff, and renewals before the trust in a lease
    ends. Committed changes persist.
    An attempt that could be opened was not: the sweep for stalled executions opens it.
"""

from __future__ import annotations

from longwatch.lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__)
