"""The rule by which a claim's scan begins at a bound: a model of a server's transactions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from longwatch.core.fake_clock import FakeClock
from longwatch.store.scan_bound import (
    FULL_SCAN_INTERVAL,
    MAX_FULL_SCAN_INTERVAL,
    MAX_WAIT,
    MEASURE_INTERVAL,
    Measurement,
    ScanBound,
    ScanBounds,
)


def confirmed_at(low: int, clock: FakeClock) -> ScanBound:
    """A bound whose full scan is not due for five seconds."""
    bound = ScanBound(clock)
    bound.record(Measurement(low, xmin=10, xmax=10))
    bound.record(Measurement(low, xmin=10, xmax=10))
    bound.begin_claim()
    return bound


class TestScans:
    def test_are_full_until_a_measurement_is_confirmed(self) -> None:
        bound = ScanBound(FakeClock())
        bound.record(Measurement(7, xmin=10, xmax=12))
        assert [0, 0] == [bound.begin_claim(), bound.begin_claim()]

    def test_start_at_the_bound_until_a_full_scan_is_due(self) -> None:
        clock = FakeClock()
        bound = confirmed_at(7, clock)
        clock.advance(FULL_SCAN_INTERVAL - 0.1)
        assert 7 == bound.begin_claim()
        clock.advance(0.2)
        assert [0, 7] == [bound.begin_claim(), bound.begin_claim()]

    def test_that_are_full_and_take_long_are_rarer_up_to_a_minute(self) -> None:
        clock = FakeClock()
        bound = confirmed_at(7, clock)
        bound.end_full_scan(0.4)
        clock.advance(19.9)
        assert 7 == bound.begin_claim()
        clock.advance(0.2)
        assert 0 == bound.begin_claim()
        bound.end_full_scan(10.0)
        clock.advance(MAX_FULL_SCAN_INTERVAL + 0.1)
        assert 0 == bound.begin_claim()

    def test_are_full_again_once_the_store_may_be_another_one(self) -> None:
        bounds = ScanBounds(FakeClock())
        bounds.of("rows", 1).low = 7
        bounds.clear()
        assert 0 == bounds.of("rows", 1).low


class TestMeasurements:
    def test_are_wanted_once_a_second(self) -> None:
        clock = FakeClock()
        bound = ScanBound(clock)
        assert [True, False] == [bound.has_claimed(5), bound.has_claimed(3)]
        clock.advance(MEASURE_INTERVAL)
        assert bound.has_claimed(4)
        assert 5 == bound.highest

    def test_wait_for_the_transactions_that_ran_meanwhile(self) -> None:
        bound = ScanBound(FakeClock())
        bound.record(Measurement(7, xmin=10, xmax=12))
        bound.record(Measurement(8, xmin=11, xmax=15))
        assert 0 == bound.low
        bound.record(Measurement(9, xmin=12, xmax=16))
        assert 7 == bound.low

    def test_do_not_pass_a_row_that_was_committed_meanwhile_and_is_live(self) -> None:
        """Another process has claimed that row and may release it."""
        bound = ScanBound(FakeClock())
        bound.record(Measurement(7, xmin=10, xmax=12))
        bound.record(Measurement(5, xmin=12, xmax=16))
        assert 5 == bound.low
        bound.record(Measurement(9, xmin=16, xmax=18))
        assert 5 == bound.low
        bound.record(Measurement(9, xmin=18, xmax=20))
        assert 9 == bound.low

    def test_keep_the_earlier_time_from_which_on_rows_may_be_due(self) -> None:
        bound = ScanBound(FakeClock())
        bound.record(Measurement(7, xmin=10, xmax=12, due_low=50.0))
        assert 0.0 == bound.due_low
        bound.record(Measurement(8, xmin=12, xmax=16, due_low=40.0))
        assert 40.0 == bound.due_low

    def test_wait_a_minute_at_most_for_a_transaction_that_does_not_end(self) -> None:
        clock = FakeClock()
        bound = ScanBound(clock)
        bound.record(Measurement(7, xmin=10, xmax=12))
        clock.advance(MAX_WAIT)
        bound.record(Measurement(8, xmin=10, xmax=15))
        assert 7 == bound.low


class ServerModel(RuleBasedStateMachine):
    """Transactions that insert and settle rows, snapshots of them, and one process that claims.

    Each transaction takes its rows' numbers and its own number when it begins. It ends within a
    minute of the measurements that it delays.
    """

    transactions = Bundle("transactions")

    @initialize()
    def begin(self) -> None:
        self.clock = FakeClock()
        self.bound = ScanBound(self.clock)
        self.next_row = self.next_transaction = 1
        self.live: set[int] = set()
        self.inserting: dict[int, set[int]] = {}
        self.settling: dict[int, set[int]] = {}
        self.unrecorded: list[Measurement] = []

    @rule(target=transactions, rows=st.integers(0, 3), settled=st.integers(0, 3))
    def open(self, rows: int, settled: int) -> int:
        number = self.next_transaction
        self.next_transaction += 1
        self.inserting[number] = set(range(self.next_row, self.next_row + rows))
        self.next_row += rows
        locked = set().union(*self.settling.values())
        self.settling[number] = set(sorted(self.live - locked)[:settled])
        return number

    @rule(transaction=consumes(transactions), is_committed=st.booleans())
    def end(self, transaction: int, is_committed: bool) -> None:  # noqa: FBT001
        inserted, settled = self.inserting.pop(transaction), self.settling.pop(transaction)
        if is_committed:
            self.live = (self.live | inserted) - settled

    @precondition(lambda self: self.live)
    @rule(place=st.integers(0, 5))
    def claim(self, place: int) -> None:
        """Claim a row and measure. The reply to the commit may arrive late."""
        if self.bound.has_claimed(sorted(self.live)[min(place, len(self.live) - 1)]):
            low, highest = self.bound.low, self.bound.highest
            lowest = min((row for row in self.live if low <= row < highest), default=highest)
            xmin = min(self.inserting, default=self.next_transaction)
            self.unrecorded.append(Measurement(lowest, xmin, self.next_transaction))

    @precondition(lambda self: self.unrecorded)
    @rule(place=st.integers(0, 3))
    def record(self, place: int) -> None:
        self.bound.record(self.unrecorded.pop(min(place, len(self.unrecorded) - 1)))

    @rule()
    def wait(self) -> None:
        self.clock.advance(MEASURE_INTERVAL)

    @rule(target=transactions)
    def restart(self) -> object:
        """A process that starts knows no bound."""
        self.bound, self.unrecorded = ScanBound(self.clock), []
        return multiple()

    @invariant()
    def no_row_is_or_will_be_below_the_bound(self) -> None:
        rows = self.live.union(*self.inserting.values()) if hasattr(self, "live") else set()
        assert [] == sorted(row for row in rows if row < self.bound.low)


TestServerModel = ServerModel.TestCase
