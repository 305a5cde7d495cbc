"""What the settler keeps until the source has settled it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.engine import RowsSettled, SettlementRefused
from longwatch.core.heartbeat import Heartbeat
from longwatch.engine.claim_source import ClaimedRow, ExchangeResult, RowOutcome, Settlement
from longwatch.engine.coroutines import AlreadySettled, RowResult
from longwatch.engine.policy import MAX_BATCH, EngineContext, EnginePolicy
from longwatch.engine.row_life import FinishedRow
from longwatch.engine.settler import Settler
from longwatch.store.claims import Claim
from longwatch.testing import FakeClock, RecordingObserver


@pytest.fixture
def observer() -> RecordingObserver:
    return RecordingObserver()


@pytest.fixture
def settler(observer: RecordingObserver) -> Settler:
    clock, policy = FakeClock(), EnginePolicy(settle_batch=3)
    return Settler(EngineContext("engine", policy, clock, Events(observer), Heartbeat(clock)))


def claim(seq: int) -> Claim:
    return Claim(seq, 1, 1)


class FakeItem(NamedTuple):
    id: str


def done(seq: int) -> Settlement:
    return Settlement(claim(seq), RowOutcome.DONE)


def finished(seq: int, result: RowResult) -> FinishedRow:
    return FinishedRow(ClaimedRow(claim(seq), FakeItem(str(seq))), result, 0.5)


def add_done(settler: Settler, *numbers: int) -> None:
    for number in numbers:
        settler.add(finished(number, done(number)))
    settler.collect()


def rows(settlements: list[Settlement]) -> list[int]:
    return [each.claim.seq for each in settlements]


def test_finished_rows_are_settled_in_their_order_and_dropped_once_the_source_has_answered(
    settler: Settler,
) -> None:
    add_done(settler, 1, 2, 3)
    batch = settler.next_batch()
    add_done(settler, 4)
    assert ([1, 2, 3], True) == (rows(batch), settler.has_work)
    settler.exchange_done(batch, [True, True, True])
    assert [4] == rows(settler.next_batch())


def test_a_row_without_a_settlement_is_collected_and_never_settled(
    settler: Settler, observer: RecordingObserver
) -> None:
    settler.add(finished(1, None))
    settler.add(finished(2, AlreadySettled(RowOutcome.DONE)))
    assert [1, 2] == [each.claimed.claim.seq for each in settler.collect()]
    assert not settler.has_work
    settler.stats.emit()
    [settled] = observer.of(RowsSettled)
    assert (1, (0.5, 0.5)) == (settled.done, settled.durations)


def test_a_batch_is_full_counting_what_is_finished_and_what_is_left_from_before(
    settler: Settler,
) -> None:
    add_done(settler, 1, 2)
    assert not settler.is_batch_full
    settler.add(finished(3, done(3)))
    assert settler.is_batch_full


def test_after_a_failure_batches_are_halved_until_a_settlement_is_alone_and_goes_last(
    settler: Settler,
) -> None:
    add_done(settler, 1, 2, 3, 4)
    for expected in ([1, 2, 3, 4], [1, 2], [1], [2]):
        batch = settler.next_batch()
        assert expected == rows(batch)
        settler.exchange_failed(batch)
    settler.exchange_done(settler.next_batch(), [True])
    assert [4, 1, 2] == rows(settler.next_batch())


def test_a_failed_exchange_that_only_claimed_leaves_the_batch_size_alone(settler: Settler) -> None:
    settler.exchange_failed([])
    settler.release(map(claim, range(MAX_BATCH + 1)))
    assert MAX_BATCH == len(settler.next_batch())


def test_a_refused_settlement_may_have_counted_only_if_it_was_tried_before(
    settler: Settler, observer: RecordingObserver
) -> None:
    add_done(settler, 1)
    settler.exchange_failed(settler.next_batch())
    add_done(settler, 2)
    settler.release([claim(3)])
    for _ in range(2):
        batch = settler.next_batch()
        settler.exchange_done(batch, [False] * len(batch))
    add_done(settler, 1)
    settler.exchange_done(settler.next_batch(), [False])
    assert [("1", True), ("2", False), ("1", False)] == [
        (event.message_id, event.may_have_settled) for event in observer.of(SettlementRefused)
    ]


def test_rows_that_come_back_later_need_a_cycle_to_look_when_they_are_due(settler: Settler) -> None:
    settler.release([claim(1)], delay=5.0)
    batch = settler.next_batch()
    settler.exchange_done(batch, [True])
    settler.stats.record_exchange(batch, ExchangeResult([True], []), held=0)
    assert (False, True) == (settler.has_work, settler.needs_cycle)
    add_done(settler, 2)
    settler.exchange_done(settler.next_batch(), [True])
    assert not settler.needs_cycle


def test_rows_that_ran_and_were_settled_are_completed_and_released_or_refused_ones_are_not(
    settler: Settler,
) -> None:
    outcomes = [RowOutcome.DONE, RowOutcome.FAILED, RowOutcome.DEAD, RowOutcome.RELEASED]
    for number, outcome in enumerate(outcomes):
        settler.add(finished(number, Settlement(claim(number), outcome)))
        settler.add(finished(10 + number, AlreadySettled(outcome)))
    settler.collect()
    assert 3 == settler.completed
    settler.exchange_done(settler.next_batch(), [True, False, True, True])
    assert 5 == settler.completed
