"""What tests of flows share: every kind of store, and workers whose every claim and settlement a
test makes by hand.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.clock import Clock
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.flow import Execution, Flow, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.claim_source import FlowClaimSource
from longwatch.flow.invocation import arguments, encode_result
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import RowSelection
from longwatch.store.database import Database
from longwatch.store.notify.local import LocalNotifier
from longwatch.store.postgres.listener import PostgresListener
from longwatch.store.url import open_database
from postgres_server import shared_server

TIMEOUT = 30.0
KINDS = ("sqlite", "postgresql")
TOO_NEW = 9999
NO_SUCH_PID = 2**22 - 3
"""A pid that this machine does not give out in the time of a test."""


@contextmanager
def empty_store_url(kind: str, folder: Path) -> Iterator[str]:
    """Where there is an empty store of this kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/flow.db"
        return
    yield _truncated_database_url()


@cache
def _session_database_url() -> str:
    """The one database of this test session: to empty it is quicker than to make another."""
    database = shared_server().database()
    url = database.__enter__()
    atexit.register(lambda: database.__exit__(None, None, None))
    with migrated_database(url) as made:
        made.write(lambda _: None)
    return url


def _truncated_database_url() -> str:
    url = _session_database_url()
    name = url.rpartition("/")[2]
    tables = (
        "SELECT string_agg(tablename, ', ') FROM pg_tables WHERE tablename LIKE 'longwatch%' AND "
        "tablename <> 'longwatch_schema'"
    )
    [(listed,)] = shared_server().sql(tables, name)
    shared_server().sql(
        f"TRUNCATE {listed} RESTART IDENTITY; DELETE FROM longwatch_schema WHERE version = "
        f"{TOO_NEW}",
        name,
    )
    return url


@contextmanager
def migrated_database(url: str) -> Iterator[Database]:
    database = open_database(url, auto_migrate=True)
    assert database is not None
    with database:
        yield database


@pytest.fixture(name="url", params=KINDS)
def url_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store, of each kind."""
    with empty_store_url(request.param, tmp_path) as found:
        yield found


@pytest.fixture(name="database")
def database_fixture(url: str) -> Iterator[Database]:
    """An open store, of each kind."""
    with migrated_database(url) as made:
        yield made


@pytest.fixture(name="notifications_only")
def notifications_only_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners are woken by notifications alone, not by the wake interval."""
    for listening in (PostgresListener.__init__, LocalNotifier.__init__):
        monkeypatch.setitem(listening.__kwdefaults__ or {}, "wake_interval", 10_000.0)


on_sqlite = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


def store_wall(database: Database) -> float:
    """The wall time of the store."""
    [(wall,)] = database.read(lambda tx: tx.rows("SELECT :wall_now + 0"))
    return float(wall)


class ManualWorker:
    """A Flow and a worker of it without threads: nothing is claimed, settled or swept but by the
    test.

    One that `tells` says what it has computed to those of the Flow who wait for it, as workers of
    the same process do.
    """

    def __init__(
        self,
        database: Database,
        *graphs: Graph,
        clock: Clock | None = None,
        notifies_waiters: bool = False,
    ) -> None:
        self.database = database
        self.flow = Flow(database, graphs, clock=clock)
        self.source = FlowClaimSource(
            database,
            self.flow.registry,
            clock=clock,
            waiters=self.flow.waiters if notifies_waiters else None,
            save_callbacks=self.flow.save_callbacks,
        )
        self.owner = self.register_owner()
        self.runs: Counter[str] = Counter()

    # --- workers ---

    def register_owner(
        self,
        *,
        page: str | None = None,
        parent: str | None = None,
        renew_seconds: float | None = None,
        **changes: Any,
    ) -> int:
        """A worker more; one of another pid is dead."""
        return self.source.register_owner(
            replace(Incarnation.current(), **changes),
            page=page,
            parent=parent,
            renew_seconds=renew_seconds,
        )

    def claim(
        self,
        want: int = 100,
        *,
        owner: int | None = None,
        selection: RowSelection = RowSelection.ANY,
    ) -> list[ClaimedRow]:
        """Claim what is ready."""
        return self.source.exchange(
            [], owner=owner or self.owner, limit=want, lease_seconds=0.0, selection=selection
        ).claimed

    def claim_one(self, *, owner: int | None = None) -> ClaimedRow:
        [leased] = self.claim(owner=owner)
        return leased

    def succeed(self, leased: ClaimedRow, result: Any) -> bool:
        """Its result; whether that counts."""
        node = self._graph(leased).nodes[leased.item.node]
        return self._settle(
            Settlement(leased.claim, RowOutcome.DONE, result=encode_result(node, result))
        )

    def fail(self, leased: ClaimedRow, error: str = "broken", *, delay: float = 0.0) -> bool:
        return self._settle(Settlement(leased.claim, RowOutcome.FAILED, error=error, delay=delay))

    def give_up(self, leased: ClaimedRow, error: str = "hopeless") -> bool:
        return self._settle(
            Settlement(leased.claim, RowOutcome.DEAD, reason="permanent", error=error)
        )

    def release(self, leased: ClaimedRow, *, delay: float = 0.0) -> bool:
        return self._settle(Settlement(leased.claim, RowOutcome.RELEASED, delay=delay))

    def run(self, leased: Sequence[ClaimedRow]) -> None:
        """Compute these, one after the other; the result of one may call off the next."""
        for each in leased:
            node = self._graph(each).nodes[each.item.node]
            if each.item.due_at is not None:
                self.succeed(each, None)
                continue
            assert node.function is not None
            self.runs[node.name] += 1
            self.succeed(each, node.function(**arguments(node, each.item.inputs, None)))

    def run_all(self) -> Counter[str]:
        """Compute what is ready, until nothing is; how often each node was."""
        self.runs.clear()
        while leased := self.claim():
            self.run(leased)
        return Counter(self.runs)

    def exhaust(self, execution: Execution, node: str) -> None:
        """Fail a node until it is given up."""
        while leased := [
            each for each in self.claim() if each.item.id == execution.id and each.item.node == node
        ]:
            assert self.fail(leased[0])

    # --- what is in the store ---

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.database.read(lambda tx: tx.rows(sql, parameters))

    def write(self, sql: str, **parameters: Any) -> int:
        return self.database.write(lambda tx: tx.execute(sql, parameters))

    def row(self, seq: int, *columns: str) -> tuple[Any, ...]:
        """Of one attempt; times on the lease clock as seconds from now."""
        [found] = self.rows(
            f"SELECT {', '.join(columns)} FROM longwatch_computations WHERE seq = :seq", seq=seq
        )
        return found

    def states(self, execution: Execution) -> list[tuple[str, str, str | None]]:
        """Of every attempt: node, state, why it is over."""
        return [(each.node, each.state, each.end_cause) for each in execution.computations()]

    def _settle(self, settlement: Settlement) -> bool:
        [counts] = self.source.exchange(
            [settlement], owner=self.owner, limit=0, lease_seconds=0.0
        ).settled
        return counts

    def _graph(self, leased: ClaimedRow) -> Graph:
        [found] = [
            registered.graph
            for registered in self.flow.registry.registered().values()
            if any(queue.number == leased.item.queue for queue in registered.queues)
        ]
        return found


class BackgroundCall:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._thread = BackgroundThread(self._run, name="waiting")
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001 - it is told to who asks
            self.result = error

    def wait(self) -> Any:
        assert self._thread.done.block(TIMEOUT)
        return self.result


def scrape_graph(version: str = "1", **options: Any) -> Graph:
    """url → pages → titles; depth is for nobody."""
    return Graph(
        "scrape",
        version=version,
        nodes=[
            input("url"),
            input("depth"),
            compute("pages", ["url"], lambda url: len(url or ""), **options),
            compute("titles", ["pages"], lambda pages: ["title"] * pages),
        ],
    )


@contextmanager
def manual_worker_for(kind: str, folder: Path, *graphs: Graph) -> Iterator[ManualWorker]:
    with ExitStack() as stack:
        yield ManualWorker(
            stack.enter_context(
                migrated_database(stack.enter_context(empty_store_url(kind, folder)))
            ),
            *graphs,
        )
