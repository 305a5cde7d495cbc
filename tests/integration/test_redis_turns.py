"""Which engine sweeps a mailbox in Redis, and what the others call."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Self

import pytest

from engine_rig import IDLE_THREADS, stop_advancing_clock
from longwatch.core.clock import Wakeup
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import EngineSweeper, RowOutcome, SweepRound, ignore_given_up
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.hint_gate import HintGate
from longwatch.errors import StoreError
from longwatch.host.incarnation import Incarnation
from longwatch.host.runtime_dir import runtime_directory
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.dead_retention import LEADER_INTERVAL
from longwatch.mailbox.limits import MailboxLimits
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.mailbox.redis.backend import RedisBackend
from longwatch.mailbox.redis.store import RedisStore
from longwatch.mailbox.redis.sweep import Reads
from longwatch.mailbox.redis.turn_sweeper import OWNERS_INTERVAL, RedisTurnStorage
from longwatch.store.claims import RowSelection
from longwatch.store.sweep_turns import EXTEND_SECONDS, TURN_JITTER, TURN_SECONDS
from polling import eventually
from redis_rig import claim, crash, elsewhere, enter, fresh_store, new_messages, settled
from redis_server import RedisServer, running_server

ENDED_SECONDS = TURN_SECONDS + TURN_JITTER


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    with fresh_store(server) as opened:
        opened.clock = FakeClock()
        yield opened


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A runtime directory of its own, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lw-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield runtime_directory()


class Fleet:
    """Sweepers of engines over one mailbox, on a clock that moves the server's clock too. Counts
    the scripts that run and the notifications of looks.
    """

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.backend = store.backend("work")
        self.clock: FakeClock = store.clock  # type: ignore[assignment]
        self.calls: Counter[str] = Counter()
        run = store.resources().client.run_script

        def count(name: str, *words: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return run(name, *words, **options)

        store.resources().client.run_script = count  # type: ignore[method-assign]

    def engine(
        self, incarnation: Incarnation | None = None, selection: RowSelection = RowSelection.ANY
    ) -> EngineSweeper:
        return self.backend.sweeper_for(incarnation or Incarnation.current(), selection=selection)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.store.jump.lease += seconds
        self.store.jump.wall += seconds

    def calls_of(self, work: Callable[[], object]) -> Counter[str]:
        before = self.calls.copy()
        work()
        return self.calls - before


def sweep(engine: EngineSweeper) -> SweepRound:
    return engine.sweep(ignore_given_up)


def leads(*engines: EngineSweeper) -> list[bool]:
    return [sweep(engine).leads for engine in engines]


@pytest.fixture
def fleet(store: RedisStore) -> Fleet:
    return Fleet(store)


# --- turns ---


def test_one_of_several_engines_has_the_turn_and_keeps_it(fleet: Fleet) -> None:
    engines = [fleet.engine(elsewhere()), *(fleet.engine() for _ in range(4))]
    for _ in range(40):
        assert [True, False, False, False, False] == leads(*engines)
        fleet.pass_time(0.5)


def test_an_engine_without_the_turn_calls_nothing_while_the_turn_lasts(
    fleet: Fleet, host: Path
) -> None:
    assert host.exists()
    leader, other = fleet.engine(), fleet.engine()
    leads(leader, other)
    fleet.pass_time(TURN_SECONDS - EXTEND_SECONDS)
    assert not fleet.calls_of(lambda: sweep(other))


def test_an_idle_leader_looks_once_a_second_and_extends_its_turn(fleet: Fleet) -> None:
    leader = fleet.engine()
    sweep(leader)

    def two_rounds_a_second_for_a_minute() -> None:
        for _ in range(120):
            fleet.pass_time(0.5)
            sweep(leader)

    calls = fleet.calls_of(two_rounds_a_second_for_a_minute)
    assert {"find_stale", "take_turn"} == set(calls)
    assert 60 <= calls["find_stale"] <= 60 + 60 // OWNERS_INTERVAL
    assert calls["take_turn"] <= 60 / (TURN_SECONDS - EXTEND_SECONDS)


def test_a_leader_that_stops_leaves_the_turn_to_the_next_that_asks(fleet: Fleet) -> None:
    leader = fleet.engine()
    sweep(leader)
    leader.close()
    assert [True] == leads(fleet.engine())


def test_the_turn_of_a_leader_that_stands_still_ends(fleet: Fleet) -> None:
    stopped, other = fleet.engine(elsewhere()), fleet.engine()
    assert [True, False] == leads(stopped, other)
    fleet.pass_time(TURN_SECONDS / 2)
    assert [False] == leads(other)
    fleet.pass_time(ENDED_SECONDS)
    assert [True, False] == leads(other, stopped)


def test_the_turn_of_a_killed_process_of_this_host_is_taken_at_once(fleet: Fleet) -> None:
    other = fleet.engine()
    with subprocess.Popen(["sleep", "60"]) as process:
        killed = fleet.engine(Incarnation.of(process.pid))
        assert [True, False] == leads(killed, other)
        process.kill()
    assert [True] == leads(other)


def test_a_leader_that_is_not_trusted_any_more_leaves_the_turn_to_its_end(fleet: Fleet) -> None:
    leader, other = fleet.engine(), fleet.engine(elsewhere())
    leads(leader, other)
    assert not fleet.calls_of(leader.pause)
    fleet.pass_time(ENDED_SECONDS)
    assert [True, False] == leads(other, leader)


def test_a_turn_that_would_outlast_any_turn_has_ended(fleet: Fleet) -> None:
    """The server's clock was set back."""
    sweep(fleet.engine(elsewhere()))
    fleet.store.jump.lease -= 3 * TURN_SECONDS
    assert [True] == leads(fleet.engine())


def test_an_engine_that_lost_its_turn_releases_that_of_no_other(fleet: Fleet) -> None:
    holder = Incarnation.current()
    late, other = fleet.engine(elsewhere()), fleet.engine(holder)
    leads(late, other)
    fleet.pass_time(ENDED_SECONDS)
    sweep(other)
    late._turns._held_until["work"] = inf  # type: ignore[attr-defined]
    late.close()
    turn = RedisTurnStorage(fleet.backend).find(["work"])["work"]
    assert str(holder) == turn.holder
    assert 0 < turn.seconds_left <= TURN_SECONDS


# --- a server that is away ---


def test_a_leader_that_loses_the_server_has_no_turn_when_it_ends_and_another_takes_it() -> None:
    with running_server() as server, RedisStore(server.url) as store:
        store.clock = FakeClock()
        fleet = Fleet(store)
        leader, other = fleet.engine(elsewhere()), fleet.engine()
        assert [True, False] == leads(leader, other)
        server.kill()
        fleet.pass_time(TURN_SECONDS)
        with pytest.raises(StoreError):
            sweep(leader)
        leader.close()
        server.start()
        fleet.pass_time(TURN_JITTER)
        assert [True, False] == leads(other, leader)


def test_the_release_of_a_turn_waits_briefly_for_a_server_that_stands_still() -> None:
    """The call itself waits for as long as the URL allows."""
    with running_server() as server, RedisStore(f"{server.url}?socket_timeout=60") as store:
        leader = store.backend("work").sweeper_for(
            Incarnation.current(), selection=RowSelection.ANY
        )
        sweep(leader)
        server.freeze()
        leader.close()
        unfinished = [each for each in threading.enumerate() if "redis-release" in each.name]
        server.thaw()
        assert 1 == len(unfinished)
        unfinished[0].join()


# --- looks ---


class Hints:
    """Counts the notifications of the mailbox."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self._subscription = self._client.pubsub()
        self._subscription.subscribe("longwatch:{work}")
        assert self._subscription.get_message(timeout=5.0)

    def count(self) -> int:
        """How many have come since the last call."""
        self._client.publish("longwatch:{work}", "the end")
        found = 0
        while (message := self._subscription.get_message(timeout=5.0))["data"] != b"the end":
            found += message["type"] == "message"
        return found

    def close(self) -> None:
        self._subscription.close()
        self._client.close()


@pytest.fixture
def hints(server: RedisServer) -> Iterator[Hints]:
    counted = Hints(server)
    yield counted
    counted.close()


def test_a_message_whose_hint_every_engine_ignored_is_hinted_again_within_a_second(
    fleet: Fleet, hints: Hints
) -> None:
    leader = fleet.engine()
    sweep(leader)
    fleet.backend.put(new_messages(1))
    assert 1 == hints.count()
    fleet.pass_time(1.0)
    sweep(leader)
    assert 1 == hints.count()
    claim(fleet.backend, enter(fleet.backend))
    fleet.pass_time(1.0)
    sweep(leader)
    assert 0 == hints.count()


def test_an_engine_that_ignores_hints_is_woken_by_the_second_look_that_finds_a_message_waiting(
    server: RedisServer, fleet: Fleet, hints: Hints
) -> None:
    leader, gate = fleet.engine(), HintGate(is_shared=True, fraction=lambda: 1.0)
    sweep(leader)
    with RedisStore(server.url) as there:
        there.backend("work").listen(gate)
        assert gate.block(20.0), "it is subscribed"
        gate.clear()
        fleet.backend.put(new_messages(1))
        fleet.pass_time(1.0)
        sweep(leader)
        assert 2 == hints.count()
        assert not gate.is_set()
        fleet.pass_time(1.0)
        sweep(leader)
        assert gate.block(20.0)


def test_messages_that_no_engine_may_claim_are_not_hinted(fleet: Fleet, hints: Hints) -> None:
    fleet.backend.put(new_messages(1))
    fleet.backend.pause(paused=True)
    hints.count()
    assert [True] == leads(fleet.engine())
    assert 0 == hints.count()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [(RowSelection.ORDINARY, 0), (RowSelection.ANY, 1), (RowSelection.SUSPECTS, 1)],
)
def test_under_a_parent_ordinary_engines_are_not_notified_of_suspects(
    fleet: Fleet, hints: Hints, selection: RowSelection, expected: int
) -> None:
    fleet.backend.put(new_messages(1))
    crash(fleet.backend, 2)
    hints.count()
    sweep(fleet.engine(selection=selection))
    assert expected == hints.count()


def test_the_next_round_is_when_the_next_delayed_message_is_due(fleet: Fleet) -> None:
    fleet.backend.put(new_messages(1, delay=0.5))
    leader = fleet.engine()
    swept = sweep(leader)
    assert swept.next_in is not None
    assert 0 < swept.next_in <= 0.5
    fleet.pass_time(0.5)
    assert 1 == sweep(leader).changed
    assert 1 == len(claim(fleet.backend, enter(fleet.backend)))


def test_the_leader_reclaims_leases_that_have_ended_and_another_engine_does_not(
    fleet: Fleet,
) -> None:
    fleet.backend.put(new_messages(1))
    claim(fleet.backend, enter(fleet.backend, elsewhere()), duration=3.0)
    leader, other = fleet.engine(), fleet.engine()
    leads(leader, other)
    fleet.pass_time(2.0)
    assert 0 == sweep(leader).changed
    fleet.pass_time(2.0)
    assert [0, 1] == [sweep(other).changed, sweep(leader).changed]


def test_after_a_full_batch_the_leader_looks_again_at_once(fleet: Fleet) -> None:
    fleet.backend.put(new_messages(600))
    claim(fleet.backend, enter(fleet.backend, elsewhere()), 600, duration=1.0)
    fleet.pass_time(2.0)
    leader = fleet.engine()
    first, second = sweep(leader), sweep(leader)
    assert [500, 100] == [first.changed, second.changed]
    assert 0.0 == first.next_in
    assert 1.0 == second.next_in


def test_an_engine_that_gains_the_turn_does_not_remember_older_lapses(fleet: Fleet) -> None:
    """It would not wait for the renewal of owners that it saw lapsed long ago."""
    fleet.backend.put(new_messages(1))
    owner = enter(fleet.backend, renew_seconds=20.0)
    claim(fleet.backend, owner, duration=1.0)
    fleet.pass_time(2.0)
    first, second = fleet.engine(elsewhere()), fleet.engine()
    assert 0 == sweep(first).changed
    fleet.pass_time(ENDED_SECONDS)
    assert 0 == sweep(second).changed
    fleet.backend.renew(owner=owner, lease_seconds=20.0)
    second.close()
    fleet.pass_time(21.0)
    assert [True] == leads(first)
    assert 1 == fleet.backend.stats().leased


# --- old dead letters ---


def keep_dead_letters_for(fleet: Fleet, seconds: float) -> RedisBackend:
    """The mailbox of a process that sets a retention."""
    return fleet.store.backend("work", limits=MailboxLimits(dead_retention=seconds))


def make_dead_letters(fleet: Fleet, count: int) -> None:
    fleet.backend.put(new_messages(count))
    owner = enter(fleet.backend)
    for row in claim(fleet.backend, owner, count):
        settled(fleet.backend, row.claim, outcome=RowOutcome.DEAD, reason="failed")


def engine_of(backend: RedisBackend) -> EngineSweeper:
    return backend.sweeper_for(elsewhere(), selection=RowSelection.ANY)


def test_old_dead_letters_are_deleted_although_the_leader_has_no_retention(fleet: Fleet) -> None:
    leader, other = fleet.engine(), engine_of(keep_dead_letters_for(fleet, 3600.0))
    assert [True, False] == leads(leader, other)
    make_dead_letters(fleet, 3)
    for _ in range(59):
        fleet.pass_time(60.0)
        assert [True, False] == leads(leader, other)
    assert 3 == fleet.backend.stats().dead
    for _ in range(95):
        fleet.pass_time(60.0)
        leads(leader, other)
    assert 0 == fleet.backend.stats().dead


def test_a_leader_deletes_old_dead_letters_within_a_minute(fleet: Fleet) -> None:
    leader = engine_of(keep_dead_letters_for(fleet, 100.0))
    sweep(leader)
    make_dead_letters(fleet, 1)
    fleet.pass_time(99.0)
    sweep(leader)
    assert 1 == fleet.backend.stats().dead
    fleet.pass_time(LEADER_INTERVAL)
    sweep(leader)
    assert 0 == fleet.backend.stats().dead


def test_an_idle_engine_without_the_turn_looks_for_old_dead_letters_once_an_hour(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, other = fleet.engine(), engine_of(keep_dead_letters_for(fleet, 3600.0))
    leads(leader, other)
    monkeypatch.setattr(other._turns, "update", frozenset)  # type: ignore[attr-defined]

    def sweep_for_a_day() -> None:
        for _ in range(24 * 12):
            fleet.pass_time(300.0)
            sweep(other)

    calls = fleet.calls_of(sweep_for_a_day)
    assert {"delete_old_dead_letters"} == {*calls} - {"find_stale"}
    assert 24 / 1.5 - 1 <= calls["delete_old_dead_letters"] <= 24 / 0.5 + 1


def test_after_a_full_batch_of_old_dead_letters_the_next_round_deletes_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longwatch.mailbox.redis.backend.SWEEP_BATCH", 2)
    leader = engine_of(keep_dead_letters_for(fleet, 100.0))
    sweep(leader)
    make_dead_letters(fleet, 5)
    fleet.pass_time(101.0)
    for left in (3, 1, 0):
        sweep(leader)
        assert left == fleet.backend.stats().dead


# --- owners ---


def test_looks_read_the_owners_only_if_a_lease_has_lapsed_or_rarely(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    leader = fleet.engine()
    look = leader._sweeper.look  # type: ignore[attr-defined]

    def count(*how: Any, **options: Any) -> Any:
        found = look(*how, **options)
        read.append(len(found.owners))
        return found

    monkeypatch.setattr(leader._sweeper, "look", count)  # type: ignore[attr-defined]
    monkeypatch.setattr(leader._owners, "find_dead", lambda: None)  # type: ignore[attr-defined]
    fleet.backend.put(new_messages(1))
    claim(fleet.backend, enter(fleet.backend, elsewhere()), duration=3.5)
    for _ in range(12):
        sweep(leader)
        fleet.pass_time(1.0)
    assert [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0] == read


def test_the_server_sends_the_owners_again_only_after_a_registration(fleet: Fleet) -> None:
    engine = fleet.engine()
    look = engine._sweeper.look  # type: ignore[attr-defined]
    enter(fleet.backend, elsewhere())
    known = look(Reads.OWNERS)
    assert [1, 0] == [len(known.owners), len(look(Reads.OWNERS, version=known.version).owners)]
    fleet.pass_time(3601.0)
    fleet.backend.sweep()  # deletes the first, so that there is one owner before and after
    enter(fleet.backend, elsewhere())
    assert 1 == len(look(Reads.OWNERS, version=known.version).owners)


def test_an_engine_reads_the_owners_again_if_asked_to(fleet: Fleet) -> None:
    engine = fleet.engine()
    enter(fleet.backend, elsewhere())
    found = engine._read_owners(False)  # type: ignore[attr-defined]
    assert [1, None] == [len(found.owners), engine._read_owners(False)]  # type: ignore[attr-defined]
    assert 1 == len(engine._read_owners(True).owners)  # type: ignore[attr-defined]


def test_a_registration_by_an_earlier_release_is_seen_too(
    server: RedisServer, fleet: Fleet
) -> None:
    """It does not count registrations."""
    engine = fleet.engine()
    first = enter(fleet.backend, elsewhere())
    engine._read_owners(False)  # type: ignore[attr-defined]
    with server.client() as client:
        owners = "longwatch:{work}:owners"
        client.hset(owners, "7", client.hget(owners, str(first)))
    assert 2 == len(engine._read_owners(False).owners)  # type: ignore[attr-defined]


def test_an_engine_without_the_turn_reclaims_from_dead_owners_of_its_host(
    fleet: Fleet, host: Path
) -> None:
    fleet.backend.put(new_messages(1))
    leader, other = fleet.engine(elsewhere()), fleet.engine()
    sweep(leader)
    leader._owners.release()  # type: ignore[attr-defined]
    assert 0 == sweep(other).changed
    with subprocess.Popen(["sleep", "60"]) as process:
        claim(fleet.backend, enter(fleet.backend, Incarnation.of(process.pid)))
        (host / "page-new").touch()
        assert {"find_stale": 1} == fleet.calls_of(lambda: sweep(other))
        assert not fleet.calls_of(lambda: sweep(other))
        process.kill()
    swept = sweep(other)
    assert (1, False) == (swept.changed, swept.leads)


def test_an_owner_that_drained_is_blamed_for_nothing(fleet: Fleet, host: Path) -> None:
    """It died on this host, and the engine without the turn finds it."""
    assert host.exists()
    fleet.backend.put(new_messages(1))
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = enter(fleet.backend, Incarnation.of(process.pid), "/nowhere/page")
        claim(fleet.backend, owner)
        fleet.backend.report_draining(owner=owner)
        process.kill()
    assert 1 == sweep(fleet.engine()).changed
    [found] = fleet.backend.peek(limit=1)
    assert (0, 0, 1) == (found.crashes, found.lost, found.releases)


# --- processes of an earlier release ---


def test_a_sweep_of_an_earlier_release_takes_part_without_a_turn(
    fleet: Fleet, backend_of_before: RedisBackend
) -> None:
    fleet.backend.put(new_messages(2))
    owner = enter(fleet.backend, elsewhere())
    rows = claim(fleet.backend, owner, 2, duration=1.0)
    assert [True] == leads(fleet.engine())
    settled(fleet.backend, rows[0].claim)
    backend_of_before.store.jump.lease += 2.0
    assert 1 == backend_of_before.sweep()


@pytest.fixture
def backend_of_before(server: RedisServer) -> Iterator[RedisBackend]:
    with RedisStore(server.url) as opened:
        yield opened.backend("work")


# --- an engine ---


class NoHintAnswered:
    """The chances of an engine that ignores every hint."""

    def __init__(self) -> None:
        self.drawn = 0

    def __call__(self) -> float:
        self.drawn += 1
        return 1.0


class IdleEngine:
    """An engine over one mailbox that has the turn, is idle, and ignores every hint."""

    def __init__(self, store: RedisStore) -> None:
        self.handled, self.chances = threading.Event(), NoHintAnswered()
        self.clock: FakeClock = store.clock  # type: ignore[assignment]
        opening: Any = open_mailbox
        mailbox: Mailbox[Any] = opening(store, "work")
        subscribed = Wakeup()
        mailbox.backend.listen(subscribed)
        assert subscribed.block(20.0), "later subscriptions wake no engine"
        runner = MessageRunner(mailbox, lambda _message, _context: self.handled.set())
        self._engine = Engine(mailbox.backend, runner, policy=EnginePolicy(), clock=self.clock)

    def __enter__(self) -> Self:
        self._engine.start()
        gate = self._engine._current_run._wakeup  # type: ignore[union-attr]
        gate.probability, gate._fraction = 0.5, self.chances
        self.clock.await_parked(IDLE_THREADS)
        return self

    def __exit__(self, *_: object) -> None:
        stop_advancing_clock(self._engine, self.clock)


def test_an_engine_gets_a_message_whose_hint_it_ignored_about_a_second_later(
    server: RedisServer, store: RedisStore
) -> None:
    with RedisStore(server.url) as sender, IdleEngine(store) as engine:
        sender.backend("work").put(new_messages(1))
        assert eventually(lambda: engine.chances.drawn == 1)
        assert not engine.handled.is_set()
        for _ in range(5):
            engine.clock.advance(0.25, parked=engine.clock.parked)
        assert engine.handled.wait(20.0)


def test_an_engine_ignores_no_message_that_its_own_process_sends(store: RedisStore) -> None:
    with IdleEngine(store) as engine:
        store.backend("work").put(new_messages(1))
        assert engine.handled.wait(20.0)


def test_an_engine_ignores_no_message_that_its_own_process_makes_ready(store: RedisStore) -> None:
    backend = store.backend("work")
    backend.put(new_messages(1, delay=60.0))
    with IdleEngine(store) as engine:
        store.jump.wall += 60.0
        assert 1 == backend.sweep()
        assert engine.handled.wait(20.0)


def test_an_engine_ignores_no_message_that_its_own_process_replays(store: RedisStore) -> None:
    backend = store.backend("work")
    [sent] = backend.put(new_messages(1))
    [row] = claim(backend, enter(backend))
    settled(backend, row.claim, outcome=RowOutcome.DEAD, reason="failed")
    with IdleEngine(store) as engine:
        assert [True] == backend.replay([sent])
        assert engine.handled.wait(20.0)


def test_an_engine_ignores_no_message_that_its_own_process_releases_or_resumes(
    store: RedisStore,
) -> None:
    backend = store.backend("work")
    backend.put(new_messages(2))
    rows = claim(backend, enter(backend), 2)
    with IdleEngine(store) as engine:
        settled(backend, rows[0].claim, outcome=RowOutcome.RELEASED)
        assert engine.handled.wait(20.0)
        engine.handled.clear()
        backend.pause(paused=True)
        with RedisStore(store.url) as other:
            other.mailbox_number("work")
            settled(other.backend("work"), rows[1].claim, outcome=RowOutcome.RELEASED)
        backend.pause(paused=False)
        assert engine.handled.wait(20.0)
