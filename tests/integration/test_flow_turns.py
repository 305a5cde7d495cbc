"""Who sweeps the attempts of a graph in a store that many machines share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from flow_rig import NO_SUCH_PID, ManualWorker, database_fixture, on_postgres, url_fixture  # noqa: F401 - fixtures
from longwatch.engine.claim_source import EngineSweeper, SweepRound, ignore_given_up
from longwatch.flow import Graph, compute, input  # noqa: A004 - the contract's word
from longwatch.flow.execution_state import GraphId
from longwatch.flow.records import work_channel
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import RowSelection
from longwatch.store.database import Database

pytestmark = on_postgres
CHANNEL = work_channel(GraphId("scrape", "1"))


def url_length(url: str) -> int:
    return len(url)


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime directory of its own, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def worker(database: Database) -> ManualWorker:
    graph = Graph(
        "scrape", version="1", nodes=[input("url"), compute("pages", ["url"], url_length)]
    )
    return ManualWorker(database, graph)


@pytest.fixture
def notified(worker: ManualWorker, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The channels that sweepers notify, apart from those of commits."""
    channels: list[str] = []
    monkeypatch.setattr(worker.database, "notify", lambda *names, **_: channels.extend(names))
    return channels


def make(worker: ManualWorker) -> EngineSweeper:
    return worker.source.sweeper_for(Incarnation.current(), selection=RowSelection.ANY)


def sweep(sweeper: EngineSweeper) -> SweepRound:
    """Run a round at a moment when a look is due."""
    sweeper._look_at = -inf  # type: ignore[attr-defined]
    return sweeper.sweep(ignore_given_up)


def test_one_engine_leads_and_the_others_make_no_call(
    worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make(worker), make(worker)
    assert [True, False] == [each.sweep(ignore_given_up).leads for each in (first, second)]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("it called the store")

    monkeypatch.setattr(worker.database, "read", refuse)
    monkeypatch.setattr(worker.database, "write", refuse)
    assert not second.sweep(ignore_given_up).leads


def test_the_leader_notifies_while_an_attempt_waits(
    worker: ManualWorker, notified: list[str]
) -> None:
    leader = make(worker)
    sweep(leader)
    assert [] == notified
    worker.flow.start("scrape", url="abc")
    sweep(leader)
    assert [CHANNEL] == notified
    worker.claim(1)
    sweep(leader)
    assert [CHANNEL] == notified


def test_the_next_round_is_when_the_next_delayed_attempt_is_due(
    worker: ManualWorker, notified: list[str]
) -> None:
    worker.flow.start("scrape", url="abc")
    worker.database.write(
        lambda tx: tx.execute(
            "UPDATE longwatch_computations SET lease_state = 1, ready_at = :wall_now + 0.5"
        )
    )
    leader = make(worker)
    swept = sweep(leader)
    assert swept.next_in is not None
    assert 0 < swept.next_in < 0.5
    assert [] == notified
    worker.database.jump.wall += 0.5
    sweep(leader)
    assert [CHANNEL] == notified


def test_an_engine_without_the_turn_reclaims_from_dead_owners_of_its_host(
    worker: ManualWorker,
) -> None:
    leader, other = make(worker), make(worker)
    leader.sweep(ignore_given_up)
    leader._owners.release()  # type: ignore[attr-defined]
    worker.flow.start("scrape", url="abc")
    worker.claim(1, owner=worker.register_owner(pid=NO_SUCH_PID))
    swept = other.sweep(ignore_given_up)
    assert (1, False) == (swept.changed, swept.leads)
