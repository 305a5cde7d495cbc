from __future__ import annotations

import dataclasses
import threading
from functools import partial
from pathlib import Path

import pytest

from engine_rig import (
    IDLE_THREADS,
    QUIET_POLICY,
    TIMEOUT,
    BackgroundStop,
    EngineRig,
    FakeRow,
    FakeSource,
    GatedRunner,
    fake_rows,
    running_engine,
    stop_advancing_clock,
)
from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed, DrainTimedOut, LeaseLost, WorkFailed
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.errors import CancelledError, ServiceStateError, StoreError
from longwatch.host.beatpage import BeatSnapshot, read_page
from longwatch.host.parent_channel import ParentChannel
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.store.claims import Claim
from longwatch.testing import RecordingObserver

DONE, FAILED, BACK = RowOutcome.DONE, RowOutcome.FAILED, RowOutcome.RELEASED
ONE = dataclasses.replace(QUIET_POLICY, slots=1)


def prefetch(rig: EngineRig, count: int) -> None:
    """Have rows wait behind the one that runs."""
    rig.wait_idle()
    rig.fetcher._prefetch.limit = count
    rig.source.notify()
    rig.source.wait_until(lambda: len(rig.fetcher.held) == 1 + count)
    rig.wait_idle()


def page_of(rig: EngineRig) -> BeatSnapshot:
    reading = read_page(rig.source.pages[-1])
    assert reading is not None
    return reading


# --- draining ---


def test_on_drain_what_was_not_begun_is_handed_back_at_once_and_what_runs_goes_on() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3, 4), policy=ONE) as rig:
        gate.next_started()
        prefetch(rig, 2)
        rig.engine.drain()
        rig.source.wait_for_settlements((2, BACK), (3, BACK))
        rig.wait_idle()
        assert (True, True) == (rig.engine.draining, rig.engine.started)
        assert not gate.contexts[1].cancelled
        gate.open(1)
        rig.source.wait_for_settlements((2, BACK), (3, BACK), (1, DONE))
        rig.wait_idle()
        assert gate.started.empty()


def test_what_is_handed_back_spends_nothing_and_goes_to_another_worker(tmp_path: Path) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message[int], context: RowContext) -> None:
        begun.set()
        assert go_on.wait(TIMEOUT)

    mailbox.send_many(range(5))
    with Engine(mailbox.backend, MessageRunner(mailbox, handle)) as engine:
        assert begun.wait(TIMEOUT)
        run = engine._current_run
        assert run is not None
        run.fetcher._prefetch.limit = 4
        run._wakeup.set()
        while len(run.fetcher.held) < 5:
            run._wakeup.set()
        engine.drain()
        received = mailbox.receive(max_messages=10, wait_time_seconds=TIMEOUT)
        while len(received) < 4:
            received += mailbox.receive(max_messages=10, wait_time_seconds=TIMEOUT)
        assert [1, 2, 3, 4] == sorted(message.body for message in received)
        mailbox.acknowledge_many(received)
        go_on.set()
    assert (0, 0) == (mailbox.approximate_count(), len(mailbox.dead_letters))
    mailbox.backend.database.close()  # type: ignore[attr-defined]


def test_a_drained_engine_stays_up_and_takes_work_again_on_resume() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        rig.engine.drain()
        rig.source.put(FakeRow(2))
        rig.pass_time(100.0)
        assert gate.started.empty()
        rig.engine.resume()
        assert 2 == gate.next_started()
        assert not rig.engine.draining
        gate.open(2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))


def test_the_page_says_draining_only_while_it_is() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        assert not page_of(rig).draining
        rig.engine.drain()
        assert page_of(rig).draining
        rig.engine.resume()
        assert not page_of(rig).draining
        gate.open(1)


def test_the_source_knows_that_an_engine_drains_once_the_waiting_rows_are_released() -> None:
    """One report for a drain, one for the resume, none while nothing changes."""
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2), policy=ONE) as rig:
        gate.next_started()
        prefetch(rig, 1)
        rig.engine.drain()
        rig.source.wait_until(lambda: rig.source.drain_reports == [True])
        assert [(2, BACK)] == rig.source.outcomes()
        rig.pass_time(10.0)
        rig.engine.resume()
        rig.source.wait_until(lambda: rig.source.drain_reports == [True, False])
        gate.open(1)
        gate.open(2)


def test_a_drain_that_the_source_did_not_confirm_is_reported_again() -> None:
    gate, source = GatedRunner(), FakeSource()
    with running_engine(gate, FakeRow(1), policy=ONE, source=source) as rig:
        gate.next_started()
        source.lost_replies["report_draining"] = StoreError("gone")
        rig.engine.drain()
        source.wait_for_calls("report_draining", 1)
        rig.pass_time(5.0)
        del source.lost_replies["report_draining"]
        rig.pass_time(5.0)
        count = source.calls.count("report_draining")
        assert count > 1
        rig.pass_time(5.0)
        assert count == source.calls.count("report_draining")
        gate.open(1)


def test_a_stop_reports_the_drain_only_if_rows_are_held_and_ends_without_the_source() -> None:
    gate, source = GatedRunner(), FakeSource()
    source.faults["report_draining"] = partial(_raise, StoreError("gone"))
    with running_engine(gate, FakeRow(1), policy=ONE, source=source) as rig:
        gate.next_started()
        stop = BackgroundStop(partial(rig.engine.stop, timeout=None))
        source.wait_for_calls("report_draining", 1)
        gate.open(1)
        stop_advancing_clock(rig.engine, rig.clock)
        assert stop.wait()
    calls = source.calls.count("report_draining")
    with running_engine(gate, source=source) as rig:
        rig.wait_idle()
    assert calls == source.calls.count("report_draining")


def _raise(error: Exception) -> None:
    raise error


def test_an_owner_registers_its_parent_and_how_often_it_is_renewed() -> None:
    source = FakeSource()
    with running_engine(GatedRunner(), source=source):
        pass
    with Engine(source, GatedRunner(), policy=ONE, parent=ParentChannel("nowhere", "the.parent")):
        pass
    assert [
        (None, QUIET_POLICY.lease.renew_seconds),
        ("the.parent", ONE.lease.renew_seconds),
    ] == source.owners


def test_a_row_that_a_slot_picked_up_in_the_moment_of_the_drain_is_not_begun() -> None:
    gate = GatedRunner()
    with running_engine(gate) as rig:
        rig.wait_idle()
        run = rig.engine._current_run
        assert run is not None
        slot_pool = run.slot_pool
        run._lease_trust.record_grant(rig.clock.monotonic())
        slot_pool.gate.close()
        assert slot_pool.slots[0]._begin(ClaimedRow(Claim(1, 1, 1), None)) is None
        assert [] == slot_pool.running()


def test_drain_and_resume_are_nothing_to_an_engine_that_does_not_run() -> None:
    engine = Engine(FakeSource(), GatedRunner())
    engine.drain()
    engine.resume()
    assert (True, True, 0) == (engine.stopped, engine.draining, engine.held_count)


def test_one_that_waits_to_run_alone_is_handed_back_too() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), FakeRow(2, alone=True)) as rig:
        gate.next_started()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 2)
        rig.wait_idle()
        rig.engine.drain()
        rig.source.wait_for_settlements((2, BACK))
        assert 0.0 == rig.source.settlements[0].delay
        gate.open(1)


# --- stopping ---


def test_stop_lets_what_runs_finish_and_settles_it() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3)) as rig:
        gate.next_started(), gate.next_started()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        gate.open(1, 2)
        assert stopping.wait()
        assert {(1, DONE), (2, DONE)} == set(rig.source.outcomes())
        assert rig.engine.stopped


def test_an_idle_engine_stops_without_time_passing() -> None:
    with running_engine(GatedRunner()) as rig:
        rig.wait_idle()
        assert rig.engine.stop(timeout=30.0)


def test_leases_are_kept_until_the_last_row_is_settled() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=1000.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.pass_time(300.0, parked=IDLE_THREADS + 1)
        rig.source.wait_until(lambda: len(rig.source.renewals) >= 25)
        assert not gate.contexts[1].lease_lost
        gate.open(1)
        assert stopping.wait()
        assert [(1, DONE)] == rig.source.outcomes()


def test_shortly_before_the_deadline_what_runs_is_cancelled_and_what_it_raises_is_nobodys_fault() -> (  # noqa: E501 - one name
    None
):
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.pass_time(28.9, parked=IDLE_THREADS + 1)
        assert not gate.contexts[1].cancelled
        rig.clock.advance(0.2)
        assert (True, "shutdown", False) == (
            gate.contexts[1].cancelled,
            gate.contexts[1].cancel.reason,
            gate.contexts[1].lease_lost,
        )
        gate.fail(1, CancelledError("shutdown"))
        assert stopping.wait()
        assert [(1, BACK)] == rig.source.outcomes()
        assert [] == rig.observer.of(WorkFailed)


def test_cancelled_work_that_finishes_all_the_same_counts() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.pass_time(29.5, parked=IDLE_THREADS + 1)
        gate.open(1)
        assert stopping.wait()
        assert [(1, DONE)] == rig.source.outcomes()


def test_past_the_deadline_it_gives_up_says_so_and_nobody_is_blamed() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2), policy=ONE) as rig:
        gate.next_started()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.pass_time(29.5, parked=IDLE_THREADS + 1)
        rig.clock.advance(0.5, parked=IDLE_THREADS)
        assert stopping.wait() is False
        assert ("message-1",) == rig.observer.wait_for(DrainTimedOut).message_ids
        assert (True, frozenset({1})) == (page_of(rig).draining, page_of(rig).running_rows)
        assert (False, False) == (rig.engine.started, rig.engine.stopped)
        with pytest.raises(ServiceStateError):
            rig.engine.start()


def test_after_giving_up_the_leases_are_still_kept_and_a_late_end_counts() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        assert not rig.engine.stop(timeout=0.0)
        rig.pass_time(100.0)
        assert not gate.contexts[1].lease_lost
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_a_second_stop_tries_again() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        assert not rig.engine.stop(timeout=0.0)
        assert not rig.engine.stop(timeout=0.0)
        gate.open(1)
        assert rig.engine.stop(timeout=30.0)
        assert [(1, DONE)] == rig.source.outcomes()
        assert not Path(rig.source.pages[0]).exists()


def test_it_starts_again_after_a_stop_that_had_to_be_repeated() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.engine.stop(timeout=0.0)
        gate.open(1)
        assert rig.engine.stop(timeout=30.0)
        rig.source.put(FakeRow(2))
        rig.engine.start()
        assert 2 == gate.next_started()
        gate.open(2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))


def test_a_stop_waits_for_settlements_that_the_store_does_not_take_yet() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()

        def down() -> None:
            raise StoreError("down")

        rig.source.faults["exchange"] = down
        gate.open(1)
        rig.observer.wait_for(ClaimSourceFailed)
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=60.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.pass_time(20.0, parked=IDLE_THREADS + 1)
        assert stopping.stopped is None
        del rig.source.faults["exchange"]
        rig.clock.advance(5.0, parked=0)
        assert stopping.wait()
        assert [(1, DONE)] == rig.source.outcomes()
        assert [] == rig.observer.of(LeaseLost)


def test_a_stop_that_a_drain_came_before_is_the_same() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2), policy=ONE) as rig:
        gate.next_started()
        rig.engine.drain()
        stopping = BackgroundStop(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(IDLE_THREADS + 1)
        rig.engine.resume()
        gate.open(1)
        assert stopping.wait()
        assert [(1, DONE)] == rig.source.outcomes()


def test_user_code_can_stop_its_own_engine() -> None:
    """It cannot wait for that, being a part of it; the stop goes on elsewhere."""
    answers: list[bool] = []

    def stop(leased: ClaimedRow, context: RowContext) -> Settlement:
        answers.append(engine.stop())
        return Settlement(leased.claim, DONE)

    source = FakeSource(fake_rows(1))
    engine = Engine(source, stop)
    engine.start()
    assert engine.wait_stopped(TIMEOUT)
    assert [False] == answers
    assert [(1, DONE)] == source.outcomes()


@pytest.mark.parametrize("slots", [1, 8])
def test_stopping_in_the_middle_of_a_flood_neither_loses_nor_doubles(slots: int) -> None:
    source = FakeSource(fake_rows(*range(2000)))
    seen: list[int] = []
    enough = threading.Event()

    def note(leased: ClaimedRow, context: RowContext) -> Settlement:
        seen.append(leased.claim.seq)
        if len(seen) == 300:
            enough.set()
        return Settlement(leased.claim, DONE)

    engine = Engine(source, note, policy=EnginePolicy(slots=slots))
    with engine:
        assert enough.wait(TIMEOUT)
    finished = [seq for seq, outcome in source.outcomes() if outcome is DONE]
    assert sorted(seen) == sorted(finished)
    assert len(set(seen)) == len(seen)
    assert all(row.claim is None for row in source.rows)


def test_an_engine_told_to_stop_while_it_starts_to_run_rows_ends(clock: FakeClock) -> None:
    observer = RecordingObserver()
    for _ in range(50):
        source = FakeSource(fake_rows(*range(5)))
        engine = Engine(source, GatedRunner(), policy=ONE, clock=clock, events=Events(observer))
        engine._runner = lambda leased, context: Settlement(leased.claim, DONE)
        engine.start()
        stop_advancing_clock(engine, clock)
        assert all(row.claim is None for row in source.rows)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
