from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import GroupDraining, GroupResumed
from longwatch.host.crash_file import CRASH_DIR_VARIABLE
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import LoopGroup
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock
from loop_rig import (
    GROUP_IDLE_THREADS,
    LOOP_IDLE_THREADS,
    BackgroundRun,
    GatedLoop,
    StubLoop,
    lapse_leases,
    prefetch,
    running_group,
    stub_group,
    wait_until,
)


@pytest.fixture(autouse=True)
def crashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CRASH_DIR_VARIABLE, str(tmp_path / "crashes"))
    return tmp_path / "crashes"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(tmp_path / "m.db") as opened:
        yield opened


def test_an_idle_group_stops_without_time_passing(mailbox: Mailbox[Any], clock: FakeClock) -> None:
    loops = [GatedLoop(requests=mailbox, name=name, clock=clock) for name in "abc"]
    group = LoopGroup(loops, clock=clock, events=Events())
    running = BackgroundRun(lambda: group.run(install_signals=False, wait_time_seconds=30))
    clock.await_parked(GROUP_IDLE_THREADS + 3 * LOOP_IDLE_THREADS)
    now = clock.monotonic()
    assert group.shutdown()
    running.wait()
    assert now == clock.monotonic()


def test_what_happens_to_messages_when_a_group_is_stopped(database: SqliteDatabase) -> None:
    mailbox = open_mailbox(database, "jobs")
    mailbox.send_many(range(10))
    loop = GatedLoop(requests=mailbox, concurrency=2)
    group = LoopGroup([loop], events=Events())
    running = BackgroundRun(lambda: group.run(install_signals=False))
    loop.next_started(), loop.next_started()
    prefetch(loop, 3)
    assert 5 == mailbox.stats().ready
    stopping = BackgroundRun(group.shutdown)
    wait_until(lambda: mailbox.stats().ready == 8)
    elsewhere = mailbox.receive(max_messages=10)
    loop.open(0, 1)
    running.wait()
    stopping.wait()
    assert (list(range(2, 10)), 8) == (
        [message.body for message in elsewhere],
        mailbox.approximate_count(),
    )
    assert [(0, 0)] * 8 == [(message.failures, message._record.crashes) for message in elsewhere]


def test_a_lease_that_runs_out_in_a_long_shutdown_is_swept_and_the_late_result_is_refused(
    database: SqliteDatabase,
) -> None:
    mailbox, responses = open_mailbox(database, "jobs"), open_mailbox(database, "responses")
    mailbox.send("x")
    loop = GatedLoop(requests=mailbox, responses=responses)
    group = LoopGroup([loop], events=Events())
    running = BackgroundRun(lambda: group.run(install_signals=False, visibility_timeout=1800))
    loop.next_started()
    stopping = BackgroundRun(group.shutdown)
    wait_until(lambda: group.draining)
    lapse_leases(database, 1801.0)
    [again] = mailbox.receive(wait_time_seconds=TIMEOUT)
    loop.open("x")
    running.wait()
    stopping.wait()
    again.acknowledge()
    assert (0, 2) == (responses.approximate_count(), again.delivery_count)


def test_a_handler_may_shut_the_group_down_and_does_not_wait_for_itself(
    mailbox: Mailbox[Any],
) -> None:
    answers: list[bool] = []

    class Ends(GatedLoop):
        def handle(self, request: Any, context: Any) -> Any:
            answers.append(group.shutdown())

    group = LoopGroup(
        [Ends(requests=mailbox), GatedLoop(requests=open_mailbox(MemoryStore(), "others"))],
        events=Events(),
    )
    mailbox.send("x")
    BackgroundRun(lambda: group.run(install_signals=False)).wait()
    assert ([False], 0) == (answers, mailbox.approximate_count())


# --- draining ---


def test_drain_and_resume_are_passed_on_to_every_loop_that_knows_them() -> None:
    made = stub_group(StubLoop("a"), StubLoop("b"))
    with running_group(made.group):
        made.wait_idle()
        seen = [made.group.draining]
        made.group.drain()
        seen.append(made.group.draining)
        made.group.resume()
        assert [False, True, False] == [*seen, made.group.draining]
    assert [["drain", "resume"]] * 2 == [loop.drain_calls for loop in made.loops]
    assert (1, 1) == (len(made.observer.of(GroupDraining)), len(made.observer.of(GroupResumed)))


def test_a_drained_group_stays_up_and_takes_nothing(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    group = LoopGroup([loop], events=Events())
    with running_group(group) as running:
        mailbox.send("a")
        loop.next_started()
        group.drain()
        mailbox.send("b")
        loop.open("a")
        wait_until(lambda: mailbox.stats().leased == 0)
        assert (True, False) == (loop.started.empty(), running.is_finished)
        group.resume()
        assert "b" == loop.next_started().request


def test_a_group_that_was_drained_before_its_run_begins_drained(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    group = LoopGroup([loop], events=Events())
    mailbox.send("x")
    group.drain()
    with running_group(group):
        wait_until(lambda: loop._engine is not None and loop._engine.started)
        assert (True, 1) == (group.draining, mailbox.stats().ready)
        group.resume()
        assert "x" == loop.next_started().request


def test_a_drain_ends_with_its_run(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    group = LoopGroup([loop], events=Events())
    with running_group(group):
        wait_until(lambda: loop._engine is not None and loop._engine.started)
        group.drain()
    mailbox.send("x")
    with running_group(group):
        assert "x" == loop.next_started().request
        assert not group.draining


def test_a_group_that_is_being_stopped_is_not_resumed() -> None:
    made = stub_group(StubLoop())
    made.loops[0].ignores_shutdown = True
    with running_group(made.group):
        made.wait_idle()
        stopping = BackgroundRun(made.group.shutdown)
        made.loops[0].shutdown_timeouts.get(timeout=TIMEOUT)
        made.group.resume()
        assert (True, []) == (made.group.draining, made.loops[0].drain_calls)
        made.loops[0].may_end.set()
        stopping.wait()
