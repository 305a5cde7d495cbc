from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.clock import Wakeup
from longwatch.core.events.base import Events
from longwatch.core.events.host import PeriodicTaskFailed
from longwatch.errors import ServiceStateError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.periodic import Cadence, Periodic, run_every
from longwatch.host.service import ServiceGroup
from longwatch.testing import FakeClock, RecordingObserver

fractions = st.floats(min_value=0.0, max_value=1.0)
intervals = st.floats(min_value=0.001, max_value=1e6)


@given(interval=intervals, jitter=fractions, spread=fractions)
def test_jitter_only_shortens_and_never_by_more_than_its_fraction(
    interval: float, jitter: float, spread: float
) -> None:
    delay = Cadence(interval=interval, jitter=jitter).delay(fraction=spread)
    assert delay <= interval
    assert delay == pytest.approx(max(delay, interval * (1 - jitter)))


def test_jitter_of_a_fifth_gives_four_to_five_fifths_of_the_interval() -> None:
    cadence = Cadence(interval=10.0, jitter=0.2)
    assert [10.0, 9.0, 8.0] == [cadence.delay(fraction=spread) for spread in (0.0, 0.5, 1.0)]


def test_the_time_a_round_took_is_part_of_the_delay() -> None:
    cadence = Cadence(interval=10.0)
    assert [10.0, 7.0, 0.0, 0.0] == [
        cadence.next_delay(fraction=0.0, spent=spent) for spent in (0.0, 3.0, 10.0, 35.0)
    ]


@pytest.mark.parametrize("interval", [0.0, -1.0, inf, nan])
def test_an_interval_that_is_no_time_is_refused(interval: float) -> None:
    with pytest.raises(ValueError, match="interval"):
        Cadence(interval=interval)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, nan])
def test_jitter_that_is_no_fraction_is_refused(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        Cadence(interval=1.0, jitter=jitter)


@dataclass
class Task:
    """A Periodic on a fake clock that writes down when each round began."""

    clock: FakeClock = field(default_factory=FakeClock)
    observer: RecordingObserver = field(default_factory=RecordingObserver)
    rounds: list[float] = field(default_factory=list)
    then: Callable[[], object] = lambda: None

    def work(self) -> None:
        self.rounds.append(self.clock.monotonic() - 1000.0)
        self.then()

    def periodic(
        self, *, jitter: float = 0.0, immediately: bool = True, spread: float = 0.0
    ) -> Periodic:
        cadence = Cadence(interval=10.0, jitter=jitter, immediately=immediately)
        return Periodic(
            self.work,
            cadence,
            name="task",
            clock=self.clock,
            events=Events(self.observer),
            fraction=lambda: spread,
        )


def test_it_works_at_once_and_then_every_interval() -> None:
    task = Task()
    with task.periodic():
        task.clock.await_parked(1)
        task.clock.advance(35)
        assert [0.0, 10.0, 20.0, 30.0] == task.rounds


def test_it_can_wait_one_interval_first() -> None:
    task = Task()
    with task.periodic(immediately=False):
        task.clock.await_parked(1)
        task.clock.advance(25)
        assert [10.0, 20.0] == task.rounds


def test_jitter_shortens_each_delay() -> None:
    task = Task()
    with task.periodic(jitter=0.2, spread=1.0):
        task.clock.await_parked(1)
        task.clock.advance(25)
        assert [0.0, 8.0, 16.0, 24.0] == task.rounds


def test_a_round_counts_from_its_beginning_and_one_that_overran_is_followed_at_once_without_overlap() -> (  # noqa: E501 - one name
    None
):
    task = Task()
    lengths = iter([3.0, 25.0])
    task.then = lambda: task.clock.wait(Wakeup(), next(lengths, 0.0))
    with task.periodic():
        task.clock.await_parked(1)
        task.clock.advance(45)
        assert [0.0, 10.0, 35.0, 45.0] == task.rounds


def test_waking_brings_the_next_round_now_and_the_one_after_an_interval_later() -> None:
    task = Task()
    with task.periodic() as periodic:
        task.clock.await_parked(1)
        task.clock.advance(4)
        done = threading.Event()
        task.then = done.set
        periodic.wake()
        assert done.wait(10)
        task.clock.await_parked(1)
        task.clock.advance(10)
        assert [0.0, 4.0, 14.0] == task.rounds


def test_waking_during_a_round_brings_one_more_after_it() -> None:
    task = Task()
    with task.periodic() as periodic:
        task.clock.await_parked(1)
        twice = threading.Semaphore(0)
        steps = iter([periodic.wake])

        def wake_once() -> None:
            next(steps, twice.release)()
            twice.release()

        task.then = wake_once
        periodic.wake()
        assert twice.acquire(timeout=10)
        assert twice.acquire(timeout=10)
        task.clock.await_parked(1)
        assert 3 == len(task.rounds)


def test_waking_what_is_not_started_does_nothing() -> None:
    task = Task()
    periodic = task.periodic(immediately=False)
    periodic.wake()
    with periodic:
        task.clock.await_parked(1)
        assert [] == task.rounds
    periodic.wake()
    assert [] == task.rounds


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit("broken")])
def test_a_round_that_raises_is_told_and_the_next_one_comes(error: BaseException) -> None:
    task = Task()
    task.then = lambda: fail(error)
    with task.periodic():
        task.clock.await_parked(1)
        task.clock.advance(10)
        task.then = lambda: None
        task.clock.advance(10)
        task.then = lambda: fail(error)
        task.clock.advance(10)
    told = f"{type(error).__name__}: broken"
    assert [("task", told, 1), ("task", told, 2), ("task", told, 1)] == [
        (event.task, event.error, event.failures) for event in task.observer.of(PeriodicTaskFailed)
    ]


def test_stop_returns_in_the_middle_of_the_wait_without_time_passing() -> None:
    task = Task()
    periodic = task.periodic()
    periodic.start()
    task.clock.await_parked(1)
    assert periodic.stop()
    assert [0.0] == task.rounds
    assert 0 == task.clock.parked


def test_stop_waits_for_a_running_round_only_as_long_as_it_may() -> None:
    task = Task()
    round_may_end = Wakeup()
    task.then = lambda: task.clock.wait(round_may_end)
    periodic = task.periodic()
    periodic.start()
    task.clock.await_parked(1)
    answers: list[bool] = []
    stopper = BackgroundThread(lambda: answers.append(periodic.stop(timeout=5)), name="test")
    stopper.start()
    task.clock.await_parked(2)
    task.clock.advance(5, parked=1)
    assert stopper.done.block(10)
    assert [False] == answers
    round_may_end.set()
    assert periodic.stop()
    assert [0.0] == task.rounds


def test_a_round_that_stops_its_own_loop_does_not_wait_for_itself() -> None:
    task = Task()
    periodic = task.periodic()
    answers: list[bool] = []
    task.then = lambda: answers.append(periodic.stop(timeout=None))
    periodic.start()
    assert periodic.wait_stopped()
    assert [False] == answers
    assert [0.0] == task.rounds


def test_a_round_that_starts_its_loop_while_it_is_being_stopped_is_refused_instead_of_waiting_for_itself() -> (  # noqa: E501 - one name
    None
):
    task = Task()
    periodic = task.periodic()
    refused: list[str] = []

    def restart() -> None:
        periodic.stop()
        while periodic.started:
            pass
        try:
            periodic.start()
        except ServiceStateError as error:
            refused.append(str(error))

    task.then = restart
    periodic.start()
    assert periodic.wait_stopped()
    expected = (
        "task is being started or stopped, and its own thread cannot wait for that; "
        "call start() from another thread"
    )
    assert [expected] == refused


def test_a_member_that_stops_its_group_does_not_wait_for_itself() -> None:
    task = Task()
    group = ServiceGroup([task.periodic(immediately=False), task.periodic()], clock=task.clock)
    answers: list[bool] = []
    task.then = lambda: answers.append(group.stop(timeout=None))
    group.start()
    assert group.wait_stopped()
    assert [False] == answers


def test_it_works_again_after_a_restart() -> None:
    task = Task()
    periodic = task.periodic()
    for _ in range(2):
        with periodic:
            task.clock.await_parked(1)
    assert [0.0, 0.0] == task.rounds


def test_the_same_cadence_runs_on_the_event_loop_until_it_is_cancelled() -> None:
    clock, observer, rounds = FakeClock(), RecordingObserver(), [0.0]

    async def work() -> None:
        rounds.append(clock.monotonic() - 1000.0)
        if 3 == len(rounds):
            raise ValueError("broken")

    async def story() -> None:
        cadence = Cadence(interval=10.0, jitter=0.2, immediately=False)
        task = asyncio.create_task(
            run_every(
                cadence,
                work,
                name="task",
                clock=clock,
                events=Events(observer),
                fraction=lambda: 0.5,
            )
        )
        await asyncio.to_thread(clock.await_parked, 1)
        await asyncio.to_thread(clock.advance, 30)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(story())
    assert [0.0, 9.0, 18.0, 27.0] == rounds
    assert ["ValueError: broken"] == [event.error for event in observer.of(PeriodicTaskFailed)]


def test_cancelling_in_the_middle_of_a_round_ends_it_and_is_no_failure() -> None:
    clock, observer = FakeClock(), RecordingObserver()

    async def story() -> None:
        cadence = Cadence(interval=10.0)
        task = asyncio.create_task(
            run_every(
                cadence, lambda: clock.sleep(100), name="task", clock=clock, events=Events(observer)
            )
        )
        await asyncio.to_thread(clock.await_parked, 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(story())
    assert [] == observer.names()
