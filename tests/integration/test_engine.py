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

from engine_rig import PATIENCE, QUIET, RESTING, FakeSource, Gate, Item, numbered, rigged
from longwatch.core.clock import Clock, Wakeup
from longwatch.core.events import (
    Events,
    SettlementRefused,
    SourceFailed,
    SourceRecovered,
    WorkFailed,
)
from longwatch.core.fake_clock import FakeClock
from longwatch.errors import PermanentError, StoreError, StoreUnreachableError
from longwatch.host.beatpage import read_page
from longwatch.host.service import Service
from longwatch.mailbox import Limits, Mailbox, Message, open_mailbox
from longwatch.mailbox.runner import MessageRunner
from longwatch.testing import RecordingObserver, check_service
from longwatch.work.context import WorkContext
from longwatch.work.engine import Engine, EnginePolicy
from longwatch.work.solitude import Solitude
from longwatch.work.source import Leased, Outcome, Settlement

DONE, FAILED, BACK, DEAD = Outcome.DONE, Outcome.FAILED, Outcome.BACK, Outcome.DEAD
SEND = (
    "import sys; from longwatch.mailbox import open_mailbox; open_mailbox(sys.argv[1], "
    "'jobs').send(int(sys.argv[2]))"
)


def done(leased: Leased, context: WorkContext) -> Settlement:
    return Settlement(leased.claim, DONE)


def raising(error: BaseException) -> Callable[..., None]:
    def fault(*_: object) -> None:
        raise error

    return fault


@contextmanager
def working(
    mailbox: Mailbox[Any], handle: Callable[[Message[Any], WorkContext], Any], **policy: Any
) -> Iterator[Engine]:
    """An engine in real time over a real mailbox."""
    with Engine(
        mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(**policy)
    ) as engine:
        yield engine


# --- running ---


def test_rows_are_begun_in_the_order_of_the_source() -> None:
    begun: list[int] = []

    def note(leased: Leased, context: WorkContext) -> Settlement:
        begun.append(leased.claim.seq)
        return done(leased, context)

    with rigged(note, *numbered(*range(500)), policy=dataclasses.replace(QUIET, slots=1)) as rig:
        rig.source.await_that(lambda: len(rig.source.settlements) == 500)
    assert list(range(500)) == begun
    assert [(number, DONE) for number in range(500)] == rig.source.outcomes()


def test_no_more_run_at_a_time_than_there_are_slots() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3)) as rig:
        assert {1, 2} == {gate.next(), gate.next()}
        rig.settle_down()
        assert gate.began.empty()
        gate.open(1)
        assert 3 == gate.next()
        gate.open(2, 3)
        rig.source.await_settled((1, DONE), (2, DONE), (3, DONE))


def test_settling_the_last_and_claiming_the_next_are_one_exchange() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3)) as rig:
        gate.next(), gate.next()
        rig.settle_down()
        before = rig.source.calls.count("exchange")
        gate.open(1)
        gate.next()
        assert before + 1 == rig.source.calls.count("exchange")
        assert [(1, DONE)] == rig.source.outcomes()
        gate.open(2, 3)


def test_short_work_is_leased_ahead_and_settled_together() -> None:
    with rigged(done, *numbered(*range(3000))) as rig:
        rig.source.await_that(lambda: len(rig.source.settlements) == 3000)
        assert rig.source.calls.count("exchange") < 300
        assert max(rig.source.wants) > 100


def test_what_is_done_waits_for_company_no_longer_than_it_may() -> None:
    gate = Gate()
    policy = dataclasses.replace(QUIET, slots=1, settle_within=0.005)
    with rigged(gate, *numbered(1, 2, 3), policy=policy) as rig:
        gate.next()
        rig.settle_down()
        rig.feeder._ahead.ahead = 10
        rig.source.hint()
        rig.source.await_that(lambda: len(rig.feeder.held) == 3)
        gate.open(1)
        gate.next()
        rig.settle_down()
        assert [] == rig.source.outcomes()
        rig.clock.advance(0.005)
        rig.source.await_settled((1, DONE))
        gate.open(2, 3)


def test_what_is_done_does_not_wait_for_company_when_the_slots_have_nothing_left_to_do() -> None:
    gate = Gate()
    policy = dataclasses.replace(QUIET, slots=1, settle_within=0.005)
    with rigged(gate, *numbered(1, 2, 3), policy=policy) as rig:
        gate.next()
        rig.settle_down()
        rig.feeder._ahead.ahead = 10
        rig.source.hint()
        rig.source.await_that(lambda: len(rig.feeder.held) == 3)
        gate.open(1)
        assert 2 == gate.next()
        rig.settle_down()
        gate.open(2)
        assert 3 == gate.next()
        assert [] == rig.source.outcomes()
        gate.open(3)
        rig.source.await_settled((1, DONE), (2, DONE), (3, DONE))
        assert 1000.0 == rig.clock.monotonic()


def test_a_long_job_does_not_wait_behind_others_while_somebody_else_could_run_it() -> None:
    """Rows that were leased ahead of short work, and now stand behind long work, are handed back
    within a second.
    """
    gate = Gate()
    with rigged(gate, *numbered(*range(10)), policy=dataclasses.replace(QUIET, slots=1)) as rig:
        gate.next()
        rig.settle_down()
        rig.feeder._ahead.ahead = 5
        rig.source.hint()
        rig.source.await_that(lambda: len(rig.feeder.held) == 6)
        rig.pass_time(1.0)
        rig.source.await_settled(*[(number, BACK) for number in range(1, 6)])
        rig.settle_down()
        assert 1 == len(rig.feeder.held)
        gate.open(0)
        assert 1 == gate.next()
        rig.settle_down()
        assert 1 == len(rig.feeder.held)
        gate.open(1)
        gate.open(*range(2, 10))


def test_what_was_leased_ahead_is_handed_back_when_work_turns_out_to_take_longer() -> None:
    gate = Gate()
    with rigged(gate, *numbered(*range(100)), policy=dataclasses.replace(QUIET, slots=1)) as rig:
        gate.next()
        rig.settle_down()
        rig.feeder._ahead.ahead = 50
        rig.source.hint()
        rig.source.await_that(lambda: len(rig.feeder.held) == 51)
        rig.settle_down()
        rig.clock.advance(0.2, parked=RESTING)
        rig.clock.advance(0.2, parked=RESTING)
        gate.open(0)
        assert 1 == gate.next()
        rig.source.await_that(lambda: (3, BACK) in rig.source.outcomes())
        rig.settle_down()
        assert len(rig.feeder.held) <= 2
        gate.open(*range(1, 100))


# --- how work ends ---


def test_work_that_raises_is_tried_again_after_the_backoff_and_that_is_told() -> None:
    gate = Gate()
    with rigged(gate, Item(1, failures=2)) as rig:
        gate.next()
        gate.fail(1, ValueError("not today"))
        rig.source.await_settled((1, FAILED))
        [settlement] = rig.source.settlements
        assert "ValueError: not today" == settlement.error
        assert 30.0 <= settlement.delay <= 50.0
        told = rig.observer.wait_for(WorkFailed)
        assert (1, 1, settlement.delay) == (told.row, told.attempt, told.retry_in)


def test_a_permanent_error_ends_the_row_at_once() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        gate.fail(1, PermanentError("never"))
        rig.source.await_settled((1, DEAD))
        assert "permanent" == rig.source.settlements[0].reason
        assert rig.observer.wait_for(WorkFailed).retry_in is None


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_an_exit_in_user_code_is_a_failure_and_its_slot_goes_on(error: BaseException) -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2), policy=dataclasses.replace(QUIET, slots=1)) as rig:
        gate.next()
        gate.fail(1, error)
        assert 2 == gate.next()
        gate.open(2)
        rig.source.await_settled((1, FAILED), (2, DONE))


def test_a_row_that_its_code_has_settled_is_not_settled_again(tmp_path: Path) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    observer, seen = RecordingObserver(), threading.Event()

    def handle(message: Message[int], context: WorkContext) -> None:
        if message.body == 1:
            message.acknowledge()
        else:
            message.nack() if message.delivery_count == 1 else seen.set()

    mailbox.send_many([1, 2])
    engine = Engine(mailbox.backend, MessageRunner(mailbox, handle), events=Events(observer))
    with engine:
        assert seen.wait(PATIENCE)
    assert (0, 0) == (mailbox.approximate_count(), len(mailbox.dead))
    assert [] == observer.of(SettlementRefused)
    mailbox.backend.database.close()  # type: ignore[attr-defined]


# --- rows that have crashed a process before ---


def test_a_row_that_crashed_before_runs_with_nothing_beside_it() -> None:
    gate = Gate()
    with rigged(gate, Item(1), Item(2, alone=True), Item(3)) as rig:
        assert 1 == gate.next()
        rig.settle_down()
        assert gate.began.empty()
        gate.open(1)
        assert 2 == gate.next()
        rig.settle_down()
        assert gate.began.empty()
        gate.open(2)
        assert 3 == gate.next()
        gate.open(3)
        rig.source.await_settled((1, DONE), (2, DONE), (3, DONE))


def test_while_one_waits_to_be_alone_the_others_are_settled() -> None:
    gate = Gate()
    with rigged(
        gate, *numbered(1, 2), Item(3, alone=True), policy=dataclasses.replace(QUIET, slots=3)
    ) as rig:
        assert {1, 2} == {gate.next(), gate.next()}
        gate.open(1)
        rig.source.await_settled((1, DONE))
        gate.open(2)
        assert 3 == gate.next()
        gate.open(3)


def test_one_that_cannot_be_alone_soon_is_left_to_others_and_the_line_moves_on() -> None:
    gate = Gate()
    with rigged(gate, Item(1), Item(2, alone=True), Item(3)) as rig:
        assert 1 == gate.next()
        rig.pass_time(QUIET.alone_within)
        assert 3 == gate.next()
        assert [(2, BACK)] == rig.source.outcomes()
        assert QUIET.alone_within == rig.source.settlements[0].delay
        gate.open(1, 3)


def test_engines_that_share_a_process_leave_it_to_one_that_runs_alone() -> None:
    solitude, clock = Solitude(), FakeClock()
    gates, sources = (
        (Gate(), Gate()),
        (FakeSource([Item(1, alone=True)]), FakeSource(numbered(11, 12, 13))),
    )
    engines = [
        Engine(
            source, gate, policy=dataclasses.replace(QUIET, slots=1), clock=clock, solitude=solitude
        )
        for source, gate in zip(sources, gates, strict=True)
    ]
    try:
        engines[1].start()
        assert 11 == gates[1].next()
        clock.await_parked(RESTING)
        engines[0].start()
        sources[0].await_calls("exchange", 1)
        clock.await_parked(2 * RESTING)
        assert gates[0].began.empty()
        gates[1].open(11)
        assert 1 == gates[0].next()
        clock.await_parked(2 * RESTING)
        assert gates[1].began.empty()
        gates[0].open(1)
        assert 12 == gates[1].next()
        gates[1].open(12, 13)
        sources[1].await_settled((11, DONE), (12, DONE), (13, DONE))
    finally:
        assert all(engine.stop() for engine in engines)


def test_a_message_that_is_spent_goes_to_the_dead_and_is_not_run() -> None:
    mailbox: Mailbox[int] = open_mailbox("memory://", "jobs", limits=Limits(max_failures=2))
    ran: list[int] = []
    after = threading.Event()

    def handle(message: Message[int], context: WorkContext) -> None:
        ran.append(message.body)
        if message.body == 1:
            message.nack(reason="no")
        else:
            after.set()

    mailbox.send(1)
    with working(mailbox, handle):
        mailbox.send(2, delay_seconds=0.05)
        assert after.wait(PATIENCE)
    assert [1, 1, 2] == ran
    [letter] = mailbox.dead
    assert ("failed", "no", 2) == (letter.reason, letter.error, letter.failures)
    mailbox.dead.drop_all()


def test_a_body_that_cannot_be_read_is_dead_and_the_others_are_worked_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/m.db"
    store: Mailbox[Any] = open_mailbox(url, "jobs")
    store.send_many(["not a number", 2])
    mailbox: Mailbox[int] = open_mailbox(store.backend.database, "jobs", int)  # type: ignore[attr-defined]
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    with working(mailbox, lambda message, context: seen.put(message.body)):
        assert 2 == seen.get(timeout=PATIENCE)
    assert ["undecodable"] == [letter.reason for letter in mailbox.dead]
    store.backend.database.close()  # type: ignore[attr-defined]


# --- when the source fails ---


@pytest.mark.parametrize(
    "error", [StoreUnreachableError("gone"), RuntimeError("a bug"), SystemExit(1)]
)
def test_settlements_survive_a_source_that_fails_and_are_made_once(error: BaseException) -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2)) as rig:
        gate.next(), gate.next()
        rig.settle_down()
        rig.source.faults["exchange"] = raising(error)
        gate.open(1, 2)
        rig.observer.wait_for(SourceFailed)
        rig.pass_time(5.0)
        assert [] == rig.source.outcomes()
        del rig.source.faults["exchange"]
        rig.pass_time(5.0)
        rig.source.await_settled((1, DONE), (2, DONE))
        assert [] == rig.observer.of(SettlementRefused)
        assert rig.observer.wait_for(SourceRecovered).failures > 2


def test_a_source_that_fails_is_asked_less_and_less_often() -> None:
    source = FakeSource(faults={"exchange": raising(StoreError("down"))})
    with rigged(done, source=source) as rig:
        rig.pass_time(60.0)
        assert 30 <= source.calls.count("exchange") <= 60
        told = [event.failures for event in rig.observer.of(SourceFailed)]
        assert [1, 16, 32] == told[:3]
        fault = source.faults.pop("exchange")
        rig.pass_time(5.0)
        rig.observer.wait_for(SourceRecovered)
        source.faults["exchange"] = fault
        source.hint()
        rig.pass_time(5.0)
        assert 1 in [event.failures for event in rig.observer.of(SourceFailed)][len(told) :]


@pytest.mark.parametrize("call", ["next_due", "sweep", "renew", "held"])
def test_no_call_that_raises_ends_the_engine(call: str) -> None:
    gate = Gate()
    source = FakeSource(faults={call: raising(RuntimeError("a bug"))})
    with rigged(
        gate, Item(1), source=source, policy=dataclasses.replace(QUIET, sweep_every=5.0, poll=5.0)
    ) as rig:
        gate.next()
        rig.settle_down()
        rig.feeder.doubt()
        rig.pass_time(20.0)
        assert call == rig.observer.wait_for(SourceFailed).call
        source.put(Item(2))
        assert 2 == gate.next()
        gate.open(1, 2)
        source.await_settled((1, DONE), (2, DONE))


def test_a_settlement_whose_answer_was_lost_is_reported_as_unknown() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()
        rig.source.lost_answers["exchange"] = StoreError("no answer; the outcome is unknown")
        gate.open(1)
        rig.observer.wait_for(SourceFailed)
        rig.settle_down()
        rig.source.lost_answers.clear()
        rig.pass_time(5.0)
        refused = rig.observer.wait_for(SettlementRefused)
        assert (1, "done", True) == (refused.row, refused.outcome, refused.unknown)
        assert [(1, DONE)] == rig.source.outcomes()


def test_a_settlement_of_a_row_that_is_not_ours_any_more_is_told_and_not_made_again() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.source.take_away(1)
        gate.open(1)
        refused = rig.observer.wait_for(SettlementRefused)
        assert (1, False) == (refused.row, refused.unknown)
        rig.settle_down()
        assert 0 == rig.engine.holding


def test_rows_that_were_claimed_by_an_exchange_without_an_answer_are_given_back() -> None:
    """Nobody here knows of them, and renewing by owner would keep them for ever."""
    source = FakeSource(lost_answers={"exchange": StoreError("no answer")})
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3), source=source) as rig:
        rig.observer.wait_for(SourceFailed)
        rig.settle_down()
        source.lost_answers.clear()
        rig.pass_time(5.0)
        assert {1, 2} == {gate.next(), gate.next()}
        source.await_settled((1, BACK), (2, BACK))
        gate.open(1, 2, 3)


def test_one_settlement_that_cannot_be_made_does_not_keep_the_others() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2, 3, 4), policy=dataclasses.replace(QUIET, slots=4)) as rig:
        for _ in range(4):
            gate.next()
        rig.settle_down()
        honest = rig.source._settle

        def settle(settlement: Settlement) -> bool:
            if settlement.claim.seq == 2:
                raise ValueError("cannot be written")
            return honest(settlement)

        rig.source._settle = settle  # type: ignore[method-assign]
        gate.open(1, 2, 3, 4)
        rig.observer.wait_for(SourceFailed)
        rig.pass_time(60.0)
        rig.source.await_settled((1, DONE), (3, DONE), (4, DONE))
        rig.source._settle = honest  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("part", "step", "call"), [("feeder", "_collect", "feed"), ("_keeper", "_look", "keep")]
)
def test_not_even_a_fault_of_its_own_ends_its_threads(part: str, step: str, call: str) -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        rig.settle_down()
        thing = getattr(rig.engine._shift, part)
        honest = getattr(thing, step)
        setattr(thing, step, raising(RuntimeError("a bug")))
        rig.source.hint()
        rig.pass_time(20.0)
        assert call == rig.observer.wait_for(SourceFailed).call
        setattr(thing, step, honest)
        rig.source.hint()
        rig.pass_time(20.0)
        rig.observer.wait_for(SourceRecovered)
        gate.open(1)
        rig.source.put(Item(2))
        assert 2 == gate.next()
        gate.open(2)


# --- doing nothing ---


class CountingClock:
    """A clock that counts how often somebody wakes up from waiting on it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.wakes = 0
        self.monotonic, self.wall, self.sleep = clock.monotonic, clock.wall, clock.sleep

    def wait(self, wakeup: Wakeup, timeout: float | None = None) -> bool:
        heard = self._clock.wait(wakeup, timeout)
        self.wakes += 1
        return heard


def test_an_idle_engine_wakes_up_four_times_a_second_at_most() -> None:
    fake = FakeClock()
    counting: Clock = CountingClock(fake)
    source = FakeSource()
    with Engine(source, done, policy=EnginePolicy(slots=8), clock=counting):
        fake.await_parked(RESTING)
        fake.advance(60.0)
        woken, asked = counting.wakes, len(source.calls)  # type: ignore[attr-defined]
    assert woken <= 240
    assert asked <= 300


@pytest.mark.parametrize("due", [0.0, 1e-9])
def test_a_row_that_is_due_and_not_given_out_makes_no_busy_loop(due: float) -> None:
    """Its mailbox is paused, or somebody else was faster."""
    source = FakeSource(numbered(1), paused=True, due=due)
    policy = EnginePolicy(sweep_every=1000.0)
    with rigged(done, source=source, policy=policy) as rig:
        if due:
            source.due = 0.0
        rig.pass_time(60.0)
        assert source.calls.count("exchange") < 120


def test_a_delayed_row_is_fetched_when_it_is_due() -> None:
    gate = Gate()
    source = FakeSource(due=7.0)
    with rigged(gate, source=source) as rig:
        rig.settle_down()
        source.rows.append(Item(1))
        rig.pass_time(6.9)
        assert gate.began.empty()
        source.due = None
        rig.pass_time(0.2)
        assert 1 == gate.next()
        gate.open(1)


def test_a_message_from_another_process_is_worked_on_though_no_look_is_due(tmp_path: Path) -> None:
    """Polling, sweeping and the store's own net are all out of reach here; only the hint can be
    it.
    """
    url = f"sqlite:///{tmp_path}/m.db"
    mailbox: Mailbox[int] = open_mailbox(url, "jobs")
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    with working(
        mailbox, lambda message, context: seen.put(message.body), poll=3600.0, sweep_every=3600.0
    ):
        for number in range(3):
            subprocess.run([sys.executable, "-c", SEND, url, str(number)], check=True, timeout=60)
            assert number == seen.get(timeout=PATIENCE)
    mailbox.backend.database.close()  # type: ignore[attr-defined]


# --- as a service ---


def test_it_keeps_the_contract_of_a_service() -> None:
    def refused(service: Service) -> Any:
        @contextmanager
        def broken() -> Iterator[None]:
            source: Any = service.source  # type: ignore[attr-defined]
            source.faults["enter"] = raising(StoreUnreachableError("gone"))
            yield
            del source.faults["enter"]

        return broken()

    check_service(
        lambda: Engine(FakeSource(numbered(*range(20))), done, policy=EnginePolicy(slots=2)),
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
        threading.Thread(target=lambda: database.read(lambda tx: together.wait(PATIENCE)))
        for _ in range(count)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("call", ["enter", "listen"])
def test_a_start_that_fails_leaves_no_page_behind(call: str) -> None:
    source = FakeSource(faults={call: raising(StoreUnreachableError("gone"))})
    engine = Engine(source, done)
    with pytest.raises(StoreUnreachableError):
        engine.start()
    assert not any(Path(page).exists() for page in source.pages)
    assert engine.stopped
    source.faults.clear()
    with engine:
        source.put(Item(1))
        source.await_settled((1, DONE))


def test_the_beat_page_shows_what_runs_and_goes_with_the_engine() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2)) as rig:
        gate.next(), gate.next()
        [page] = rig.source.pages
        reading = read_page(page)
        assert reading is not None
        assert {1, 2} == reading.started
        assert (False, rig.clock.monotonic() + 24.0) == (reading.draining, reading.trusted_until)
        rig.clock.advance(3.0, parked=RESTING)
        gate.contexts[1].beat()
        beaten = read_page(page)
        assert beaten is not None
        assert {1000.0, 1003.0} == {slot.beat for slot in beaten.slots}
        gate.open(1, 2)
        rig.source.await_settled((1, DONE), (2, DONE))
        after = read_page(page)
        assert after is not None
        assert frozenset() == after.started
    assert not Path(page).exists()


def test_every_slot_has_a_heartbeat_of_its_own() -> None:
    gate = Gate()
    with rigged(gate, *numbered(1, 2)) as rig:
        gate.next(), gate.next()
        rig.settle_down()
        rig.clock.advance(5.0)
        gate.contexts[1].beat()
        assert [0.0, 5.0] == sorted(heartbeat.elapsed() for heartbeat in rig.engine.heartbeats())
        gate.open(1, 2)
        rig.source.await_settled((1, DONE), (2, DONE))
        assert [] == rig.engine.heartbeats()


def test_a_new_start_is_a_new_incarnation() -> None:
    source = FakeSource()
    engine = Engine(source, done)
    for number in (1, 2):
        with engine:
            source.put(Item(number))
            source.await_that(lambda number=number: len(source.settlements) == number)  # type: ignore[misc]
    assert [1, 2] == [settlement.claim.owner for settlement in source.settlements]
    assert 2 == len(set(source.pages))


def test_a_forked_child_finds_it_stopped() -> None:
    gate = Gate()
    with rigged(gate, Item(1)) as rig:
        gate.next()
        pid = os.fork()
        if pid == 0:
            os._exit(
                0
                if rig.engine.stopped
                and rig.engine.draining
                and rig.engine.stop()
                and not rig.engine.holding
                else 1
            )
        assert 0 == os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        gate.open(1)
        rig.source.await_settled((1, DONE))


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
