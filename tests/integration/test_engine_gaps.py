"""Engines whose machine was suspended, or whose process stood still, for longer than a lease."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from engine_rig import (
    IDLE_THREADS,
    QUIET_POLICY,
    TIMEOUT,
    EngineRig,
    FakeRow,
    GatedRunner,
    fake_rows,
    running_engine,
)
from longwatch.core.events.engine import LeaseLost
from longwatch.engine.claim_source import RowOutcome
from longwatch.engine.row_life import RowRunner
from longwatch.errors import StoreError
from longwatch.mailbox import open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock
from loop_rig import LOOP_IDLE_THREADS, GatedLoop, pass_time, running_loop, wait_until

DONE, BACK = RowOutcome.DONE, RowOutcome.RELEASED
POLICY = dataclasses.replace(QUIET_POLICY, slots=1, sweep_interval=1.0, poll_interval=1.0)
LEASE = POLICY.lease.lease_seconds
TRUST = POLICY.lease.trust_seconds


class StoppableClock(FakeClock):
    """A clock of a process that may stand still: time goes by, and no wait ends."""

    def __init__(self, *, monotonic: float = 1000.0) -> None:
        super().__init__(monotonic=monotonic)
        self._stopped_for = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._stopped_for

    def stop(self, seconds: float) -> None:
        self._stopped_for += seconds


Gap = Callable[[StoppableClock, float], None]
GAPS: dict[str, Gap] = {
    "suspended machine": StoppableClock.suspend,
    "stopped process": StoppableClock.stop,
}


@pytest.fixture(params=GAPS.values(), ids=list(GAPS))
def gap(request: pytest.FixtureRequest) -> Gap:
    found: Gap = request.param
    return found


@contextmanager
def stoppable_engine(runner: RowRunner, *rows: FakeRow) -> Iterator[tuple[EngineRig, Any]]:
    clock = StoppableClock()
    with running_engine(runner, *rows, policy=POLICY, clock=clock) as rig:
        yield rig, clock


def tick(rig: EngineRig, seconds: float) -> None:
    """Move time by what the clock of the waits counts, whatever was left out in a gap."""
    for _ in range(round(seconds / 0.25)):
        rig._await_renewal()
        rig.wait_idle()
        rig.clock.advance(0.25, parked=IDLE_THREADS)
    rig._await_renewal()
    rig.wait_idle()


def test_a_healthy_row_outlives_any_number_of_gaps(gap: Gap) -> None:
    """Its lease is renewed as soon as one thread notices the gap. The row goes on un-cancelled, and
    its result counts.
    """
    gate = GatedRunner()
    with stoppable_engine(gate, FakeRow(1)) as (rig, clock):
        gate.next_started()
        for number in range(1, 4):
            rig.wait_idle()
            before = len(rig.source.renewals)
            gap(clock, 100 * LEASE)
            tick(rig, 1.25)
            assert before < len(rig.source.renewals), number
            assert (False, False) == (gate.contexts[1].lease_lost, gate.contexts[1].cancelled)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        assert [] == rig.observer.of(LeaseLost)


def test_a_gap_that_ends_before_trust_does_changes_nothing(gap: Gap) -> None:
    gate = GatedRunner()
    with stoppable_engine(gate, FakeRow(1)) as (rig, clock):
        gate.next_started()
        rig.wait_idle()
        gap(clock, TRUST - 1.0)
        assert not rig.engine._current_run._lease_trust.is_lapsed  # type: ignore[union-attr]
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_after_a_gap_nothing_is_settled_claimed_swept_or_begun_before_a_renewal(gap: Gap) -> None:
    gate, answer = GatedRunner(), threading.Event()
    with stoppable_engine(gate, *fake_rows(1, 2)) as (rig, clock):
        gate.next_started()
        rig.fetcher._prefetch.limit = 1
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 2)
        rig.wait_idle()
        rig.source.faults["renew"] = lambda: answer.wait(10 * TIMEOUT)
        gap(clock, 10 * LEASE)
        before = list(rig.source.calls)
        gate.open(1)
        rig.source.put(FakeRow(3))
        for _ in range(8):
            rig.wait_idle()
            clock.advance(0.5, parked=IDLE_THREADS)
        rig.source.wait_for_calls("renew", 1)
        assert {"renew"} == set(rig.source.calls[len(before) :])
        assert (True, []) == (gate.started.empty(), rig.source.outcomes())

        del rig.source.faults["renew"]
        answer.set()
        tick(rig, 2.0)
        rig.source.wait_until(lambda: {(1, DONE), (2, BACK)} <= set(rig.source.outcomes()))
        assert 2 == gate.next_started()
        assert not rig.observer.of(LeaseLost)
        gate.open_all()


def test_a_gap_before_the_renewal_after_a_gap_costs_a_healthy_row_nothing(gap: Gap) -> None:
    """The process stands still again while the renewal is under way."""
    gate, answer = GatedRunner(), threading.Event()
    with stoppable_engine(gate, FakeRow(1)) as (rig, clock):
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["renew"] = lambda: answer.wait(10 * TIMEOUT)
        for _ in range(2):
            gap(clock, 10 * LEASE)
            for _ in range(4):
                rig.wait_idle()
                clock.advance(0.5, parked=IDLE_THREADS)
        del rig.source.faults["renew"]
        answer.set()
        tick(rig, 2.0)
        assert (False, False) == (gate.contexts[1].lease_lost, gate.contexts[1].cancelled)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        assert [] == rig.observer.of(LeaseLost)


def test_a_row_that_was_lost_in_the_gap_is_cancelled_and_no_other(gap: Gap) -> None:
    """The renewal comes first. The comparison with the store then finds what another owner has."""
    gate = GatedRunner()
    policy = dataclasses.replace(POLICY, slots=2)
    clock = StoppableClock()
    with running_engine(gate, *fake_rows(1, 2), policy=policy, clock=clock) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        gap(clock, 10 * LEASE)
        rig.source.reclaim(1)
        tick(rig, 4.0)
        lost = rig.observer.wait_for(LeaseLost)
        assert (("message-1",), "taken") == (lost.message_ids, lost.reason)
        assert (True, False) == (gate.contexts[1].lease_lost, gate.contexts[2].lease_lost)
        gate.open(1, 2)
        rig.source.wait_for_settlements((2, DONE))


def test_after_a_gap_a_store_that_does_not_answer_gets_the_time_of_a_lease(gap: Gap) -> None:
    """Then the running rows are cancelled, as they are whenever a store does not answer."""

    def down() -> None:
        raise StoreError("down")

    gate = GatedRunner()
    with stoppable_engine(gate, FakeRow(1)) as (rig, clock):
        gate.next_started()
        rig.wait_idle()
        for call in ("renew", "exchange", "held", "next_due"):
            rig.source.faults[call] = down
        gap(clock, 10 * LEASE)
        tick(rig, TRUST - 0.25)
        assert not gate.contexts[1].lease_lost
        tick(rig, 1.5)
        assert "untrusted" == rig.observer.wait_for(LeaseLost).reason
        assert gate.contexts[1].cancelled
        gate.open(1)


def test_after_a_gap_an_idle_engine_neither_sweeps_nor_claims_before_a_renewal(gap: Gap) -> None:
    """Or it would sweep the leases of its neighbours, which had the same gap and have not renewed
    them yet.
    """
    gate, answer = GatedRunner(), threading.Event()
    with stoppable_engine(gate) as (rig, clock):
        tick(rig, 2.0)
        rig.source.faults["renew"] = lambda: answer.wait(10 * TIMEOUT)
        gap(clock, 10 * LEASE)
        before = len(rig.source.calls)
        rig.source.put(FakeRow(1))
        for _ in range(8):
            rig.wait_idle()
            clock.advance(0.5, parked=IDLE_THREADS)
        rig.source.wait_for_calls("renew", 1)
        assert {"renew"} == set(rig.source.calls[before:])

        answer.set()
        tick(rig, 2.0)
        assert 1 == gate.next_started()
        rig.source.wait_until(lambda: "sweep" in rig.source.calls[before:])
        gate.open(1)


def test_a_gap_is_no_stall_and_hides_none(gap: Gap) -> None:
    """A row that could not beat in a gap is renewed after it. If it gives no beat from then on, it
    is lost as silent, as any other.
    """
    gate = GatedRunner()
    clock = StoppableClock()
    policy = dataclasses.replace(POLICY, stale_after=LEASE)
    with running_engine(gate, FakeRow(1), policy=policy, clock=clock) as rig:
        gate.next_started()
        rig.wait_idle()
        gap(clock, 100 * LEASE)
        tick(rig, 5.0)
        assert {(1, ())} == set(rig.source.renewals)
        assert [] == rig.observer.of(LeaseLost)
        tick(rig, 2.5 * LEASE)
        assert "stale" == rig.observer.wait_for(LeaseLost).reason
        gate.open(1)
        rig.source.wait_for_settlements((1, BACK))


def test_an_engine_works_on_a_machine_that_has_just_booted() -> None:
    """Clocks that are near 0 make nothing due late, nothing stalled and nothing lapsed."""
    gate = GatedRunner()
    policy = dataclasses.replace(POLICY, stale_after=LEASE)
    clock = StoppableClock(monotonic=0.0)
    with running_engine(
        gate, FakeRow(1), FakeRow(2, alone=True), policy=policy, clock=clock
    ) as rig:
        assert 1 == gate.next_started()
        rig.wait_idle()
        tick(rig, 2.0)
        assert 2 <= rig.source.calls.count("sweep")
        assert [] == rig.source.renewals
        tick(rig, LEASE / 3)
        assert [(1, ())] == rig.source.renewals[:1]
        gate.open(1)
        assert 2 == gate.next_started()
        gate.open(2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))
        assert [] == rig.observer.of(LeaseLost)


# --- with a store whose leases run on ---


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield MemoryStore()
        return
    with SqliteDatabase(tmp_path / "m.db") as opened:
        yield opened


@pytest.mark.parametrize("suspends", [1, 3, 8])
def test_a_healthy_handler_is_not_to_blame_for_suspends(store: Any, suspends: int) -> None:
    """The store counts the suspend, and so does the worker: it renews before it sweeps. The message
    is delivered once, and nothing is held against it.
    """
    clock = FakeClock()
    mailbox = open_mailbox(store, "jobs")
    loop = GatedLoop(requests=mailbox, clock=clock)
    mailbox.send("x")
    with running_loop(loop, visibility_timeout=30):
        context = loop.next_started().context
        for _ in range(suspends):
            clock.await_parked(LOOP_IDLE_THREADS)
            clock.suspend(3600.0)
            store.jump.lease += 3600.0
            pass_time(clock, 5.0, loop)
            context.beat()
        assert (False, False, 1) == (context.lease_lost, context.cancelled, context.attempt)
        assert loop.started.empty()
        loop.open("x")
        wait_until(lambda: mailbox.approximate_count() == 0)
    assert [] == list(mailbox.dead_letters)
