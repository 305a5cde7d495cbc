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
from longwatch.flow import Execution, Flow, Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.calling import arguments, written
from longwatch.flow.source import FlowSource
from longwatch.host.errand import Errand
from longwatch.host.incarnation import Incarnation
from longwatch.store.database import Database
from longwatch.store.opening import open_database
from longwatch.store.postgres_ear import Ear
from longwatch.store.wakeups import Wakeups
from longwatch.work.source import Leased, Outcome, Settlement
from postgres_server import shared_server

PATIENCE = 30.0
KINDS = ("sqlite", "postgresql")
TOO_NEW = 9999
NO_SUCH_PID = 2**22 - 3
"""A pid that this machine does not give out in the time of a test."""


@contextmanager
def url_of(kind: str, folder: Path) -> Iterator[str]:
    """Where there is an empty store of this kind."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}/flow.db"
        return
    yield _emptied()


@cache
def _database() -> str:
    """The one database of this test session: to empty it is quicker than to make another."""
    database = shared_server().database()
    url = database.__enter__()
    atexit.register(lambda: database.__exit__(None, None, None))
    with opened(url) as made:
        made.write(lambda _: None)
    return url


def _emptied() -> str:
    url = _database()
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
def opened(url: str) -> Iterator[Database]:
    database = open_database(url, auto_migrate=True)
    assert database is not None
    with database:
        yield database


@pytest.fixture(name="url", params=KINDS)
def url_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty store, of each kind."""
    with url_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture(name="database")
def database_fixture(url: str) -> Iterator[Database]:
    """An open store, of each kind."""
    with opened(url) as made:
        yield made


@pytest.fixture(name="hints_only")
def hints_only_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is woken but by an announcement."""
    for listening in (Ear.__init__, Wakeups.__init__):
        monkeypatch.setitem(listening.__kwdefaults__ or {}, "net", 10_000.0)


on_one_machine = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("url", ["postgresql"], indirect=True)


class Desk:
    """A Flow and a worker of it without threads: nothing is claimed, settled or swept but by the
    test.

    One that `tells` says what it has computed to those of the Flow who wait for it, as workers of
    the same process do.
    """

    def __init__(
        self, database: Database, *graphs: Graph, clock: Clock | None = None, tells: bool = False
    ) -> None:
        self.database = database
        self.flow = Flow(database, graphs, clock=clock)
        self.source = FlowSource(
            database, self.flow.registry, clock=clock, waiters=self.flow.waiters if tells else None
        )
        self.owner = self.enter()
        self.runs: Counter[str] = Counter()

    # --- workers ---

    def enter(self, *, page: str | None = None, **changes: Any) -> int:
        """A worker more; one of another pid is dead."""
        return self.source.enter(replace(Incarnation.mine(), **changes), page=page)

    def take(self, want: int = 100, *, owner: int | None = None) -> list[Leased]:
        """Claim what is ready."""
        return self.source.exchange([], owner=owner or self.owner, want=want, duration=0.0).leased

    def take_one(self, *, owner: int | None = None) -> Leased:
        [leased] = self.take(owner=owner)
        return leased

    def done(self, leased: Leased, result: Any) -> bool:
        """Its result; whether that counts."""
        node = self._graph(leased).nodes[leased.item.node]
        return self._settle(Settlement(leased.claim, Outcome.DONE, result=written(node, result)))

    def failed(self, leased: Leased, error: str = "broken", *, delay: float = 0.0) -> bool:
        return self._settle(Settlement(leased.claim, Outcome.FAILED, error=error, delay=delay))

    def dead(self, leased: Leased, error: str = "hopeless") -> bool:
        return self._settle(Settlement(leased.claim, Outcome.DEAD, reason="permanent", error=error))

    def back(self, leased: Leased, *, delay: float = 0.0) -> bool:
        return self._settle(Settlement(leased.claim, Outcome.BACK, delay=delay))

    def run(self, leased: Sequence[Leased]) -> None:
        """Compute these, one after the other; the result of one may call off the next."""
        for each in leased:
            node = self._graph(each).nodes[each.item.node]
            assert node.function is not None
            self.runs[node.name] += 1
            self.done(each, node.function(**arguments(node, each.item.inputs, None)))

    def run_all(self) -> Counter[str]:
        """Compute what is ready, until nothing is; how often each node was."""
        self.runs.clear()
        while leased := self.take():
            self.run(leased)
        return Counter(self.runs)

    def spend(self, execution: Execution, node: str) -> None:
        """Fail a node until it is given up."""
        while leased := [
            each for each in self.take() if each.item.id == execution.id and each.item.node == node
        ]:
            assert self.failed(leased[0])

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
            [settlement], owner=self.owner, want=0, duration=0.0
        ).settled
        return counts

    def _graph(self, leased: Leased) -> Graph:
        [found] = [
            registered.graph
            for registered in self.flow.registry.registered().values()
            if any(line.lane == leased.item.lane for line in registered.lines)
        ]
        return found


class Waiting:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._errand = Errand(self._run, name="waiting")
        self._errand.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:  # noqa: BLE001 - it is told to who asks
            self.result = error

    def answer(self) -> Any:
        assert self._errand.over.block(PATIENCE)
        return self.result


def scrape(version: str = "1", **options: Any) -> Graph:
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
def desk_for(kind: str, folder: Path, *graphs: Graph) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(stack.enter_context(opened(stack.enter_context(url_of(kind, folder)))), *graphs)
