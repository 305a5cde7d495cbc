from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flow_stores import KINDS, opened_store
from longwatch.core.events.base import Event, Events
from longwatch.core.events.runner import EventSourceStandingBy
from longwatch.host.incarnation import Incarnation
from longwatch.runner.event_store import EventStore
from longwatch.runner.source_lease import SourceLeaseLostError, SourceLeases
from longwatch.store.database import Database
from longwatch.testing import check_service
from polling import eventually


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with opened_store(request.param, tmp_path) as opened:
        yield opened


def test_the_second_runner_stands_by_until_the_first_stops(database: Database) -> None:
    """Each source has one holder; a runner that stops hands its sources over at once."""
    emitted: list[Event] = []
    changes: list[frozenset[str]] = []
    first = SourceLeases(database, ["a", "b"])
    second = SourceLeases(
        database, ["b", "c"], events=Events(emitted.append), on_change=changes.append
    )
    assert first.renew() == {"a", "b"}
    assert second.renew() == {"c"}
    assert second.renew() == {"c"}
    assert [EventSourceStandingBy(cluster="b")] == emitted
    with pytest.raises(SourceLeaseLostError, match="'b'"):
        second.claim_of("b")
    first.release()
    assert first.held() == frozenset()
    assert second.renew() == {"b", "c"}
    assert changes == [{"c"}, {"b", "c"}]
    second.release()
    assert changes[-1] == frozenset()


def test_a_dead_runner_loses_its_sources_at_once(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner whose process has ended on this machine is replaced at the next round, under a
    higher term.
    """
    here = Incarnation.current()
    gone = Incarnation(here.id, here.boot, here.namespace, 2**22 - 1, 1)
    first = SourceLeases(database, ["a"])
    with monkeypatch.context() as patched:
        patched.setattr(Incarnation, "current", lambda: gone)
        first.renew()
    stale = first.claim_of("a")
    second = SourceLeases(database, ["a"])
    assert second.renew() == {"a"}
    assert second.claim_of("a").term > stale.term
    assert first.renew() == frozenset()
    second.release()
    first.release()


def test_a_lapsed_lease_is_claimed_after_one_renewal_interval(database: Database) -> None:
    """A runner that lives but does not renew keeps its sources for one more interval."""
    first = SourceLeases(database, ["a"], lease_seconds=0.3)
    second = SourceLeases(database, ["a"], lease_seconds=0.3)
    first.renew()
    database.jump.lease += 10
    assert second.renew() == frozenset()
    assert eventually(lambda: second.renew() == {"a"})
    first.release()
    second.release()


def test_a_source_whose_runner_was_killed_is_shown_as_held_by_none(database: Database) -> None:
    """A killed runner releases nothing; its lease counts until it lapses."""
    leases = SourceLeases(database, ["a"])
    leases.renew()
    store = EventStore(database)
    assert [True] == [source.is_held for source in store.sources()]
    database.jump.lease += 60
    assert [False] == [source.is_held for source in store.sources()]
    leases.release()


def test_a_service_renews_by_itself(database: Database) -> None:
    """A started service claims, renews, claims what was forgotten, and releases at its stop."""
    leases = SourceLeases(database, ["a"], lease_seconds=0.6)
    with leases:
        assert eventually(lambda: leases.held() == {"a"})
        claim = leases.claim_of("a")
        leases.forget("a", claim._replace(term=0))
        assert leases.held() == {"a"}, "another lease than this one was lost"
        leases.forget("a", claim)
        assert eventually(lambda: leases.held() == {"a"})
    assert leases.held() == frozenset()
    other = SourceLeases(database, ["a"])
    assert other.renew() == {"a"}
    other.release()


def test_a_store_that_was_emptied_is_filled_again(database: Database) -> None:
    """A source whose row is gone gets another one at the next round."""
    leases = SourceLeases(database, ["a"])
    leases.renew()
    database.write(lambda tx: tx.execute("DELETE FROM longwatch_runner_sources"))
    assert leases.renew() == {"a"}
    leases.release()


def test_the_service_keeps_the_contract(database: Database) -> None:
    """Leases start and stop as every service does, again and again."""
    warm_up = SourceLeases(database, ["a"])
    warm_up.renew()  # the threads of the store are not the service's
    warm_up.release()
    check_service(lambda: SourceLeases(database, ["a"]))
