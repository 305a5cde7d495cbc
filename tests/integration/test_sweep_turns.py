"""Who sweeps in a store that many machines share."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any

import psycopg
import pytest

from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import EngineSweeper, SweepRound, ignore_given_up
from longwatch.host.incarnation import Incarnation
from longwatch.host.runtime_dir import runtime_directory
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.dead_retention import LEADER_INTERVAL
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.sql import SqlBackend
from longwatch.mailbox.sql_turn_sweeper import LAPSE_PAUSE
from longwatch.store.claims import RowSelection
from longwatch.store.postgres.database import PostgresDatabase
from longwatch.store.postgres.notify_payload import for_all_receivers
from longwatch.store.sweep_turns import (
    EXTEND_SECONDS,
    TURN_JITTER,
    TURN_SECONDS,
    SqlTurnStorage,
    SweepTurns,
)
from postgres_server import shared_server

NAMES = ("queue", "table")
BOTH = frozenset(NAMES)


class CountingDatabase(PostgresDatabase):
    """Counts its calls."""

    calls = 0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.notified: list[str] = []

    def notify(self, *channels: str, to_all: bool = False) -> None:
        self.notified += for_all_receivers(channels) if to_all else channels
        super().notify(*channels, to_all=to_all)

    def read(self, work: Callable[[Any], Any], **how: Any) -> Any:
        self.calls += 1
        return super().read(work, **how)

    def write(self, work: Callable[[Any], Any], **how: Any) -> Any:
        self.calls += 1
        return super().write(work, **how)


@pytest.fixture
def database() -> Iterator[CountingDatabase]:
    with shared_server().database() as url, CountingDatabase(url) as opened:
        yield opened


class Fleet:
    """Engines that ask for turns, on one clock that moves the store's clock too."""

    def __init__(self, database: CountingDatabase) -> None:
        self.database = database
        self.clock = FakeClock()

    def engine(self, incarnation: str = "") -> SweepTurns:
        return SweepTurns(
            SqlTurnStorage(self.database),
            NAMES,
            holder=incarnation or str(Incarnation.current()),
            clock=self.clock,
        )

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.database.jump.lease += seconds

    def calls_of(self, engine: SweepTurns) -> int:
        before = self.database.calls
        engine.update()
        return self.database.calls - before


@pytest.fixture
def fleet(database: CountingDatabase) -> Fleet:
    return Fleet(database)


def ended_incarnation() -> str:
    """The incarnation of a process of this host that has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        incarnation = str(Incarnation.of(process.pid))
        process.kill()
    return incarnation


# --- turns ---


def test_the_first_engine_that_asks_gets_the_turns_and_others_wait(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    assert (BOTH, frozenset()) == (first.update(), second.update())


def test_nobody_asks_the_store_while_a_turn_is_known_to_last(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    first.update(), second.update()
    fleet.pass_time(TURN_SECONDS - EXTEND_SECONDS - 0.1)
    assert [0, 0] == [fleet.calls_of(first), fleet.calls_of(second)]


def test_a_holder_that_extends_its_turns_in_time_keeps_them(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    first.update(), second.update()
    for _ in range(20):
        fleet.pass_time(1.0)
        assert (BOTH, frozenset()) == (first.update(), second.update())


def test_an_engine_that_waits_asks_about_as_often_as_a_turn_lasts(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    first.update(), second.update()
    before, extended = fleet.database.calls, 0
    for _ in range(200):
        fleet.pass_time(0.5)
        extended += fleet.calls_of(first)
        second.update()
    assert 100 / (TURN_SECONDS + TURN_JITTER) - 1 <= fleet.database.calls - before - extended <= 28


def test_the_turns_of_a_holder_that_stands_still_go_to_another_engine(fleet: Fleet) -> None:
    first, second = fleet.engine(), fleet.engine()
    first.update(), second.update()
    fleet.pass_time(TURN_SECONDS + TURN_JITTER)
    assert BOTH == second.update()
    assert not first.update()


def test_after_a_gap_an_engine_has_no_turn_before_the_store_has_granted_it_again(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = fleet.engine()
    holder.update()
    fleet.clock.suspend(TURN_SECONDS)
    monkeypatch.setattr(holder, "_should_ask", lambda _: False)
    assert not holder.update()


def test_an_engine_takes_the_turns_of_a_dead_process_of_its_host_at_once(fleet: Fleet) -> None:
    fleet.engine(ended_incarnation()).update()
    assert BOTH == fleet.engine().update()


def test_an_engine_that_waits_sees_without_the_store_that_the_holder_has_died(
    fleet: Fleet,
) -> None:
    second = fleet.engine()
    with subprocess.Popen(["sleep", "60"]) as process:
        fleet.engine(str(Incarnation.of(process.pid))).update()
        assert (frozenset(), 0) == (second.update(), fleet.calls_of(second))
        process.kill()
    assert BOTH == second.update()


def test_a_holder_that_stops_gives_its_turns_up(fleet: Fleet) -> None:
    first = fleet.engine()
    first.update()
    first.release()
    assert BOTH == fleet.engine().update()
    assert not first.update()


def test_a_paused_engine_has_no_turns_and_calls_nothing(fleet: Fleet) -> None:
    first = fleet.engine()
    first.update()
    before = fleet.database.calls
    first.pause()
    assert before == fleet.database.calls
    first._ask_at = fleet.clock.boottime() + 1
    assert not first.update()


def test_a_turn_that_ended_before_its_holder_extended_it_is_gained_again(fleet: Fleet) -> None:
    """Another engine may have had it meanwhile."""
    holder = fleet.engine()
    holder.update()
    assert BOTH == holder.gained
    fleet.pass_time(TURN_SECONDS - 1.0)
    assert (BOTH, frozenset()) == (holder.update(), holder.gained)
    fleet.pass_time(TURN_SECONDS + TURN_JITTER)
    assert (BOTH, BOTH) == (holder.update(), holder.gained)


def test_a_turn_that_another_transaction_has_locked_is_neither_waited_for_nor_taken(
    fleet: Fleet,
) -> None:
    fleet.engine(ended_incarnation()).update()
    with psycopg.connect(fleet.database.url) as connection:
        connection.execute("SELECT 1 FROM longwatch_sweeps WHERE sweep = 'table' FOR UPDATE")
        assert {"queue"} == fleet.engine().update()


def test_a_turn_that_would_outlast_any_turn_has_ended(fleet: Fleet) -> None:
    """The server's clock was set back."""
    first, second = fleet.engine(), fleet.engine()
    first.update()
    fleet.database.jump.lease -= 3 * TURN_SECONDS
    assert BOTH == second.update()


# --- sweeps of mailboxes ---


class Sweepers:
    """Sweepers of engines over one mailbox."""

    def __init__(self, database: CountingDatabase) -> None:
        self.database = database
        self.mailbox = open_mailbox(database, "jobs")
        self.backend: SqlBackend = self.mailbox.backend  # type: ignore[assignment]

    def make(
        self, selection: RowSelection = RowSelection.ANY, incarnation: str = ""
    ) -> EngineSweeper:
        found = Incarnation.parse(incarnation) if incarnation else Incarnation.current()
        return self.backend.sweeper_for(found, selection=selection)

    def claim(self, incarnation: str = "", *, renew_seconds: float | None = None) -> int:
        """Claim a message for an owner; returns the owner."""
        found = Incarnation.parse(incarnation) if incarnation else Incarnation.current()
        owner = self.backend.register_owner(found, renew_seconds=renew_seconds)
        claimed = self.backend.exchange((), owner=owner, limit=1, lease_seconds=30.0).claimed
        assert 1 == len(claimed)
        return owner

    def sweep(self, sweeper: EngineSweeper) -> SweepRound:
        """Run a round at a moment when a look is due."""
        sweeper._look_at = sweeper._search_lapses_at = -inf  # type: ignore[attr-defined]
        return sweeper.sweep(ignore_given_up)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of its own, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield runtime_directory()


@pytest.fixture
def sweepers(database: CountingDatabase) -> Sweepers:
    return Sweepers(database)


def test_one_engine_leads_and_the_others_make_no_call(sweepers: Sweepers) -> None:
    first, second = sweepers.make(), sweepers.make()
    assert [True, False] == [each.sweep(ignore_given_up).leads for each in (first, second)]
    before = sweepers.database.calls
    for _ in range(10):
        second.sweep(ignore_given_up)
    assert before == sweepers.database.calls


def test_the_leader_notifies_while_a_message_waits(sweepers: Sweepers) -> None:
    """As one of a user's transaction, of which no engine was notified."""
    leader = sweepers.make()
    sweepers.sweep(leader)
    with psycopg.connect(sweepers.database.url) as connection:
        sweepers.mailbox.send("unseen", tx=connection)
    sweepers.database.notified.clear()
    sweepers.sweep(leader)
    assert ["jobs"] == sweepers.database.notified
    sweepers.mailbox.receive()
    sweepers.sweep(leader)
    assert ["jobs"] == sweepers.database.notified


def test_at_looks_2_4_and_8_that_find_a_message_waiting_no_engine_may_ignore_it(
    sweepers: Sweepers,
) -> None:
    leader = sweepers.make()
    sweepers.sweep(leader)
    sweepers.mailbox.send("ignored")
    asked_all = []
    for look in range(1, 10):
        sweepers.database.notified.clear()
        sweepers.sweep(leader)
        if for_all_receivers(["jobs"]).issubset(sweepers.database.notified):
            asked_all.append(look)
    sweepers.mailbox.receive()
    sweepers.sweep(leader)
    sweepers.mailbox.send("next")
    sweepers.database.notified.clear()
    sweepers.sweep(leader)
    assert ([2, 4, 8], ["jobs"]) == (asked_all, sweepers.database.notified)


def test_it_does_not_notify_of_messages_that_no_engine_may_claim(sweepers: Sweepers) -> None:
    sweepers.mailbox.send("paused")
    sweepers.mailbox.pause()
    sweepers.database.notified.clear()
    sweepers.sweep(sweepers.make())
    assert [] == sweepers.database.notified


def test_under_a_parent_it_does_not_notify_of_suspects(sweepers: Sweepers) -> None:
    sweepers.mailbox.send("suspect")
    with psycopg.connect(sweepers.database.url) as connection:
        connection.execute("UPDATE longwatch_messages SET crashes = 2")
    sweepers.database.notified.clear()
    leader = sweepers.make(RowSelection.ORDINARY)
    assert sweepers.sweep(leader).leads
    assert [] == sweepers.database.notified


def test_the_next_round_is_when_the_next_delayed_message_is_due(sweepers: Sweepers) -> None:
    sweepers.mailbox.send("soon", delay_seconds=0.5)
    leader = sweepers.make()
    swept = sweepers.sweep(leader)
    assert swept.next_in is not None
    assert 0 < swept.next_in < 0.5
    sweepers.database.jump.wall += 0.5
    assert 1 == sweepers.sweep(leader).changed
    assert "soon" == sweepers.mailbox.receive()[0].body


def test_the_leader_reclaims_leases_that_have_ended_and_another_engine_does_not(
    sweepers: Sweepers,
) -> None:
    sweepers.mailbox.send("lapsed")
    sweepers.claim()
    leader, other = sweepers.make(), sweepers.make()
    sweepers.sweep(leader)
    sweepers.sweep(other)
    sweepers.database.jump.lease += 31.0
    other._turns._ask_at = inf  # type: ignore[attr-defined]
    assert 0 == sweepers.sweep(other).changed
    assert 1 == sweepers.sweep(leader).changed


def test_the_pause_after_a_search_for_ended_leases_grows_with_the_time_it_took(
    sweepers: Sweepers,
) -> None:
    leader, clock = sweepers.make(), FakeClock()
    began = clock.monotonic()
    leader._clock = clock  # type: ignore[attr-defined]
    find = leader._claim_sweeper.find_candidates  # type: ignore[attr-defined]

    def take_half_a_second(tx: Any, *, lapses: bool) -> Any:
        clock.advance(0.5 if lapses else 0.0)
        return find(tx, lapses=lapses)

    leader._claim_sweeper.find_candidates = take_half_a_second  # type: ignore[attr-defined]
    leader.sweep(ignore_given_up)
    assert 0.5 + 0.5 * LAPSE_PAUSE == leader._search_lapses_at - began  # type: ignore[attr-defined]


def test_an_engine_without_the_turn_reclaims_from_dead_owners_of_its_host(
    sweepers: Sweepers, host: Path
) -> None:
    sweepers.mailbox.send("orphan")
    leader, other = sweepers.make(), sweepers.make()
    sweepers.sweep(leader)
    leader._owners.release()  # type: ignore[attr-defined]
    assert 0 == other.sweep(ignore_given_up).changed
    with subprocess.Popen(["sleep", "60"]) as process:
        sweepers.claim(str(Incarnation.of(process.pid)))
        (host / "page-new").touch()
        before = sweepers.database.calls
        assert 0 == other.sweep(ignore_given_up).changed
        assert 1 == sweepers.database.calls - before
        assert 0 == other.sweep(ignore_given_up).changed
        assert 1 == sweepers.database.calls - before
        process.kill()
    swept = other.sweep(ignore_given_up)
    assert (1, False) == (swept.changed, swept.leads)


def test_one_engine_of_a_host_looks_for_dead_owners(sweepers: Sweepers, host: Path) -> None:
    first, second = sweepers.make(), sweepers.make()
    first.sweep(ignore_given_up), second.sweep(ignore_given_up)
    first._look_at = inf  # type: ignore[attr-defined]
    sweepers.mailbox.send("orphan")
    sweepers.claim(ended_incarnation())
    (host / "page-new").touch()
    assert 0 == second.sweep(ignore_given_up).changed
    assert 1 == first.sweep(ignore_given_up).changed


def test_an_engine_that_has_stopped_leaves_its_turns_to_others(sweepers: Sweepers) -> None:
    leader = sweepers.make()
    leader.sweep(ignore_given_up)
    leader.close()
    assert sweepers.make().sweep(ignore_given_up).leads


# --- old dead letters ---


def with_retention(database: CountingDatabase, seconds: float) -> EngineSweeper:
    """The sweeper of a process that sets a retention, on a clock of its own."""
    mailbox = open_mailbox(database, "jobs", limits=MailboxLimits(dead_retention=seconds))
    backend: SqlBackend = mailbox.backend  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("longwatch.mailbox.sql_turn_sweeper.SystemClock", FakeClock)
        return backend.sweeper_for(Incarnation.current(), selection=RowSelection.ANY)


def make_dead_letters(sweepers: Sweepers, count: int) -> None:
    sweepers.mailbox.send_many(["dead"] * count)
    for message in sweepers.mailbox.receive(max_messages=count):
        message.reject("permanent")
    assert count == sweepers.backend.stats().dead


def pass_time(sweepers: Sweepers, sweeper: EngineSweeper, seconds: float) -> None:
    sweeper._clock.advance(seconds)  # type: ignore[attr-defined]
    sweepers.database.jump.wall += seconds


def test_old_dead_letters_are_deleted_although_the_leader_has_no_retention(
    sweepers: Sweepers,
) -> None:
    leader, other = sweepers.make(), with_retention(sweepers.database, 3600.0)
    assert sweepers.sweep(leader).leads
    other._turns._ask_at = inf  # type: ignore[attr-defined]
    make_dead_letters(sweepers, 3)
    for _ in range(59):
        pass_time(sweepers, other, 60.0)
        assert not other.sweep(ignore_given_up).leads
        sweepers.sweep(leader)
    assert 3 == sweepers.backend.stats().dead
    for _ in range(95):
        pass_time(sweepers, other, 60.0)
        other.sweep(ignore_given_up)
        sweepers.sweep(leader)
    assert 0 == sweepers.backend.stats().dead


def test_a_leader_deletes_old_dead_letters_within_a_minute(sweepers: Sweepers) -> None:
    leader = with_retention(sweepers.database, 100.0)
    assert leader.sweep(ignore_given_up).leads
    make_dead_letters(sweepers, 1)
    pass_time(sweepers, leader, 99.0)
    assert leader.sweep(ignore_given_up).leads
    assert 1 == sweepers.backend.stats().dead
    pass_time(sweepers, leader, LEADER_INTERVAL)
    assert leader.sweep(ignore_given_up).leads
    assert 0 == sweepers.backend.stats().dead


def test_an_idle_engine_without_the_turn_looks_for_old_dead_letters_once_an_hour(
    sweepers: Sweepers,
) -> None:
    leader, other = sweepers.make(), with_retention(sweepers.database, 3600.0)
    leader.sweep(ignore_given_up), other.sweep(ignore_given_up)
    other._turns._ask_at = inf  # type: ignore[attr-defined]
    before = sweepers.database.calls
    for _ in range(24 * 12):
        pass_time(sweepers, other, 300.0)
        other.sweep(ignore_given_up)
    assert 24 / 1.5 - 1 <= sweepers.database.calls - before <= 24 / 0.5 + 1


def test_after_a_full_batch_of_old_dead_letters_the_next_round_deletes_more(
    sweepers: Sweepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longwatch.mailbox.sql_turn_sweeper.SWEEP_BATCH", 2)
    leader = with_retention(sweepers.database, 100.0)
    leader.sweep(ignore_given_up)
    make_dead_letters(sweepers, 5)
    pass_time(sweepers, leader, 101.0)
    for left in (3, 1, 0):
        leader.sweep(ignore_given_up)
        assert left == sweepers.backend.stats().dead


def test_only_the_mailboxes_with_a_retention_lose_their_old_dead_letters(
    sweepers: Sweepers,
) -> None:
    kept = open_mailbox(sweepers.database, "kept")
    kept.send("dead")
    kept.receive()[0].reject("permanent")
    make_dead_letters(sweepers, 1)
    leader = with_retention(sweepers.database, 100.0)
    leader.sweep(ignore_given_up)
    pass_time(sweepers, leader, 101.0)
    leader.sweep(ignore_given_up)
    assert (0, 1) == (sweepers.backend.stats().dead, len(list(kept.dead_letters)))
