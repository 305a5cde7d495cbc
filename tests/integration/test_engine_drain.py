from __future__ import annotations

import dataclasses
import threading
from functools import partial
from pathlib import Path

import pytest

from engine_rig import (
    PATIENCE,
    QUIET,
    RESTING,
    FakeSource,
    Gate,
    Item,
    Rig,
    numbered,
    rigged,
    stop_by_moving,
)
from longwatch.core.events import Events, LeaseLost, SourceFailed, WorkFailed, WorkGivenUp
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import CancelledError, ServiceStateError, StoreError
from longwatch.host.beatpage import BeatReading, read_page
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.store.claims import Claim
from longwatch.testing import RecordingObserver
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.source import Leased, Outcome, Settlement
from stopping import Stopping

DONE, FAILED, BACK = Outcome.DONE, Outcome.FAILED, Outcome.BACK
ONE = dataclasses.replace(QUIET, slots=1)


def hold_ahead(rig: Rig, count: int) -> None:
    """Have rows wait behind the one that runs."""
    rig.settle_down()
    rig.feeder._ahead.ahead = count
    rig.source.hint()
    rig.source.await_that(lambda: len(rig.feeder.held) == 1 + count)
    rig.settle_down()


def page_of(rig: Rig) -> BeatReading:
    reading = read_page(rig.source.pages[-1])
    assert reading is not None
    return reading


# --- draining ---


def test_on_drain_what_was_not_begun_is_handed_back_at_once_and_what_runs_goes_on() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3, 4), policy=ONE) as rig:
        gate.next()
        hold_ahead(rig, 2)
        rig.engine.drain()
        rig.source.await_settled((2, BACK), (3, BACK))
        rig.settle_down()
        assert (True, True) == (rig.engine.draining, rig.engine.started)
        assert not gate.contexts[1].cancelled
        gate.open(1)
        rig.source.await_settled((2, BACK), (3, BACK), (1, DONE))
        rig.settle_down()
        assert gate.began.empty()


def test_what_is_handed_back_spends_nothing_and_goes_to_another_worker(tmp_path: Path) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    begun, go_on = threading.Event(), threading.Event()

    def handle(message: Message[int], context: WorkContext) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    mailbox.send_many(range(5))
    with Engine(mailbox.backend, MessageRunner(mailbox, handle)) as engine:
        assert begun.wait(PATIENCE)
        shift = engine._shift
        assert shift is not None
        shift.feeder._ahead.ahead = 4
        shift._news.set()
        while len(shift.feeder.held) < 5:
            shift._news.set()
        engine.drain()
        received = mailbox.receive(max_messages=10, wait_time_seconds=PATIENCE)
        while len(received) < 4:
            received += mailbox.receive(max_messages=10, wait_time_seconds=PATIENCE)
        assert [1, 2, 3, 4] == sorted(message.body for message in received)
        mailbox.acknowledge_many(received)
        go_on.set()
    assert (0, 0) == (mailbox.approximate_count(), len(mailbox.dead))
    mailbox.backend.database.close()  # type: ignore[attr-defined]


def test_a_drained_engine_stays_up_and_takes_work_again_on_resume() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        gate.open(1)
        rig.source.await_settled((1, DONE))
        rig.engine.drain()
        rig.source.put(Item(2))
        rig.pass_time(100.0)
        assert gate.began.empty()
        rig.engine.resume()
        assert 2 == gate.next()
        assert not rig.engine.draining
        gate.open(2)
        rig.source.await_settled((1, DONE), (2, DONE))


def test_the_page_says_draining_only_while_it_is() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        assert not page_of(rig).draining
        rig.engine.drain()
        assert page_of(rig).draining
        rig.engine.resume()
        assert not page_of(rig).draining
        gate.open(1)


def test_a_row_that_a_slot_picked_up_in_the_moment_of_the_drain_is_not_begun() -> None:
    gate = Gate()
    with rigged(gate) as rig:
        rig.settle_down()
        crew = rig.engine._shift.crew  # type: ignore[union-attr]
        crew._tenure.granted(rig.clock.monotonic())
        crew.taking = False
        assert crew.slots[0]._begin(Leased(Claim(1, 1, 1), None)) is None
        assert [] == crew.running()


def test_drain_and_resume_are_nothing_to_an_engine_that_does_not_run() -> None:
    engine = Engine(FakeSource(), Gate())
    engine.drain()
    engine.resume()
    assert (True, True, 0) == (engine.stopped, engine.draining, engine.holding)


def test_one_that_waits_to_run_alone_is_handed_back_too() -> None:
    gate = Gate()
    with rigged(gate, Item(1), Item(2, alone=True)) as rig:
        gate.next()
        rig.source.await_that(lambda: len(rig.feeder.held) == 2)
        rig.settle_down()
        rig.engine.drain()
        rig.source.await_settled((2, BACK))
        assert 0.0 == rig.source.settlements[0].delay
        gate.open(1)


# --- stopping ---


def test_stop_lets_what_runs_finish_and_settles_it() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3)) as rig:
        gate.next(), gate.next()
        stopping = Stopping(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(RESTING + 1)
        gate.open(1, 2)
        assert stopping.outcome()
        assert {(1, DONE), (2, DONE)} == set(rig.source.outcomes())
        assert rig.engine.stopped


def test_an_idle_engine_stops_without_time_passing() -> None:
    with rigged(Gate()) as rig:
        rig.settle_down()
        assert rig.engine.stop(timeout=30.0)


def test_leases_are_kept_until_the_last_row_is_settled() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        stopping = Stopping(partial(rig.engine.stop, timeout=1000.0))
        rig.clock.await_parked(RESTING + 1)
        rig.pass_time(300.0, parked=RESTING + 1)
        rig.source.await_that(lambda: len(rig.source.renewals) >= 25)
        assert not gate.contexts[1].lease_lost
        gate.open(1)
        assert stopping.outcome()
        assert [(1, DONE)] == rig.source.outcomes()


def test_shortly_before_the_deadline_what_runs_is_cancelled_and_what_it_raises_is_nobodys_fault() -> (  # noqa: E501 - one name
    None
):
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        stopping = Stopping(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(RESTING + 1)
        rig.pass_time(28.9, parked=RESTING + 1)
        assert not gate.contexts[1].cancelled
        rig.clock.advance(0.2)
        assert (True, "shutdown", False) == (
            gate.contexts[1].cancelled,
            gate.contexts[1].cancel.reason,
            gate.contexts[1].lease_lost,
        )
        gate.fail(1, CancelledError("shutdown"))
        assert stopping.outcome()
        assert [(1, BACK)] == rig.source.outcomes()
        assert [] == rig.observer.of(WorkFailed)


def test_cancelled_work_that_finishes_all_the_same_counts() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        stopping = Stopping(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(RESTING + 1)
        rig.pass_time(29.5, parked=RESTING + 1)
        gate.open(1)
        assert stopping.outcome()
        assert [(1, DONE)] == rig.source.outcomes()


def test_past_the_deadline_it_gives_up_says_so_and_nobody_is_blamed() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2), policy=ONE) as rig:
        gate.next()
        stopping = Stopping(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(RESTING + 1)
        rig.pass_time(29.5, parked=RESTING + 1)
        rig.clock.advance(0.5, parked=RESTING)
        assert stopping.outcome() is False
        assert (1,) == rig.observer.wait_for(WorkGivenUp).rows
        assert (True, frozenset({1})) == (page_of(rig).draining, page_of(rig).started)
        assert (False, False) == (rig.engine.started, rig.engine.stopped)
        with pytest.raises(ServiceStateError):
            rig.engine.start()


def test_after_giving_up_the_leases_are_still_kept_and_a_late_end_counts() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()
        assert not rig.engine.stop(timeout=0.0)
        rig.pass_time(100.0)
        assert not gate.contexts[1].lease_lost
        gate.open(1)
        rig.source.await_settled((1, DONE))


def test_a_second_stop_tries_again() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()
        assert not rig.engine.stop(timeout=0.0)
        assert not rig.engine.stop(timeout=0.0)
        gate.open(1)
        assert rig.engine.stop(timeout=30.0)
        assert [(1, DONE)] == rig.source.outcomes()
        assert not Path(rig.source.pages[0]).exists()


def test_it_starts_again_after_a_stop_that_had_to_be_repeated() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()
        rig.engine.stop(timeout=0.0)
        gate.open(1)
        assert rig.engine.stop(timeout=30.0)
        rig.source.put(Item(2))
        rig.engine.start()
        assert 2 == gate.next()
        gate.open(2)
        rig.source.await_settled((1, DONE), (2, DONE))


def test_a_stop_waits_for_settlements_that_the_store_does_not_take_yet() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()

        def down() -> None:
            raise StoreError("down")

        rig.source.faults["exchange"] = down
        gate.open(1)
        rig.observer.wait_for(SourceFailed)
        stopping = Stopping(partial(rig.engine.stop, timeout=60.0))
        rig.clock.await_parked(RESTING + 1)
        rig.pass_time(20.0, parked=RESTING + 1)
        assert stopping.gone is None
        del rig.source.faults["exchange"]
        rig.clock.advance(5.0, parked=0)
        assert stopping.outcome()
        assert [(1, DONE)] == rig.source.outcomes()
        assert [] == rig.observer.of(LeaseLost)


def test_a_stop_that_a_drain_came_before_is_the_same() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2), policy=ONE) as rig:
        gate.next()
        rig.engine.drain()
        stopping = Stopping(partial(rig.engine.stop, timeout=30.0))
        rig.clock.await_parked(RESTING + 1)
        rig.engine.resume()
        gate.open(1)
        assert stopping.outcome()
        assert [(1, DONE)] == rig.source.outcomes()


def test_user_code_can_stop_its_own_engine() -> None:
    """It cannot wait for that, being a part of it; the stop goes on elsewhere."""
    answers: list[bool] = []

    def stop(leased: Leased, context: WorkContext) -> Settlement:
        answers.append(engine.stop())
        return Settlement(leased.claim, DONE)

    source = FakeSource(numbered(1))
    engine = Engine(source, stop)
    engine.start()
    assert engine.wait_stopped(PATIENCE)
    assert [False] == answers
    assert [(1, DONE)] == source.outcomes()


@pytest.mark.parametrize("slots", [1, 8])
def test_stopping_in_the_middle_of_a_flood_neither_loses_nor_doubles(slots: int) -> None:
    source = FakeSource(numbered(*range(2000)))
    seen: list[int] = []
    enough = threading.Event()

    def note(leased: Leased, context: WorkContext) -> Settlement:
        seen.append(leased.claim.seq)
        if len(seen) == 300:
            enough.set()
        return Settlement(leased.claim, DONE)

    engine = Engine(source, note, policy=EnginePolicy(slots=slots))
    with engine:
        assert enough.wait(PATIENCE)
    finished = [seq for seq, outcome in source.outcomes() if outcome is DONE]
    assert sorted(seen) == sorted(finished)
    assert len(set(seen)) == len(seen)
    assert all(row.claim is None for row in source.rows)


def test_an_engine_told_to_stop_while_it_starts_to_run_rows_ends(clock: FakeClock) -> None:
    observer = RecordingObserver()
    for _ in range(50):
        source = FakeSource(numbered(*range(5)))
        engine = Engine(source, Gate(), policy=ONE, clock=clock, events=Events(observer))
        engine._runner = lambda leased, context: Settlement(leased.claim, DONE)
        engine.start()
        stop_by_moving(engine, clock)
        assert all(row.claim is None for row in source.rows)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
