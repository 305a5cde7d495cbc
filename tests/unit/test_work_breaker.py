from __future__ import annotations

from longwatch.core.events.base import Events
from longwatch.core.events.runner import (
    WorkBreakerClosed,
    WorkBreakerOpened,
    WorkBreakerTrialStarted,
)
from longwatch.runner.work_breaker import WorkBreaker
from longwatch.testing import FakeClock, RecordingObserver

COOLDOWN = 300.0


class BreakerRig:
    """A breaker of three failures, its clock, and what it emits."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.observer = RecordingObserver()
        self.breaker = WorkBreaker(
            failures=3, cooldown=COOLDOWN, clock=self.clock, events=Events(self.observer)
        )
        self._count = 0

    def run(self, *, success: bool | None) -> None:
        self._count += 1
        assert self.breaker.try_start(f"run{self._count}")
        self.breaker.record(f"run{self._count}", success=success)

    def is_open(self) -> bool:
        return self.breaker.is_open

    def open(self) -> None:
        for _ in range(3):
            self.run(success=False)


def test_failures_in_a_row_open_it() -> None:
    """Only failures in a row count: a success between them starts the count anew."""
    rig = BreakerRig()
    for success in (False, False, True, False, False):
        rig.run(success=success)
    assert not rig.is_open()
    rig.run(success=False)
    assert rig.is_open()
    assert 0 == rig.breaker.admit(5)
    assert not rig.breaker.try_start("another")
    [opened] = rig.observer.of(WorkBreakerOpened)
    assert (3, COOLDOWN) == (opened.failures, opened.cooldown)


def test_a_cancelled_run_counts_as_neither() -> None:
    """A cancel neither ends a row of failures nor adds to it."""
    rig = BreakerRig()
    for success in (False, None, False, None, None):
        rig.run(success=success)
    assert not rig.is_open()
    rig.run(success=False)
    assert rig.is_open()


def test_after_the_cooldown_one_trial_starts() -> None:
    """One event is admitted after the cool-down, and no other while its run lasts."""
    rig = BreakerRig()
    rig.open()
    rig.clock.advance(COOLDOWN - 1)
    assert 0 == rig.breaker.admit(5)
    rig.clock.advance(1)
    assert rig.is_open()
    assert 1 == rig.breaker.admit(5)
    assert 1 == rig.breaker.admit(5), "to admit starts nothing"
    assert rig.breaker.try_start("trial")
    assert 0 == rig.breaker.admit(5)
    assert not rig.breaker.try_start("second")
    assert 1 == len(rig.observer.of(WorkBreakerTrialStarted))


def test_a_trial_that_succeeds_closes_it() -> None:
    """Then runs start again as before."""
    rig = BreakerRig()
    rig.open()
    rig.clock.advance(COOLDOWN)
    rig.run(success=True)
    assert not rig.is_open()
    assert 5 == rig.breaker.admit(5)
    [closed] = rig.observer.of(WorkBreakerClosed)
    assert closed.open_for == COOLDOWN


def test_a_trial_that_fails_opens_it_for_another_cooldown() -> None:
    """The failures go on counting, and it was open all the time."""
    rig = BreakerRig()
    rig.open()
    rig.clock.advance(COOLDOWN)
    rig.run(success=False)
    assert 0 == rig.breaker.admit(5)
    rig.clock.advance(COOLDOWN)
    rig.run(success=True)
    assert [3, 4] == [each.failures for each in rig.observer.of(WorkBreakerOpened)]
    [closed] = rig.observer.of(WorkBreakerClosed)
    assert 2 * COOLDOWN == closed.open_for


def test_a_cancelled_trial_makes_room_for_another() -> None:
    """A trial without a verdict is repeated at once."""
    rig = BreakerRig()
    rig.open()
    rig.clock.advance(COOLDOWN)
    rig.run(success=None)
    assert rig.is_open()
    assert 1 == rig.breaker.admit(5)
    rig.run(success=True)
    assert not rig.is_open()


def test_runs_from_before_it_opened_change_nothing() -> None:
    """Runs that outlive the opening neither close it, nor open it again, nor end the trial."""
    rig = BreakerRig()
    for name in ("old1", "old2", "old3"):
        assert rig.breaker.try_start(name)
    rig.open()
    rig.breaker.record("old1", success=True)
    assert rig.is_open()
    rig.clock.advance(COOLDOWN)
    assert rig.breaker.try_start("trial")
    rig.breaker.record("old2", success=True)
    rig.breaker.record("old3", success=False)
    assert rig.is_open()
    assert 0 == rig.breaker.admit(1)
    rig.breaker.record("trial", success=True)
    assert not rig.is_open()
