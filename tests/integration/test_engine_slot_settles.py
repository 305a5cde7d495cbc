"""A slot that has finished the only row settles it itself, and delivered rows begin at once: no
thread is woken for them.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from engine_rig import IDLE_THREADS, QUIET_POLICY, EngineRig, GatedRunner, fake_rows, running_engine
from longwatch.core.events.engine import ClaimSourceFailed
from longwatch.engine.claim_source import ClaimedRow, ExchangeResult, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.row_life import released
from longwatch.errors import StoreUnreachableError
from longwatch.store.claims import Claim
from polling import eventually

DONE = RowOutcome.DONE


class ExchangeThreads:
    """Which threads have made the exchanges."""

    def __init__(self, rig: EngineRig) -> None:
        self.names: list[str] = []
        rig.source.faults["exchange"] = lambda: self.names.append(threading.current_thread().name)


def test_a_slot_that_finishes_the_only_row_settles_it_and_goes_on_with_the_next() -> None:
    threads: list[str] = []

    class Noting(GatedRunner):
        def __call__(self, leased: ClaimedRow, context: RowContext) -> Settlement | None:
            threads.append(threading.current_thread().name)
            return super().__call__(leased, context)

    gate = Noting()
    with running_engine(gate, *fake_rows(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        threads_of_exchanges = ExchangeThreads(rig)
        with rig.source.changed:
            rig.source.rows += fake_rows(2)  # nobody is told
        gate.open(1)
        assert 2 == gate.next_started()
        assert threads[0] == threads[1]
        assert threads[0] == threads_of_exchanges.names[0]
        gate.open(2)
        rig.source.wait_for_settlements((1, DONE), (2, DONE))


def test_while_others_run_the_loop_makes_the_exchange() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1, 2)) as rig:
        gate.next_started(), gate.next_started()
        rig.wait_idle()
        threads_of_exchanges = ExchangeThreads(rig)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        assert ["engine-fetcher"] == threads_of_exchanges.names
        gate.open(2)


def test_an_engine_of_many_slots_leaves_the_exchange_to_the_loop() -> None:
    gate = GatedRunner()
    with running_engine(
        gate, *fake_rows(1), policy=dataclasses.replace(QUIET_POLICY, slots=65)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        threads_of_exchanges = ExchangeThreads(rig)
        gate.open(1)
        rig.source.wait_for_settlements((1, DONE))
        assert ["engine-fetcher"] == threads_of_exchanges.names


def test_a_store_that_does_not_answer_the_slot_is_asked_again_by_the_loop() -> None:
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        threads_of_exchanges = ExchangeThreads(rig)
        note = rig.source.faults["exchange"]

        def away() -> None:
            note()
            raise StoreUnreachableError("away")

        rig.source.faults["exchange"] = away
        gate.open(1)
        rig.source.wait_until(lambda: len(threads_of_exchanges.names) >= 1)
        rig.clock.await_parked(IDLE_THREADS)
        rig.source.faults.clear()
        rig.pass_time(1.0)
        rig.source.wait_for_settlements((1, DONE))
        assert threads_of_exchanges.names[0].startswith("engine-slot")


def test_a_delayed_retry_that_the_slot_has_settled_is_waited_for() -> None:
    """The exchange loop rests until something is due. A row that is due sooner has to wake it."""
    gate = GatedRunner()
    with running_engine(gate, *fake_rows(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        asked = rig.source.calls.count("next_due")
        gate.fail(1, ValueError("broken"))
        rig.source.wait_until(lambda: rig.source.calls.count("next_due") > asked)


def _signalled(event: threading.Event) -> bool:
    event.set()
    return True


def test_a_stop_waits_for_the_slot_that_settles() -> None:
    gate, busy, go = GatedRunner(), threading.Event(), threading.Event()
    with running_engine(gate, *fake_rows(1)) as rig:
        gate.next_started()
        rig.wait_idle()
        rig.source.faults["exchange"] = lambda: _signalled(busy) and go.wait(10.0)
        gate.open(1)
        assert busy.wait(10.0)
        rig.engine.drain()
        go.set()
        rig.source.wait_for_settlements((1, DONE))
    assert 0 == rig.engine.held_count


def test_delivered_rows_begin_while_the_loop_rests() -> None:
    gate = GatedRunner()
    with running_engine(gate) as rig:
        rig.wait_idle()
        reservation = rig.engine.reserve(1)
        assert reservation is not None
        [row] = fake_rows(7)
        row.claim = Claim(7, reservation.owner, 1)
        rig.source.rows.append(row)
        exchanges = rig.source.calls.count("exchange")
        reservation.deliver([ClaimedRow(row.claim, row)], rig.clock.monotonic())
        reservation.close()
        assert 7 == gate.next_started()
        assert exchanges == rig.source.calls.count("exchange")
        gate.open(7)
        rig.source.wait_for_settlements((7, DONE))


def test_news_that_comes_with_a_given_row_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is given, something is done, and something else is told of, all while the fetcher
    waits for the store's answer.
    """
    gate, busy, go = GatedRunner(), threading.Event(), threading.Event()
    with running_engine(
        gate, *fake_rows(1), policy=dataclasses.replace(QUIET_POLICY, slots=4)
    ) as rig:
        gate.next_started()
        rig.wait_idle()
        reservation = rig.engine.reserve(1)
        assert reservation is not None
        exchange = rig.source.exchange

        def answered_late(*args: Any, **named: Any) -> ExchangeResult:
            answer = exchange(*args, **named)
            busy.set()
            go.wait(10.0)
            return answer

        monkeypatch.setattr(rig.source, "exchange", answered_late)
        rig.source.put(*fake_rows(2))
        assert busy.wait(10.0)
        monkeypatch.undo()
        gate.open(1)
        [row] = fake_rows(7)
        row.claim = Claim(7, reservation.owner, 1)
        rig.source.rows.append(row)
        reservation.deliver([ClaimedRow(row.claim, row)], rig.clock.monotonic())
        reservation.close()
        assert eventually(lambda: bool(rig.exchange_loop._settler.has_work))
        rig.source.put(*fake_rows(8))
        go.set()
        assert {2, 7, 8} == {gate.next_started(), gate.next_started(), gate.next_started()}


def test_rows_that_are_given_while_it_ends_go_back() -> None:
    with running_engine(GatedRunner()) as rig:
        rig.wait_idle()
        reservation = rig.engine.reserve(1)
        assert reservation is not None
        rig.engine.drain()
        [row] = fake_rows(7)
        row.claim = Claim(7, reservation.owner, 1)
        rig.source.rows.append(row)
        reservation.deliver([ClaimedRow(row.claim, row)], rig.clock.monotonic())
        reservation.close()
        rig.source.wait_for_settlements((7, RowOutcome.RELEASED))


def test_a_stop_waits_for_an_open_reservation() -> None:
    """Its rows may be leased to the engine already, and nobody else would release them."""
    with running_engine(GatedRunner()) as rig:
        rig.wait_idle()
        reservation = rig.engine.reserve(1)
        assert reservation is not None
        stopping = threading.Thread(target=lambda: rig.engine.stop(timeout=None), daemon=True)
        stopping.start()
        rig.clock.await_parked(IDLE_THREADS + 1)  # the stop waits, and so does the exchange loop
        [row] = fake_rows(7)
        row.claim = Claim(7, reservation.owner, 1)
        rig.source.rows.append(row)
        reservation.deliver([ClaimedRow(row.claim, row)], rig.clock.monotonic())
        reservation.close()
        rig.source.wait_for_settlements((7, RowOutcome.RELEASED))
        stopping.join(10.0)
        assert not stopping.is_alive()


def test_a_thread_that_releases_a_row_leaves_the_exchange_to_the_loop() -> None:
    """It may be the lease renewer, which never waits for the store and runs no rows."""
    with running_engine(GatedRunner()) as rig:
        rig.wait_idle()
        threads_of_exchanges = ExchangeThreads(rig)
        [row] = fake_rows(7)
        row.claim = Claim(7, 1, 1)
        rig.source.rows.append(row)
        assert rig.exchange_loop.hand_in(released(ClaimedRow(row.claim, row))) is None
        rig.source.wait_for_settlements((7, RowOutcome.RELEASED))
        assert "engine-fetcher" == threads_of_exchanges.names[0]


@pytest.mark.parametrize("slots", [1, 2])
def test_many_rows_one_after_the_other_are_all_settled_once(slots: int) -> None:
    def runner(leased: ClaimedRow, context: RowContext) -> Settlement:
        return Settlement(leased.claim, DONE)

    with running_engine(runner, policy=dataclasses.replace(QUIET_POLICY, slots=slots)) as rig:
        for number in range(300):
            rig.source.put(*fake_rows(number))
            rig.source.wait_until(lambda number=number: len(rig.source.settlements) == number + 1)  # type: ignore[misc]
        assert not rig.exchange_loop.polls_exhausted.is_set()  # without `max_polls` it never is
    assert [(number, DONE) for number in range(300)] == rig.source.outcomes()
    assert not rig.observer.of(ClaimSourceFailed)
