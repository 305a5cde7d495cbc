"""Those of this process who wait for a value. Whoever computes it in the same process tells it to
them with the commit, and they need not read it.

It is told only to who waits at that moment, and was then that of the present inputs, as if it had
been read. What other processes compute they are not told: so whoever waits listens to the store as
well, and looks for himself.
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
from longwatch.flow.propagation import NodeStatus
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
    """Who waits for which node of which execution. Every method may be called from any thread."""

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
        """Nothing waits for a fork."""

    def after_fork_in_parent(self) -> None:
        """And nothing was held."""

    def after_fork_in_child(self) -> None:
        """In the child, nobody waits."""
        self._waiting = {}
        self._lock = threading.Lock()

    # --- delivery ---

    def deliver_on_commit(self, tx: Transaction, graph: Graph, state: ExecutionState) -> None:
        """Once this is committed, tell them what it has computed of what they wait for."""
        waiting = [
            each for each in self._waiting.get(state.id, ()) if each[0] in state.changed_nodes
        ]
        if not waiting:
            return
        statuses = node_statuses(graph, state)
        for node, waiter in waiting:
            if statuses.get(node) is NodeStatus.FRESH:
                computed = ComputedValue(state.nodes[node].value or "null", state.revision_of(node))
                tx.after_commit(partial(waiter.deliver, computed))
