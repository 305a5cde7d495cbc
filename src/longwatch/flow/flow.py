"""A store and the graphs that are computed in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from longwatch.core.clock import Clock, SystemClock
from longwatch.core.masking import mask_text
from longwatch.errors import UnknownExecutionError, UsageError
from longwatch.flow.advancing import advance
from longwatch.flow.calling import VALUES
from longwatch.flow.execution import Execution, Summary
from longwatch.flow.graph import Graph
from longwatch.flow.hands import Hands
from longwatch.flow.records import Kind, Lessee, Records, changes_of
from longwatch.flow.registry import Registry
from longwatch.flow.source import FlowSource
from longwatch.flow.standing import Standing
from longwatch.flow.sweeping import Run
from longwatch.flow.waiters import Waiter, Waiters
from longwatch.flow.worker import FlowWorker
from longwatch.store.database import Database, Transaction
from longwatch.store.opening import SQL_SCHEMES, open_database, url_hint

_NEWEST = 2**62
LONGEST_KEY = 1000


class Flow:
    """Starts executions of its graphs, finds them again, and makes workers that compute them.

    `store` is a URL (`sqlite:///flow.db`, `postgresql://…`) or an open store. Making one opens
    nothing: the store is opened, and told of the graphs, when it is first used. A store that this
    Flow has opened is closed with it.
    """

    def __init__(
        self,
        store: str | Database,
        graphs: Iterable[Graph] = (),
        *,
        auto_migrate: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.database = _found(store, auto_migrate=auto_migrate)
        self.clock = clock or SystemClock()
        self.records = Records(self.database.dialect)
        self.registry = Registry(self.database, self.records, graphs)
        self.hands = Hands()
        self.waiters = Waiters()
        self.closed = False
        """Whether it was closed, and with it the store that it had opened."""
        self._is_ours = not isinstance(store, Database)

    # --- executions ---

    def start(
        self,
        graph: str,
        /,
        inputs: Mapping[str, Any] | None = None,
        *,
        version: str | None = None,
        idempotency_key: str | None = None,
        **named: Any,
    ) -> Execution:
        """A new execution with these inputs set. With a key that an execution of this graph
        bears: that one, as it is.
        """
        kind = self.registry.find(graph, version)
        texts = self.texts(kind, {**(inputs or {}), **named})
        key = _checked_key(idempotency_key)
        registered = self.registry.registered()[kind]
        name = secrets.token_hex(8)

        def work(
            tx: Transaction, lessee: Lessee | None
        ) -> tuple[tuple[Standing, Kind], Standing | None]:
            standing = Standing(0, name)
            for node, text in texts.items():
                standing.put(node, text)
            advance(registered.graph, standing, registered.lanes)
            if self.records.start(tx, standing, kind, key, lessee):
                return (standing, kind), standing
            [(number, first, its_version)] = tx.rows(
                self.records.sql["with_key"], {"graph": graph, "key": key}
            )
            return (Standing(number, first), Kind(graph, its_version)), None

        found, its = self.hands.write(self.database, kind, work)
        if not found.number:  # the answer was lost with the connection
            return self.execution(found.id)
        return Execution(self, found.id, found.number, self.registry.find(*its))

    def execution(self, name: str) -> Execution:
        """The execution of that id; UnknownExecutionError if there is none, UnknownGraphError if
        its graph is not known here.
        """
        rows = self.database.read(lambda tx: tx.rows(self.records.sql["find"], {"id": name}))
        if not rows:
            raise UnknownExecutionError(
                f"there is no execution {name!r} in {mask_text(self.database.url)}"
            )
        number, graph, version = rows[0][:3]
        return Execution(self, name, number, self.registry.find(graph, version))

    def executions(
        self, *, graph: str | None = None, limit: int = 100, before: int | None = None
    ) -> list[Summary]:
        """The newest first; `before` is the `number` of the last of the page before."""
        page = {
            "graph": graph or "",
            "before": _NEWEST if before is None else before,
            "limit": limit,
        }
        return [
            Summary.read(row)
            for row in self.database.read(lambda tx: tx.rows(self.records.sql["newest"], page))
        ]

    # --- work ---

    def worker(self, **settings: Any) -> FlowWorker:
        """What computes them: `with flow.worker(concurrency=8): …`, or a loop in a LoopGroup."""
        return FlowWorker(self, **settings)

    def sweep(self) -> int:
        """Bring back what dead workers held, and go on with what nobody goes on with, now; how
        many rows that was.
        """
        return FlowSource(self.database, self.registry, clock=self.clock).sweeping.make_all()

    def sweeps(self, *, limit: int = 100) -> list[Run]:
        """The latest sweeps of any worker."""
        return FlowSource(self.database, self.registry, clock=self.clock).sweeping.runs(limit=limit)

    # --- its own life ---

    def close(self) -> None:
        """Close the store, if this Flow has opened it; idempotent."""
        if self._is_ours:
            self.closed = True
            self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Flow {mask_text(self.database.url)}: "
            f"{', '.join(kind.graph for kind in self.registry.graphs) or 'no graphs'}>"
        )

    # --- for executions ---

    def texts(self, kind: Kind, values: Mapping[str, Any]) -> dict[str, str]:
        """Values of inputs as JSON; UsageError for a node that is none, SerializationError for
        what cannot be kept.
        """
        graph = self.registry.graphs[kind]
        for name in values:
            graph.require_input(name)
        return {name: VALUES.encode(value).decode() for name, value in values.items()}

    @contextmanager
    def waiting(self, execution: str, node: str) -> Iterator[Waiter]:
        """Who is woken when this node changes, or nothing more is to be hoped for, and now and
        then without that.
        """
        with self.waiters.waiting(execution, node) as waiter:
            leave = self.database.listen(
                (changes_of(execution, node), changes_of(execution)), waiter
            )
            try:
                yield waiter
            finally:
                leave()


def _found(store: Any, *, auto_migrate: bool) -> Database:
    if isinstance(store, Database):
        return store
    database = open_database(store, auto_migrate=auto_migrate)
    if database is None:
        raise UsageError(
            f"graphs are computed in a SQL store, which {mask_text(store)!r} does not name; "
            f"{url_hint(store, SQL_SCHEMES)}"
        )
    return database


def _checked_key(key: Any) -> str | None:
    if key is not None and (
        not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY or not key.isprintable()
    ):
        raise UsageError(
            f"idempotency_key must be printable text of 1 to {LONGEST_KEY} characters, not {key!r}"
        )
    return key
