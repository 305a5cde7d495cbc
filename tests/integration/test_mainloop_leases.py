from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.engine import (
    LeaseLost,
    LeasesRenewed,
    RowsClaimed,
    RowsSettled,
    SettlementRefused,
)
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.engine import Engine
from longwatch.errors import (
    StoreUnreachableError,
)
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock, RecordingObserver
from loop_rig import (
    LOOP_IDLE_THREADS,
    BackgroundRun,
    GatedLoop,
    lapse_leases,
    pass_time,
    prefetch,
    running_loop,
    wait_until,
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(tmp_path / "m.db") as opened:
        yield opened


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# --- heartbeats ---


def test_a_loop_is_as_fresh_as_its_stalest_busy_slot(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, concurrency=8, clock=clock)
    mailbox.send_many(range(3))
    with running_loop(loop):
        begun = {
            each.request: each.context
            for each in (loop.next_started(), loop.next_started(), loop.next_started())
        }
        pass_time(clock, 60.0, loop)
        assert 60.0 == loop.heartbeat.elapsed()
        begun[0].beat()
        begun[1].beat()
        assert 60.0 == loop.heartbeat.elapsed()
        begun[2].beat()
        assert 1.0 >= loop.heartbeat.elapsed()


def test_a_slot_that_is_idle_is_no_stall_and_an_idle_loop_is_fresh(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, clock=clock)
    mailbox.send("x")
    with running_loop(loop):
        loop.next_started()
        loop.open("x")
        clock.await_parked(LOOP_IDLE_THREADS)
        pass_time(clock, 300.0, loop)
        assert 1.0 >= loop.heartbeat.elapsed()


def test_a_slot_that_has_rested_for_long_counts_as_busy_only_after_its_first_beat(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    """Or a watchdog that looks in that moment would take its rest for a stall, and end the
    process.
    """
    loop, ages = GatedLoop(requests=mailbox, clock=clock), list[float]()
    with running_loop(loop):
        clock.await_parked(LOOP_IDLE_THREADS)
        pass_time(clock, 3600.0, loop)
        gate = loop._engine._current_run.slot_pool.gate  # type: ignore[union-attr]
        may_begin = gate.may_begin

        def look(now: float) -> bool:
            ages.append(loop.heartbeat.elapsed())
            return may_begin(now)

        gate.may_begin = look  # type: ignore[method-assign]
        mailbox.send("x")
        loop.next_started()
    assert [True] == [age <= 1.0 for age in ages]


def test_after_a_run_its_age_counts_from_the_end_of_it(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, clock=clock)
    clock.advance(5000.0)
    with running_loop(loop):
        clock.await_parked(LOOP_IDLE_THREADS)
    assert 60.0 >= loop.heartbeat.elapsed()


def test_a_plain_heartbeat_is_what_watchers_are_given(mailbox: Mailbox[Any]) -> None:
    assert isinstance(GatedLoop(requests=mailbox).heartbeat, Heartbeat)


# --- draining ---


def test_a_drained_loop_takes_nothing_and_finishes_what_runs_until_it_is_resumed(
    mailbox: Mailbox[Any],
) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send_many(["a", "b"])
    with running_loop(loop):
        loop.next_started()
        loop.drain()
        loop.open("a")
        wait_until(lambda: mailbox.stats().leased == 0)
        assert (True, True) == (loop.running, loop.started.empty())
        loop.resume()
        assert "b" == loop.next_started().request


def test_a_loop_that_was_drained_before_its_run_takes_nothing_not_even_in_the_first_moment(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send_many(range(100))
    loop = GatedLoop(requests=mailbox, concurrency=4)
    drain = Engine.drain

    def too_late(engine: Engine) -> None:
        """An engine that starts to take messages first gets the time for that."""
        wait_until(lambda: not loop.started.empty())
        drain(engine)

    monkeypatch.setattr(Engine, "drain", too_late)
    loop._is_drained = True
    with running_loop(loop):
        wait_until(lambda: loop._engine is not None and loop._engine.started)
        assert (True, []) == (
            loop._engine is not None and loop._engine.draining,
            loop.observer.of(RowsClaimed),
        )
        loop.resume()
        loop.next_started()


def test_a_loop_that_was_resumed_before_its_run_takes_messages(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    loop.drain()
    loop.resume()
    mailbox.send("x")
    with running_loop(loop):
        assert "x" == loop.next_started().request


def test_a_drain_ends_with_its_run(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    with running_loop(loop):
        wait_until(lambda: loop._engine is not None and loop._engine.started)
        loop.drain()
    mailbox.send("x")
    with running_loop(loop):
        assert "x" == loop.next_started().request


# --- leases ---


def test_what_was_not_begun_is_handed_back_at_once_and_spends_nothing(
    database: SqliteDatabase,
) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send_many(range(6))
    loop = GatedLoop(requests=mailbox)
    running = BackgroundRun(loop.run)
    loop.next_started()
    prefetch(loop, 4)
    assert 5 == loop.held_count
    stopping = BackgroundRun(loop.shutdown)
    wait_until(lambda: (mailbox.stats().ready, loop.held_count) == (5, 1))
    assert not running.is_finished
    assert [(0, 0)] * 5 == [(each.failures, each.crashes) for each in mailbox.backend.peek(limit=5)]
    assert [1, 2, 3, 4, 5] == [message.body for message in mailbox.receive(max_messages=10)]
    loop.open(0)
    running.wait()
    stopping.wait()
    assert 0 == len(mailbox.dead_letters)


def test_leases_are_kept_until_the_last_message_is_settled(
    database: SqliteDatabase, clock: FakeClock
) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send("x")
    loop = GatedLoop(requests=mailbox, clock=clock)
    running = BackgroundRun(lambda: loop.run(visibility_timeout=30))
    context = loop.next_started().context
    stopping = BackgroundRun(lambda: loop.shutdown(timeout=2000.0))
    clock.await_parked(LOOP_IDLE_THREADS + 1)
    for _ in range(10):
        database.jump.lease += 20.0
        context.beat()
        pass_time(clock, 20.0, loop, parked=LOOP_IDLE_THREADS + 1)
        assert [] == mailbox.receive()
    assert 10 <= len(loop.observer.of(LeasesRenewed))
    loop.open("x")
    running.wait()
    stopping.wait()
    assert (0, []) == (mailbox.approximate_count(), loop.observer.of(SettlementRefused))


def test_the_first_beat_shortens_no_lease(database: SqliteDatabase) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send("x")
    loop = GatedLoop(requests=mailbox)
    with running_loop(loop, visibility_timeout=1800):
        loop.next_started().context.beat("half way")
        database.jump.lease = 1790.0
        assert ([], 1) == (mailbox.receive(), mailbox.stats().leased)


def test_work_whose_lease_was_lost_neither_acknowledges_nor_counts(
    database: SqliteDatabase,
) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send("x")
    loop = GatedLoop(requests=mailbox)
    with running_loop(loop, visibility_timeout=300):
        loop.next_started()
        lapse_leases(database, 301.0)
        [taken] = mailbox.receive(wait_time_seconds=TIMEOUT)
        loop.open("x")
        loop.observer.wait_for(SettlementRefused)
        taken.acknowledge()
    assert (0, 1) == (
        _done(loop.observer),
        sum(event.refused for event in loop.observer.of(RowsSettled)),
    )


def _done(observer: RecordingObserver) -> int:
    return sum(event.done for event in observer.of(RowsSettled))


def test_leases_that_cannot_be_renewed_are_lost_in_time_and_the_work_is_told(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, clock=clock)
    mailbox.send("x")

    def down(*given: Any, **named: Any) -> int:
        raise StoreUnreachableError("down")

    with running_loop(loop, visibility_timeout=30):
        context = loop.next_started().context
        mailbox.backend.renew = down  # type: ignore[method-assign]
        pass_time(clock, 23.9, loop)
        assert (False, False) == (context.lease_lost, context.cancelled)
        pass_time(clock, 0.2, loop)
        assert (True, True, "lease_lost") == (
            context.lease_lost,
            context.cancelled,
            context.cancel.reason,
        )
        assert "untrusted" == loop.observer.wait_for(LeaseLost).reason
        loop.open("x")
        wait_until(lambda: mailbox.stats().leased == 0)
        assert (1, 0) == (mailbox.stats().ready, _done(loop.observer))


def test_work_that_gives_no_beat_for_the_visibility_timeout_is_not_kept(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, clock=clock, concurrency=2)
    mailbox.send_many(["silent", "beating"])
    with running_loop(loop, visibility_timeout=30):
        contexts = {
            begun.request: begun.context for begun in (loop.next_started(), loop.next_started())
        }
        for _ in range(8):
            contexts["beating"].beat()
            pass_time(clock, 10.0, loop)
        assert (True, False) == (contexts["silent"].lease_lost, contexts["beating"].lease_lost)
        assert "stale" == loop.observer.wait_for(LeaseLost).reason
