"""Callers of this process that wait for a value. A worker of the same process delivers the value to
them after its commit, which saves them a read.

A value is delivered only to callers that wait at that moment, and only if it is fresh, as a read
would have found it. Workers of other processes deliver nothing. So a waiting caller also listens to
the store and reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from longwatch.core.clock import Wakeup
from longwatch.flow.execution_state import ExecutionState
from longwatch.flow.explanation import node_statuses
from longwatch.flow.graph import Graph
from longwatch.flow.node_status import FRESH_STATUSES
from longwatch.store.database import Transaction
from longwatch.store.forks import register_fork_hooks


class ComputedValue(NamedTuple):
    """A value as JSON, with its revision."""

    json: str
    revision: int


class Waiter(Wakeup):
    """One waiting caller; `computed` is the last value that was delivered to it."""

    __slots__ = ("computed",)

    def __init__(self) -> None:
        super().__init__()
        self.computed: ComputedValue | None = None

    def deliver(self, computed: ComputedValue) -> None:
        self.computed = computed
        self.set()

    def take(self) -> ComputedValue | None:
        computed, self.computed = self.computed, None
        return computed


class Waiters:
    """The waiting callers by execution and node. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[tuple[str, Waiter], ...]] = {}
        self._lock = threading.Lock()
        register_fork_hooks(self)

    @contextmanager
    def waiting(self, execution: str, node: str) -> Iterator[Waiter]:
        entry = node, Waiter()
        with self._lock:
            self._waiting[execution] = (*self._waiting.get(execution, ()), entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                remaining = tuple(
                    each for each in self._waiting.get(execution, ()) if each is not entry
                )
                if remaining:
                    self._waiting[execution] = remaining
                else:
                    self._waiting.pop(execution, None)

    # --- forks ---

    def before_fork(self) -> None:
        """Nothing to do before a fork."""

    def after_fork_in_parent(self) -> None:
        """Nothing to do in the parent."""

    def after_fork_in_child(self) -> None:
        """Forget all waiters: the waiting threads do not exist in the child."""
        self._waiting = {}
        self._lock = threading.Lock()

    # --- delivery ---

    def deliver_on_commit(self, tx: Transaction, graph: Graph, state: ExecutionState) -> None:
        """Deliver the fresh values of changed nodes to their waiters, after the commit."""
        waiting = [
            each for each in self._waiting.get(state.id, ()) if each[0] in state.changed_nodes
        ]
        if not waiting:
            return
        statuses = node_statuses(graph, state)
        for node, waiter in waiting:
            if statuses.get(node) in FRESH_STATUSES and state.is_set(node):
                computed = ComputedValue(state.nodes[node].value or "null", state.revision_of(node))
                tx.after_commit(partial(waiter.deliver, computed))
