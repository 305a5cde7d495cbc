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
from longwatch.flow.advancing import Next
from longwatch.flow.explaining import survey
from longwatch.flow.graph import Graph
from longwatch.flow.standing import Standing
from longwatch.store.database import Transaction
from longwatch.store.forks import survive_forks


class Told(NamedTuple):
    """A value as JSON, with its revision."""

    text: str
    revision: int


class Waiter(Wakeup):
    """One who waits; `told` is what there is of it, the last of it if there was more."""

    __slots__ = ("told",)

    def __init__(self) -> None:
        super().__init__()
        self.told: Told | None = None

    def tell(self, told: Told) -> None:
        self.told = told
        self.set()

    def take(self) -> Told | None:
        told, self.told = self.told, None
        return told


class Waiters:
    """Who waits for which node of which execution. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[tuple[str, Waiter], ...]] = {}
        self._lock = threading.Lock()
        survive_forks(self)

    @contextmanager
    def waiting(self, execution: str, node: str) -> Iterator[Waiter]:
        entry = node, Waiter()
        with self._lock:
            self._waiting[execution] = (*self._waiting.get(execution, ()), entry)
        try:
            yield entry[1]
        finally:
            with self._lock:
                left = tuple(each for each in self._waiting.get(execution, ()) if each is not entry)
                if left:
                    self._waiting[execution] = left
                else:
                    self._waiting.pop(execution, None)

    # --- forks ---

    def hold(self) -> None:
        """Nothing waits for a fork."""

    def go_on(self) -> None:
        """And nothing was held."""

    def leave_behind(self) -> None:
        """In the child, nobody waits."""
        self._waiting = {}
        self._lock = threading.Lock()

    # --- telling ---

    def tell(self, tx: Transaction, graph: Graph, standing: Standing) -> None:
        """Once this is committed, tell them what it has computed of what they wait for."""
        waiting = [
            each for each in self._waiting.get(standing.id, ()) if each[0] in standing.changed
        ]
        if not waiting:
            return
        up = survey(graph, standing)
        for node, waiter in waiting:
            if up.get(node) is Next.FRESH:
                told = Told(standing.nodes[node].value or "null", standing.revision_of(node))
                tx.after_commit(partial(waiter.tell, told))
