from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from engine_rig import (
    IDLE_THREADS,
    QUIET_POLICY,
    TIMEOUT,
    FakeRow,
    FakeSource,
    GatedRunner,
    stop_advancing_clock,
)
from longwatch.core.events.base import Events
from longwatch.core.events.engine import LeaseLost, LeasesRenewed
from longwatch.core.fake_clock import FakeClock
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import RowOutcome
from longwatch.engine.engine import Engine
from longwatch.engine.policy import PARENT_LEASE_SECONDS, EngineEnvironment
from longwatch.errors import StoreError, TryAgainError
from longwatch.host.beatpage import ChildBeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.host.parent_channel import (
    PARENT_INCARNATION_VARIABLE,
    PARENT_SOCKET_VARIABLE,
    ParentChannel,
)
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.url import open_source
from longwatch.runtime import LoopGroup
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import RecordingObserver
from loop_rig import LOOP_IDLE_THREADS, GatedLoop, running_group, running_loop, wait_until
from parent_rig import Parent

LEASE = 15.0
TRUST = 12.0
PARENT_RENEWED_POLICY = replace(QUIET_POLICY, slots=1, lease=LeasePolicy(LEASE), poll_interval=10.0)


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[Parent]:
    made = Parent(tmp_path / "line")
    yield made
    made.close()


class RenewableSource(FakeSource):
    """A source that another process can find."""

    def locator(self) -> dict[str, str] | None:
        return {"kind": "fake", "url": "fake://", "name": "jobs"}


@dataclass
class ParentRenewedEngine:
    """An engine whose leases a parent keeps, and what that knows of it."""

    source: FakeSource
    clock: FakeClock
    observer: RecordingObserver
    engine: Engine
    page: ChildBeatPage
    announcement: dict[str, Any]

    def renew(self) -> None:
        """As the parent does it: it asks the store, and notes the time before that."""
        self.page.trust_until(self.clock.boottime() + TRUST)

    def pass_time(self, seconds: float) -> None:
        """Move time no faster than the store answers."""
        end = self.clock.monotonic() + seconds
        while (now := self.clock.monotonic()) < end:
            self.clock.await_parked(IDLE_THREADS)
            self.clock.advance(
                min(max(self.clock._next_due() - now, 0.0), end - now), parked=IDLE_THREADS
            )
            renewal = self.engine._current_run._lease_renewer._renewal  # type: ignore[union-attr]
            assert renewal is None or renewal.done.block(TIMEOUT)
        self.clock.await_parked(IDLE_THREADS)


@contextmanager
def parent_renewed_engine(
    gate: GatedRunner, parent: Parent, *rows: FakeRow
) -> Iterator[ParentRenewedEngine]:
    source, clock, observer = RenewableSource(list(rows)), FakeClock(), RecordingObserver()
    line = ParentChannel(parent.address)
    engine = Engine(
        source,
        gate,
        policy=PARENT_RENEWED_POLICY,
        clock=clock,
        events=Events(observer),
        parent=line,
        name="mail",
    )
    engine.start()
    word = parent.receive_about("leases")
    page = ChildBeatPage(word["page"])
    try:
        yield ParentRenewedEngine(source, clock, observer, engine, page, word)
    finally:
        source.faults.clear()
        gate.open_all()
        stop_advancing_clock(engine, clock)
        page.close()


# --- what the parent is told ---


def test_it_announces_its_leases_before_it_takes_any(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        assert {
            "about": "leases",
            "pid": os.getpid(),
            "engine": "mail",
            "owner": 1,
            "page": here.source.pages[0],
            "source": {"kind": "fake", "url": "fake://", "name": "jobs"},
        } == here.announcement
        here.source.wait_for_calls("exchange", 1)
        assert here.source.calls.index("register_owner") < here.source.calls.index("exchange")
        gate.next_started()


def test_it_announces_their_end_when_the_last_is_settled(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        assert parent.is_silent()
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.DONE))
        assert here.engine.stop(timeout=None)
        assert {
            "about": "leases_ended",
            "pid": os.getpid(),
            "engine": "mail",
            "owner": 1,
        } == parent.receive()
        assert not Path(here.announcement["page"]).exists()


def test_without_its_parent_it_does_not_begin_and_leaves_nothing(tmp_path: Path) -> None:
    source = RenewableSource([FakeRow(1)])
    engine = Engine(
        source,
        GatedRunner(),
        policy=PARENT_RENEWED_POLICY,
        parent=ParentChannel(str(tmp_path / "nobody")),
    )
    with pytest.raises(
        TryAgainError, match="cannot send the leases message to the parent of this process"
    ):
        engine.start()
    assert (True, False, set()) == (
        engine.stopped,
        Path(source.pages[0]).exists(),
        source._listeners,
    )
    assert "exchange" not in source.calls


def test_a_parent_that_is_gone_does_not_keep_it_from_a_clean_end(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        parent.close()
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.DONE))
        assert here.engine.stop(timeout=None)
        assert (True, False) == (here.engine.stopped, Path(here.announcement["page"]).exists())


def test_a_source_that_no_other_process_finds_is_kept_by_the_process_itself(parent: Parent) -> None:
    source = FakeSource()
    engine = Engine(
        source, GatedRunner(), policy=PARENT_RENEWED_POLICY, parent=ParentChannel(parent.address)
    )
    with engine:
        assert not engine._current_run._lease_trust.is_renewed_by_parent  # type: ignore[union-attr]
    assert parent.is_silent()


# --- who renews ---


def test_while_the_parent_renews_the_process_does_not(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        for _ in range(20):
            here.pass_time(5.0)
            here.renew()
        assert ([], False) == (here.source.renewals, gate.contexts[1].lease_lost)


def test_when_the_parent_is_late_the_process_renews_by_itself_in_time(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        here.pass_time(5.0)
        here.renew()
        here.pass_time(8.0)
        assert [] == here.source.renewals
        here.pass_time(3.0)
        assert ([(1, ())], False) == (here.source.renewals, gate.contexts[1].lease_lost)
        here.pass_time(300.0)
        assert (False, []) == (gate.contexts[1].lease_lost, here.observer.of(LeaseLost))
        assert 30 <= len(here.observer.of(LeasesRenewed))


def test_what_it_renews_by_itself_the_page_says_too(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        here.pass_time(11.0)
        assert here.clock.monotonic() < here.page.read().trusted_until


def test_with_neither_parent_nor_store_the_lease_is_lost_in_time_and_nothing_more_begins(
    parent: Parent,
) -> None:
    gate = GatedRunner()

    def down() -> None:
        raise StoreError("down")

    with parent_renewed_engine(gate, parent, FakeRow(1), FakeRow(2)) as here:
        gate.next_started()
        here.source.faults["renew"] = down
        here.pass_time(TRUST - 0.1)
        assert not gate.contexts[1].lease_lost
        here.pass_time(0.2)
        assert (True, "untrusted") == (
            gate.contexts[1].lease_lost,
            here.observer.wait_for(LeaseLost).reason,
        )
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.RELEASED))
        here.pass_time(30.0)
        assert gate.started.empty()


def test_a_parent_that_renews_again_mends_what_was_lost(parent: Parent) -> None:
    gate = GatedRunner()

    def down() -> None:
        raise StoreError("down")

    with parent_renewed_engine(gate, parent, FakeRow(1), FakeRow(2)) as here:
        gate.next_started()
        here.source.faults["renew"] = down
        here.pass_time(TRUST + 0.1)
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.RELEASED))
        here.renew()
        here.pass_time(5.0)
        gate.next_started()


def test_after_a_suspend_the_parents_renewal_is_enough(parent: Parent) -> None:
    """The running row goes on, the engine renews nothing itself, and the result counts."""
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        for _ in range(3):
            here.clock.suspend(3600.0)
            here.renew()
            here.pass_time(TRUST / 2)
        assert (False, 0) == (gate.contexts[1].lease_lost, here.source.calls.count("renew"))
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.DONE))


def test_after_a_suspend_a_parent_that_does_not_renew_is_not_waited_for(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        here.clock.await_parked(IDLE_THREADS)
        here.clock.suspend(3600.0)
        gate.open(1)
        here.source.wait_for_settlements((1, RowOutcome.DONE))
        assert [1] == [rows for rows, _ in here.source.renewals]
        assert [] == here.observer.of(LeaseLost)


def test_rows_begin_on_the_word_of_the_parent_alone_whatever_holds_up_the_keeper(
    parent: Parent,
) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        begin_gate = here.engine._current_run.slot_pool.gate  # type: ignore[union-attr]
        later = here.clock.monotonic() + TRUST + 1.0
        assert not begin_gate.may_begin(later)
        here.page.trust_until(later + 0.5)
        assert (True, False) == (begin_gate.may_begin(later), begin_gate.may_begin(later + 0.5))


def test_silent_work_is_kept_all_the_same_until_the_parent_ends_the_process(parent: Parent) -> None:
    """Whether it stalls is the parent's to see, on the page."""
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent, FakeRow(1)) as here:
        gate.next_started()
        for _ in range(200):
            here.pass_time(5.0)
            here.renew()
        assert not gate.contexts[1].lease_lost
        assert {1: 1000.0} == here.page.read().stalled_rows(
            here.clock.monotonic(), older_than=720.0
        )


def test_the_page_shows_that_the_engine_itself_turns(parent: Parent) -> None:
    gate = GatedRunner()
    with parent_renewed_engine(gate, parent) as here:
        here.clock.await_parked(IDLE_THREADS)
        first = here.page.read().beat_at
        here.pass_time(1000.0)
        assert first < here.page.read().beat_at <= here.clock.monotonic()


# --- loops and groups ---


def test_a_loop_under_a_parent_leases_for_15_seconds_whatever_it_was_run_with(
    tmp_path: Path, parent: Parent
) -> None:
    with SqliteDatabase(tmp_path / "m.db") as database:
        mailbox = open_mailbox(database, "jobs")
        loop = GatedLoop(requests=mailbox)
        loop.attach(
            EngineEnvironment(name="mail", events=Events(), parent=ParentChannel(parent.address))
        )
        mailbox.send("x")
        with running_loop(loop, visibility_timeout=1800):
            loop.next_started()
            word = parent.receive_about("leases")
            assert (PARENT_LEASE_SECONDS, None) == (
                loop._engine.policy.lease.lease_seconds,  # type: ignore[union-attr]
                loop._engine.policy.stale_after,  # type: ignore[union-attr]
            )
            database.jump.lease = PARENT_LEASE_SECONDS + 1.0
            assert 0 == mailbox.stats().ready
        assert ("mail", {"kind": "mailbox", "url": database.absolute_url, "name": "jobs"}) == (
            word["engine"],
            word["source"],
        )


def test_whoever_hears_of_it_can_renew_by_owner_in_another_process(
    tmp_path: Path, parent: Parent
) -> None:
    with SqliteDatabase(tmp_path / "m.db") as database:
        mailbox = open_mailbox(database, "jobs")
        loop = GatedLoop(requests=mailbox, concurrency=2)
        loop.attach(
            EngineEnvironment(name="mail", events=Events(), parent=ParentChannel(parent.address))
        )
        mailbox.send_many(["a", "b", "c"])
        stores: dict[str, Any] = {}
        with running_loop(loop):
            loop.next_started(), loop.next_started()
            word = parent.receive_about("leases")
            source = open_source(word["source"], stores)
            assert 2 == source.renew(owner=word["owner"], lease_seconds=LEASE)
        for store in stores.values():
            store.close()


def test_a_loop_on_messages_in_memory_keeps_its_own_leases_for_as_long_as_it_was_run_with(
    parent: Parent,
) -> None:
    loop = GatedLoop(requests=open_mailbox(MemoryStore(), "jobs"))
    loop.attach(
        EngineEnvironment(name="mail", events=Events(), parent=ParentChannel(parent.address))
    )
    with running_loop(loop, visibility_timeout=1800):
        wait_until(lambda: loop._engine is not None and loop._engine.started)
        assert 1800.0 == loop._engine.policy.lease.lease_seconds  # type: ignore[union-attr]
    assert parent.is_silent()


def test_a_loop_waits_for_a_parent_that_does_not_listen_yet(tmp_path: Path) -> None:
    with SqliteDatabase(tmp_path / "m.db") as database:
        mailbox = open_mailbox(database, "jobs")
        loop = GatedLoop(requests=mailbox)
        failed = threading.Event()
        loop.attach(
            EngineEnvironment(
                name="mail",
                events=Events(lambda _: failed.set()),
                parent=ParentChannel(str(tmp_path / "line")),
            )
        )
        mailbox.send("x")
        with running_loop(loop):
            assert failed.wait(TIMEOUT)
            later = Parent(tmp_path / "line")
            assert "mail" == later.receive_about("leases")["engine"]
            loop.next_started()
        later.close()


def test_a_group_tells_its_parent_what_it_runs_and_how_it_is(
    tmp_path: Path, parent: Parent
) -> None:
    with SqliteDatabase(tmp_path / "m.db") as database:
        mailbox = open_mailbox(database, "jobs")
        clock = FakeClock()
        loop = GatedLoop(requests=mailbox, name="mail", clock=clock)
        group = LoopGroup([loop], health_port=0, clock=clock, events=Events())
        group.set_parent(ParentChannel(parent.address))
        mailbox.send("x")
        with running_group(group):
            word = parent.receive_about("group")
            assert (["mail"], 720.0, os.getpid()) == (word["loops"], word["threshold"], word["pid"])
            assert (True, None) == (Path(word["crash_file"]).exists(), group.health_address)
            loop.next_started()
            clock.await_parked(LOOP_IDLE_THREADS + 3)
            assert ([], True, [{"name": "mail", "age": 1.0, "holding": 1}]) == state(parent, clock)
            group.drain()
            clock.await_parked(LOOP_IDLE_THREADS + 3)
            assert (["draining: draining"], False) == state(parent, clock)[:2]


def state(parent: Parent, clock: FakeClock) -> tuple[list[str], bool, list[dict[str, Any]]]:
    """How the group says that it is, a second later."""
    while not parent.is_silent():
        pass
    clock.advance(1.0)
    word = parent.receive_about("state")
    return word["failing"], word["ready"], word["loops"]


# --- the line itself ---


def test_the_line_is_taken_out_of_the_environment_which_children_inherit() -> None:
    environ = {
        PARENT_SOCKET_VARIABLE: "/somewhere",
        PARENT_INCARNATION_VARIABLE: "its.incarnation",
        "OTHER": "1",
    }
    line = ParentChannel.from_environment(environ)
    assert line is not None
    parent, guardian = (line.incarnations or "").split()
    assert ("/somewhere", "its.incarnation") == (line.address, parent)
    assert os.getppid() == Incarnation.parse(guardian).pid
    assert {"OTHER": "1"} == environ
    assert ParentChannel.from_environment(environ) is None


def test_what_may_be_lost_is_said_without_waiting_and_without_complaint(
    tmp_path: Path, parent: Parent
) -> None:
    ParentChannel(str(tmp_path / "nobody")).try_send("state", ready=True)
    line = ParentChannel(parent.address)
    for _ in range(1000):
        line.try_send("state", samples=["x" * 1000] * 50)
    assert "state" == parent.receive()["about"]


def test_a_long_word_arrives_whole(parent: Parent) -> None:
    samples = ["x" * 1000] * 100
    ParentChannel(parent.address).send("state", samples=samples)
    assert samples == parent.receive()["samples"]
