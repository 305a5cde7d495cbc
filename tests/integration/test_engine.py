from __future__ import annotations

import dataclasses
import gc
import os
import queue
import subprocess
import sys
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
    FakeRow,
    FakeSource,
    GatedRunner,
    fake_rows,
    running_engine,
)
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.engine import (
    ClaimSourceFailed,
    ClaimSourceRecovered,
    SettlementRefused,
    WorkFailed,
)
from longwatch.core.fake_clock import FakeClock
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.exclusive import ExclusiveLock
from longwatch.errors import PermanentError, StoreError, StoreUnreachableError
from longwatch.host.beatpage import read_page
from longwatch.host.service import Service
from longwatch.mailbox import Mailbox, MailboxLimits, Message, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.testing import RecordingObserver, check_service

DONE, FAILED, BACK, DEAD = RowOutcome.DONE, RowOutcome.FAILED, RowOutcome.RELEASED, RowOutcome.DEAD
SEND = (
    "import sys; from longwatch.mailbox import open_mailbox; open_mailbox(sys.argv[1], "
    "'jobs').send(int(sys.argv[2]))"
)


def done(leased: ClaimedRow, context: RowContext) -> Settlement:
    return Settlement(leased.claim, DONE)


def raising(error: BaseException) -> Callable[..., None]:
    def fault(*_: object) -> None:
        raise error

    return fault


@contextmanager
def working(
    mailbox: Mailbox[Any], handle: Callable[[Message[Any], RowContext], Any], **policy: Any
) -> Iterator[Engine]:
    """An engine in real time over a real mailbox."""
    with Engine(
        mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(**policy)
    ) as engine:
        yield engine


# --- running ---


def test_rows_are_begun_in_the_order_of_the_source() -> None:
    begun: list[int] = []

    def note(leased: ClaimedRow, context: RowContext) -> Settlement:
        begun.append(leased.claim.seq)
        return done(leased, context)

    with running_engine(
        note, *fake_rows(*range(500)), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        rig.source.wait_until(lambda: len(rig.source.settlements) == 500)
    assert list(range(500)) == begun
    assert [(number, DONE) for number in range(500)] == rig.source.outcomes()


def test_no_more_run_at_a_time_than_there_are_slots() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3)) as rig:
        assert {1, 2} == {gate.next_started(), gate.next_started()}
        rig.wait_idle()
        assert gate.started.empty()
        gate.open(1)
        assert 3 == gate.next_started()
        gate.open(2, 3)
        rig.source.wait_for_settlements((1, DONE), (2, DONE), (3, DONE))


def test_settling_the_last_and_claiming_the_next_are_one_exchange() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3)) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        before = rig.source.calls.count("exchange")
        gate.open(1)
        gate.next_started()
        assert before + 1 == rig.source.calls.count("exchange")
        assert [(1, DONE)] == rig.source.outcomes()
        gate.open(2, 3)


def test_short_work_is_leased_ahead_and_settled_together() -> None:
    with running_engine(done, *fake_rows(*range(3000))) as rig:
        rig.source.wait_until(lambda: len(rig.source.settlements) == 3000)
        assert rig.source.calls.count("exchange") < 300
        assert max(rig.source.wants) > 100


def test_what_is_done_waits_for_company_no_longer_than_it_may() -> None:
    gate = GatedRunner()
    policy = dataclasses.replace(QUIET_POLICY, slots=1, settle_delay=0.005)
    with running_engine(gate, *fake_rows(1, 2, 3), policy=policy) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.fetcher._prefetch.limit = 10
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 3)
        gate.open(1)
        gate.next_started()
        rig.wait_idle()
        assert [] == rig.source.outcomes()
        rig.clock.advance(0.005)
        rig.source.wait_for_settlements((1, DONE))
        gate.open(2, 3)


def test_what_is_done_does_not_wait_for_company_when_the_slots_have_nothing_left_to_do() -> None:
    gate = GatedRunner()
    policy = dataclasses.replace(QUIET_POLICY, slots=1, settle_delay=0.005)
    with running_engine(gate, *fake_rows(1, 2, 3), policy=policy) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.fetcher._prefetch.limit = 10
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 3)
        gate.open(1)
        assert 2 == gate.next_started()
        rig.wait_idle()
        gate.open(2)
        assert 3 == gate.next_started()
        assert [] == rig.source.outcomes()
        gate.open(3)
        rig.source.wait_for_settlements((1, DONE), (2, DONE), (3, DONE))
        assert 1000.0 == rig.clock.monotonic()


def test_a_long_job_does_not_wait_behind_others_while_somebody_else_could_run_it() -> None:
    """Rows that were leased ahead of short work, and now stand behind long work, are handed back
    within a second.
    """
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(*range(10)), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.fetcher._prefetch.limit = 5
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 6)
        rig.pass_time(1.0)
        rig.source.wait_for_settlements(*[(number, BACK) for number in range(1, 6)])
        rig.wait_idle()
        assert 1 == len(rig.fetcher.held)
        gate.open(0)
        assert 1 == gate.next_started()
        rig.wait_idle()
        assert 1 == len(rig.fetcher.held)
        gate.open(1)
        gate.open(*range(2, 10))


def test_what_was_leased_ahead_is_handed_back_when_work_turns_out_to_take_longer() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(*range(100)), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.fetcher._prefetch.limit = 50
        rig.source.notify()
        rig.source.wait_until(lambda: len(rig.fetcher.held) == 51)
        rig.wait_idle()
        rig.clock.advance(0.2, parked=IDLE_THREADS)
        rig.clock.advance(0.2, parked=IDLE_THREADS)
        gate.open(0)
        assert 1 == gate.next_started()
        rig.source.wait_until(lambda: (3, BACK) in rig.source.outcomes())
        rig.wait_idle()
        assert len(rig.fetcher.held) <= 2
        gate.open(*range(1, 100))


# --- how work ends ---


def test_work_that_raises_is_tried_again_after_the_backoff_and_that_is_told() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1, failures=2)) as rig:
        gate.next_started()
        gate.fail(1, ValueError("not today"))
        rig.source.wait_for_settlements((1, FAILED))
        [settlement] = rig.source.settlements
        assert "ValueError: not today" == settlement.error
        assert 30.0 <= settlement.delay <= 50.0
        told = rig.observer.wait_for(WorkFailed)
        assert ("message-1", 1, settlement.delay) == (told.message_id, told.attempt, told.retry_in)


def test_a_permanent_error_ends_the_row_at_once() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        gate.fail(1, PermanentError("never"))
        rig.source.wait_for_settlements((1, DEAD))
        assert "permanent" == rig.source.settlements[0].reason
        assert rig.observer.wait_for(WorkFailed).retry_in is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_user_code_is_a_failure_and_its_slot_goes_on(error: BaseException) -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2), policy=dataclasses.replace(QUIET_POLICY, slots=1)
    ) as rig:
        gate.next_started()
        gate.fail(1, error)
        assert 2 == gate.next_started()
        gate.open(2)
        rig.source.wait_for_settlements((1, FAILED), (2, DONE))


def test_a_row_that_its_code_has_settled_is_not_settled_again(tmp_path: Path) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    observer, seen = RecordingObserver(), threading.Event()

    def handle(message: Message[int], context: RowContext) -> None:
        if message.body == 1:
            message.acknowledge()
        else:
            message.nack() if message.delivery_count == 1 else seen.set()

    mailbox.send_many([1, 2])
    engine = Engine(mailbox.backend, MessageRunner(mailbox, handle), events=Events(observer))
    with engine:
        assert seen.wait(TIMEOUT)
    assert (0, 0) == (mailbox.approximate_count(), len(mailbox.dead_letters))
    assert [] == observer.of(SettlementRefused)
    mailbox.backend.database.close()  # type: ignore[attr-defined]


# --- rows that have crashed a process before ---


def test_a_row_that_crashed_before_runs_with_nothing_beside_it() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), FakeRow(2, alone=True), FakeRow(3)) as rig:
        assert 1 == gate.next_started()
        rig.wait_idle()
        assert gate.started.empty()
        gate.open(1)
        assert 2 == gate.next_started()
        rig.wait_idle()
        assert gate.started.empty()
        gate.open(2)
        assert 3 == gate.next_started()
        gate.open(3)
        rig.source.wait_for_settlements((1, DONE), (2, DONE), (3, DONE))


def test_while_one_waits_to_be_alone_the_others_are_settled() -> None:
    gate = GatedRunner()
    with running_engine(
        gate,
        *fake_rows(1, 2),
        FakeRow(3, alone=True),
        policy=dataclasses.replace(QUIET_POLICY, slots=3),
    ) as rig:
        assert {1, 2} == {gate.next_started(), gate.next_started()}
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        gate.open(2)
        assert 3 == gate.next_started()
        gate.open(3)


def test_one_that_cannot_be_alone_soon_is_left_to_others_and_the_line_moves_on() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1), FakeRow(2, alone=True), FakeRow(3)) as rig:
        assert 1 == gate.next_started()
        rig.pass_time(QUIET_POLICY.exclusive_timeout)
        assert 3 == gate.next_started()
        assert [(2, BACK)] == rig.source.outcomes()
        assert QUIET_POLICY.exclusive_timeout == rig.source.settlements[0].delay
        gate.open(1, 3)


def test_engines_that_share_a_process_leave_it_to_one_that_runs_alone() -> None:
    exclusive_lock, clock = ExclusiveLock(), FakeClock()
    gates, sources = (
        (GatedRunner(), GatedRunner()),
        (FakeSource([FakeRow(1, alone=True)]), FakeSource(fake_rows(11, 12, 13))),
    )
    engines = [
        Engine(
            source,
            gate,
            policy=dataclasses.replace(QUIET_POLICY, slots=1),
            clock=clock,
            exclusive_lock=exclusive_lock,
        )
        for source, gate in zip(sources, gates, strict=True)
    ]
    try:
        engines[1].start()
        assert 11 == gates[1].next_started()
        clock.await_parked(IDLE_THREADS)
        engines[0].start()
        sources[0].wait_for_calls("exchange", 1)
        clock.await_parked(2 * IDLE_THREADS)
        assert gates[0].started.empty()
        gates[1].open(11)
        assert 1 == gates[0].next_started()
        clock.await_parked(2 * IDLE_THREADS)
        assert gates[1].started.empty()
        gates[0].open(1)
        assert 12 == gates[1].next_started()
        gates[1].open(12, 13)
        sources[1].wait_for_settlements((11, DONE), (12, DONE), (13, DONE))
    finally:
        assert all(engine.stop() for engine in engines)


def test_a_message_that_is_spent_goes_to_the_dead_and_is_not_run() -> None:
    mailbox: Mailbox[int] = open_mailbox("memory://", "jobs", limits=MailboxLimits(max_failures=2))
    ran: list[int] = []
    after = threading.Event()

    def handle(message: Message[int], context: RowContext) -> None:
        ran.append(message.body)
        if message.body == 1:
            message.nack(reason="no")
        else:
            after.set()

    mailbox.send(1)
    with working(mailbox, handle):
        mailbox.send(2, delay_seconds=0.05)
        assert after.wait(TIMEOUT)
    assert [1, 1, 2] == ran
    [letter] = mailbox.dead_letters
    assert ("failed", "no", 2) == (letter.reason, letter.error, letter.failures)
    mailbox.dead_letters.drop_all()


def test_a_body_that_cannot_be_read_is_dead_and_the_others_are_worked_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    store: Mailbox[Any] = open_mailbox(url, "jobs")
    store.send_many(["not a number", 2])
    mailbox: Mailbox[int] = open_mailbox(store.backend.database, "jobs", int)  # type: ignore[attr-defined]
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    with working(mailbox, lambda message, context: seen.put(message.body)):
        assert 2 == seen.get(timeout=TIMEOUT)
    assert ["undecodable"] == [letter.reason for letter in mailbox.dead_letters]
    store.backend.database.close()  # type: ignore[attr-defined]


# --- when the source fails ---


@pytest.mark.parametrize(
    "error", [StoreUnreachableError("gone"), RuntimeError("a bug"), SystemExit(1)]
)
def test_settlements_survive_a_source_that_fails_and_are_made_once(error: BaseException) -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2)) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        rig.source.faults["exchange"] = raising(error)
        gate.open(1, 2)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.pass_time(5.0)
        assert [] == rig.source.outcomes()
        del rig.source.faults["exchange"]
        rig.pass_time(5.0)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))
        assert [] == rig.observer.of(SettlementRefused)
        assert rig.observer.wait_for(ClaimSourceRecovered).failures > 2


def test_a_source_that_fails_is_asked_less_and_less_often() -> None:
    source = FakeSource(faults={"exchange": raising(StoreError("down"))})
    with running_engine(done, source=source) as rig:
        rig.pass_time(60.0)
        assert 30 <= source.calls.count("exchange") <= 60
        told = [event.failures for event in rig.observer.of(ClaimSourceFailed)]
        assert [1, 16, 32] == told[:3]
        fault = source.faults.pop("exchange")
        rig.pass_time(5.0)
        rig.observer.wait_for(ClaimSourceRecovered)
        source.faults["exchange"] = fault
        source.notify()
        rig.pass_time(5.0)
        assert 1 in [event.failures for event in rig.observer.of(ClaimSourceFailed)][len(told) :]


@pytest.mark.parametrize("call", ["next_due", "sweep", "renew", "held"])
def test_no_call_that_raises_ends_the_engine(call: str) -> None:
    gate = GatedRunner()
    source = FakeSource(faults={call: raising(RuntimeError("a bug"))})
    with running_engine(
        gate,
        FakeRow(1),
        source=source,
        policy=dataclasses.replace(QUIET_POLICY, sweep_interval=5.0, poll_interval=5.0),
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.exchange_loop.request_audit()
        rig.pass_time(20.0)
        assert call == rig.observer.wait_for(ClaimSourceFailed).call
        source.put(FakeRow(2))
        assert 2 == gate.next_started()
        gate.open(1, 2)
        source.wait_for_settlements((1, DONE), (2, DONE))


def test_a_settlement_whose_answer_was_lost_is_reported_as_unknown() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.lost_replies["exchange"] = StoreError("no answer; the outcome is unknown")
        gate.open(1)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.wait_idle()
        rig.source.lost_replies.clear()
        rig.pass_time(5.0)
        refused = rig.observer.wait_for(SettlementRefused)
        assert ("message-1", "done", True) == (
            refused.message_id,
            refused.outcome,
            refused.may_have_settled,
        )
        assert [(1, DONE)] == rig.source.outcomes()


def test_a_settlement_of_a_row_that_is_not_ours_any_more_is_told_and_not_made_again() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.source.reclaim(1)
        gate.open(1)
        refused = rig.observer.wait_for(SettlementRefused)
        assert ("message-1", False) == (refused.message_id, refused.may_have_settled)
        rig.wait_idle()
        assert 0 == rig.engine.held_count


def test_rows_that_were_claimed_by_an_exchange_without_an_answer_are_given_back() -> None:
    """Nobody here knows of them, and renewing by owner would keep them for ever."""
    source = FakeSource(lost_replies={"exchange": StoreError("no answer")})
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2, 3), source=source) as rig:
        rig.observer.wait_for(ClaimSourceFailed)
        rig.wait_idle()
        source.lost_replies.clear()
        rig.pass_time(5.0)
        assert {1, 2} == {gate.next_started(), gate.next_started()}
        source.wait_for_settlements((1, BACK), (2, BACK))
        gate.open(1, 2, 3)


def test_one_settlement_that_cannot_be_made_does_not_keep_the_others() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1, 2, 3, 4), policy=dataclasses.replace(QUIET_POLICY, slots=4)
    ) as rig:
        for _ in range(4):
            gate.next_started()
        rig.wait_idle()
        honest = rig.source._settle

        def settle(settlement: Settlement) -> bool:
            if settlement.claim.seq == 2:
                raise ValueError("cannot be written")
            return honest(settlement)

        rig.source._settle = settle  # type: ignore[method-assign]
        gate.open(1, 2, 3, 4)
        rig.observer.wait_for(ClaimSourceFailed)
        rig.pass_time(60.0)
        rig.source.wait_for_settlements((1, DONE), (3, DONE), (4, DONE))
        rig.source._settle = honest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("part", "step", "call"),
    [("exchange_loop", "_collect", "fetch"), ("_lease_renewer", "_check", "renew_leases")],
)
def test_not_even_a_fault_of_its_own_ends_its_threads(part: str, step: str, call: str) -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        thing = getattr(rig.engine._current_run, part)
        honest = getattr(thing, step)
        setattr(thing, step, raising(RuntimeError("a bug")))
        rig.source.notify()
        rig.pass_time(20.0)
        assert call == rig.observer.wait_for(ClaimSourceFailed).call
        setattr(thing, step, honest)
        rig.source.notify()
        rig.pass_time(20.0)
        rig.observer.wait_for(ClaimSourceRecovered)
        gate.open(1)
        rig.source.put(FakeRow(2))
        assert 2 == gate.next_started()
        gate.open(2)


# --- doing nothing ---


class CountingClock:
    """A clock that counts how often somebody wakes up from waiting on it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.wakes = 0
        self.monotonic, self.boottime = clock.monotonic, clock.boottime
        self.wall, self.sleep = clock.wall, clock.sleep

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        heard = self._clock.wait(wakeup, timeout)
        self.wakes += 1
        return heard


def test_an_idle_engine_wakes_up_four_times_a_second_at_most() -> None:
    fake = FakeClock()
    counting: Clock = CountingClock(fake)
    source = FakeSource()
    with Engine(source, done, policy=EnginePolicy(slots=8), clock=counting):
        fake.await_parked(IDLE_THREADS)
        fake.advance(60.0)
        woken, asked = counting.wakes, len(source.calls)  # type: ignore[attr-defined]
    assert woken <= 240
    assert asked <= 300


@pytest.mark.parametrize("due", [0.0, 1e-9])
def test_a_row_that_is_due_and_not_given_out_makes_no_busy_loop(due: float) -> None:
    """Its mailbox is paused, or somebody else was faster."""
    source = FakeSource(fake_rows(1), is_paused=True, due=due)
    policy = EnginePolicy(sweep_interval=1000.0)
    with running_engine(done, source=source, policy=policy) as rig:
        if due:
            source.due = 0.0
        rig.pass_time(60.0)
        assert source.calls.count("exchange") < 120


def test_a_delayed_row_is_fetched_when_it_is_due() -> None:
    gate = GatedRunner()
    source = FakeSource(due=7.0)
    with running_engine(gate, source=source) as rig:
        rig.wait_idle()
        source.rows.append(FakeRow(1))
        rig.pass_time(6.9)
        assert gate.started.empty()
        source.due = None
        rig.pass_time(0.2)
        assert 1 == gate.next_started()
        gate.open(1)


def test_a_row_that_was_delayed_while_every_slot_was_busy_is_fetched_when_it_is_due() -> None:
    gate = GatedRunner()
    one_slot = dataclasses.replace(QUIET_POLICY, slots=1)
    with running_engine(gate, *fake_rows(1), policy=one_slot) as rig:
        gate.next_started()
        rig.wait_idle()  # there is no capacity, so nothing asks when the delayed row is due
        rig.source.due = 7.0
        gate.open(1)
        rig.source.wait_for_settlements((1, RowOutcome.DONE))
        rig.source.wait_for_calls("next_due", 1)
        rig.wait_idle()
        with rig.source.changed:
            rig.source.rows.append(FakeRow(2))
        rig.source.due = None
        rig.pass_time(7.1)
        assert 2 == gate.next_started()
        gate.open(2)


def test_a_message_from_another_process_is_worked_on_though_no_look_is_due(tmp_path: Path) -> None:
    """Polling, sweeping and the store's own net are all out of reach here; only the hint can be
    it.
    """
    url = f"sqlite:///{tmp_path}/m.db"
    mailbox: Mailbox[int] = open_mailbox(url, "jobs")
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    with working(
        mailbox,
        lambda message, context: seen.put(message.body),
        poll_interval=3600.0,
        sweep_interval=3600.0,
    ):
        for number in range(3):
            subprocess.run([sys.executable, "-c", SEND, url, str(number)], check=True, timeout=60)
            assert number == seen.get(timeout=TIMEOUT)
    mailbox.backend.database.close()  # type: ignore[attr-defined]


# --- as a service ---


def test_it_keeps_the_contract_of_a_service() -> None:
    def refused(service: Service) -> Any:
        @contextmanager
        def broken() -> Iterator[None]:
            source: Any = service.source  # type: ignore[attr-defined]
            source.faults["register_owner"] = raising(StoreUnreachableError("gone"))
            yield
            del source.faults["register_owner"]

        return broken()

    check_service(
        lambda: Engine(FakeSource(fake_rows(*range(20))), done, policy=EnginePolicy(slots=2)),
        broken=refused,
    )


def test_it_keeps_the_contract_on_sqlite(tmp_path: Path) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    with working(mailbox, lambda message, context: None):
        mailbox.send_many(range(10))
    warm_readers(mailbox.backend.database)  # type: ignore[attr-defined]
    check_service(
        lambda: Engine(mailbox.backend, MessageRunner(mailbox, lambda message, context: None))
    )
    mailbox.backend.database.close()  # type: ignore[attr-defined]


def warm_readers(database: Any, count: int = 4) -> None:
    """The store keeps a connection for every read that goes on at the same time; it is not the
    engine that leaves them behind.
    """
    together = threading.Barrier(count)
    readers = [
        threading.Thread(target=lambda: database.read(lambda tx: together.wait(TIMEOUT)))
        for _ in range(count)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("call", ["register_owner", "listen"])
def test_a_start_that_fails_leaves_no_page_behind(call: str) -> None:
    source = FakeSource(faults={call: raising(StoreUnreachableError("gone"))})
    engine = Engine(source, done)
    with pytest.raises(StoreUnreachableError):
        engine.start()
    assert not any(Path(page).exists() for page in source.pages)
    assert engine.stopped
    source.faults.clear()
    with engine:
        source.put(FakeRow(1))
        source.wait_for_settlements((1, DONE))


def test_the_beat_page_shows_what_runs_and_goes_with_the_engine() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2)) as rig:
        gate.next_started(), gate.next_started()
        [page] = rig.source.pages
        reading = read_page(page)
        assert reading is not None
        assert {1, 2} == reading.running_rows
        assert (False, rig.clock.monotonic() + 24.0) == (reading.draining, reading.trusted_until)
        rig.clock.advance(3.0, parked=IDLE_THREADS)
        gate.contexts[1].beat()
        beaten = read_page(page)
        assert beaten is not None
        assert {1000.0, 1003.0} == {slot.beat_at for slot in beaten.slots}
        gate.open(1, 2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))
        after = read_page(page)
        assert after is not None
        assert frozenset() == after.running_rows
    assert not Path(page).exists()


def test_every_slot_has_a_heartbeat_of_its_own() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2)) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        rig.clock.advance(5.0)
        gate.contexts[1].beat()
        assert [0.0, 5.0] == sorted(
            heartbeat.elapsed() for heartbeat in rig.engine.slot_heartbeats()
        )
        gate.open(1, 2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))
        assert [] == rig.engine.slot_heartbeats()


def test_a_new_start_is_a_new_incarnation() -> None:
    source = FakeSource()
    engine = Engine(source, done)
    for number in (1, 2):
        with engine:
            source.put(FakeRow(number))
            source.wait_until(lambda number=number: len(source.settlements) == number)  # type: ignore[misc]
    assert [1, 2] == [settlement.claim.owner for settlement in source.settlements]
    assert 2 == len(set(source.pages))


def test_a_forked_child_finds_it_stopped() -> None:
    gate = GatedRunner()
    with running_engine(gate, FakeRow(1)) as rig:
        gate.next_started()
        pid = os.fork()
        if pid == 0:
            os._exit(
                0
                if rig.engine.stopped
                and rig.engine.draining
                and rig.engine.stop()
                and not rig.engine.held_count
                else 1
            )
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))


def test_an_engine_that_is_let_go_is_freed() -> None:
    mailbox: Mailbox[int] = open_mailbox("memory://", "freed")
    engine = Engine(mailbox.backend, MessageRunner(mailbox, lambda message, context: None))
    with engine:
        pass
    before = len(gc.get_objects())
    for _ in range(20):
        with engine:
            pass
    gc.collect()
    assert len(gc.get_objects()) < before + 2000
