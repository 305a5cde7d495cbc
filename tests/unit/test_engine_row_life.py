"""How a row ends in its slot: each rule of `engine/row_life.py`, and what the beat page says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed
from longwatch.core.heartbeat import Heartbeat
from longwatch.core.lease import LeasePolicy
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import AlreadySettled, CoroutineRunner, RowResult
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext, EnginePolicy
from longwatch.engine.row_life import BeginGate, Slot
from longwatch.host.beatpage import BeatPage, read_page
from longwatch.store.claims import Claim
from longwatch.testing import FakeClock, RecordingObserver

CLAIM = Claim(7, 1, 42)
ROW = ClaimedRow(CLAIM, None)
DONE = Settlement(CLAIM, RowOutcome.DONE)
RELEASED = Settlement(CLAIM, RowOutcome.RELEASED)
FORCED = Settlement(CLAIM, RowOutcome.FAILED, error="took too long")

Code = Callable[[RowContext], RowResult]


class SlotRig:
    """One slot with a fake clock, a real beat page and a lease that is trusted."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.observer = FakeClock(monotonic=100.0), RecordingObserver()
        self.page = BeatPage(folder / "page", 1)
        trust = LeaseTrust(1, LeasePolicy(30.0), clock=self.clock, page=self.page)
        trust.record_grant(self.clock.monotonic())
        self.gate = BeginGate(trust)

    def slot(self, code: Code) -> Slot:
        around = EngineContext(
            "engine", EnginePolicy(), self.clock, Events(self.observer), Heartbeat(self.clock)
        )
        coroutines = CoroutineRunner(name="engine-async", clock=self.clock)
        return Slot(0, lambda _, context: code(context), coroutines, self.gate, self.page, around)

    def result_of(self, code: Code) -> RowResult:
        return self.slot(code).live(ROW).result

    def rows_on_page(self) -> list[int]:
        page = read_page(str(self.page.path))
        assert page is not None
        return list(page.running_rows)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[SlotRig]:
    rig = SlotRig(tmp_path)
    yield rig
    rig.page.close()


def ending(end: RowResult | BaseException, **marks: Any) -> Code:
    """Code that sets these attributes of its context and then returns or raises."""

    def code(context: RowContext) -> RowResult:
        for name, value in marks.items():
            setattr(context, name, value)
        if isinstance(end, BaseException):
            raise end
        return end

    return code


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (ending(DONE), DONE),
        (ending(None), None),
        (ending(AlreadySettled(RowOutcome.DONE)), AlreadySettled(RowOutcome.DONE)),
        (ending(DONE, lease_lost=True), RELEASED),
        (ending(ValueError("no"), lease_lost=True), RELEASED),
        (ending(None, lease_lost=True), None),
        (ending(DONE, forced_settlement=FORCED), FORCED),
        (ending(None, forced_settlement=FORCED), FORCED),
        (ending(ValueError("no"), forced_settlement=FORCED), FORCED),
        (ending(DONE, forced_settlement=FORCED, lease_lost=True), FORCED),
        (
            ending(DONE, forced_settlement=FORCED, settled=True),
            AlreadySettled.by(FORCED),
        ),
        (ending(ValueError("no"), settled=True), None),
    ],
)
def test_a_forced_settlement_counts_first_then_a_lost_lease_then_the_code(
    rig: SlotRig, code: Code, result: RowResult
) -> None:
    assert result == rig.result_of(code)


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_an_exception_fails_the_row_and_never_leaves_the_slot(
    rig: SlotRig, error: BaseException
) -> None:
    result = rig.result_of(ending(error))
    assert isinstance(result, Settlement)
    assert RowOutcome.FAILED is result.outcome
    assert [result.delay] == [event.retry_in for event in rig.observer.of(WorkFailed)]


def test_a_row_that_may_not_begin_is_released_without_running(rig: SlotRig) -> None:
    ran: list[RowContext] = []
    slot = rig.slot(ran.append)
    rig.gate.close()
    assert (ROW, RELEASED, None) == slot.live(ROW)
    rig.gate.open()
    rig.clock.advance(30.0)  # the leases are not trusted any more
    assert (ROW, RELEASED, None) == slot.live(ROW)
    assert ([], None, []) == (ran, slot.context, rig.rows_on_page())


def test_the_beat_page_names_the_row_while_its_code_runs_and_no_longer(rig: SlotRig) -> None:
    seen: list[list[int]] = []

    def code(context: RowContext) -> RowResult:
        seen.append(rig.rows_on_page())
        rig.clock.advance(2.5)
        return DONE

    slot = rig.slot(code)
    finished = slot.live(ROW)
    assert ([[7]], [], 2.5) == (seen, rig.rows_on_page(), finished.duration)
    assert (None, 100.0) == (slot.context, slot.last_begin_at)
