from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.clock import Clock, SystemClock, Wakeup
from longwatch.core.fake_clock import FakeClock

Ticks = list[float]
Ticker = Callable[[FakeClock, float], Any]


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def in_coroutine(work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Run `work` as a task on a loop of its own; cancelled in the end."""
    with running_loop() as loop:
        asyncio.run_coroutine_threadsafe(work, loop)
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(_end_all(), loop).result()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def in_thread(work: Callable[[], object], *, stop: Wakeup | None = None) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        if stop is not None:
            stop.set()
        thread.join()


@contextmanager
def thread_ticker(clock: FakeClock, interval: float) -> Iterator[Ticks]:
    ticks: Ticks = []
    stop = Wakeup()

    def tick() -> None:
        while not clock.wait(stop, interval):
            ticks.append(clock.monotonic())

    with in_thread(tick, stop=stop):
        yield ticks


@contextmanager
def coroutine_ticker(clock: FakeClock, interval: float) -> Iterator[Ticks]:
    ticks: Ticks = []

    async def tick() -> None:
        while True:
            await clock.sleep(interval)
            ticks.append(clock.monotonic())

    with in_coroutine(tick()):
        yield ticks


@contextmanager
def nested_ticker(clock: FakeClock, interval: float) -> Iterator[Ticks]:
    """Sleeps in a task of its own each time, as code under `wait_for` or `gather` does, and
    takes a few turns to get back to it.
    """
    ticks: Ticks = []

    async def tick() -> None:
        while True:
            await asyncio.gather(asyncio.create_task(clock.sleep(interval)))
            for _ in range(5):
                await asyncio.sleep(0)
            ticks.append(clock.monotonic())

    with in_coroutine(tick()):
        yield ticks


@contextmanager
def thread_timer(clock: FakeClock, due: float) -> Iterator[Ticks]:
    ticks: Ticks = []
    stop = Wakeup()

    def once() -> None:
        if not clock.wait(stop, due):
            ticks.append(clock.monotonic())

    with in_thread(once, stop=stop):
        yield ticks


@contextmanager
def coroutine_timer(clock: FakeClock, due: float) -> Iterator[Ticks]:
    ticks: Ticks = []

    async def once() -> None:
        await clock.sleep(due)
        ticks.append(clock.monotonic())

    with in_coroutine(once()):
        yield ticks


every_ticker = pytest.mark.parametrize("ticker", [thread_ticker, coroutine_ticker, nested_ticker])
every_timer = pytest.mark.parametrize("timer", [thread_timer, coroutine_timer])

# --- the fake clock -------------------------------------------------------------------------------


@every_ticker
def test_a_loop_that_ticks_every_10_s_ticks_ten_times_in_100_s(ticker: Ticker) -> None:
    clock = FakeClock(monotonic=0)
    with ticker(clock, 10) as ticks:
        clock.await_parked(1)
        clock.advance(100)

        assert [10, 20, 30, 40, 50, 60, 70, 80, 90, 100] == ticks


@every_ticker
def test_time_that_does_not_reach_the_next_tick_adds_up(ticker: Ticker) -> None:
    clock = FakeClock(monotonic=0)
    with ticker(clock, 10) as ticks:
        clock.await_parked(1)
        counts = []
        for _ in range(4):
            clock.advance(6)
            counts.append(len(ticks))

        assert [0, 1, 1, 2] == counts


def test_threads_and_coroutines_tick_side_by_side() -> None:
    clock = FakeClock(monotonic=0)
    with ExitStack() as tickers:
        ticks = [
            tickers.enter_context(thread_ticker(clock, 3)),
            tickers.enter_context(coroutine_ticker(clock, 5)),
        ]
        clock.await_parked(2)
        clock.advance(15)

        assert [[3, 6, 9, 12, 15], [5, 10, 15]] == ticks


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty_threads")
@every_timer
@every_ticker
def test_a_timer_that_ends_on_the_way_costs_no_ticker_a_tick(ticker: Ticker, timer: Ticker) -> None:
    clock = FakeClock(monotonic=0)
    with ExitStack() as waiters:
        ticks = [waiters.enter_context(ticker(clock, 10)), waiters.enter_context(timer(clock, 45))]
        clock.await_parked(2)
        clock.advance(60, parked=1)

        assert [[10, 20, 30, 40, 50, 60], [45]] == ticks


@every_timer
def test_a_timer_has_done_its_work_when_advance_returns(timer: Ticker) -> None:
    clock = FakeClock(monotonic=0)
    with timer(clock, 5) as ticks:
        clock.await_parked(1)
        clock.advance(8, parked=0)

        assert [5] == ticks


def test_several_timers_may_end_in_one_advance() -> None:
    clock = FakeClock(monotonic=0)
    with ExitStack() as waiters:
        ticks = [
            waiters.enter_context(timer(clock, due))
            for timer, due in [(thread_timer, 5), (coroutine_timer, 7), (thread_timer, 9)]
        ]
        clock.await_parked(3)
        clock.advance(10, parked=0)

        assert [[5], [7], [9]] == ticks


def test_one_that_was_woken_and_blocks_elsewhere_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock(monotonic=0)
    monkeypatch.setattr(clock, "_let_run", partial(clock._let_run, timeout=0.01))
    elsewhere = Wakeup()

    def work() -> None:
        clock.wait(Wakeup(), 5)
        elsewhere.block(None)

    with in_thread(work, stop=elsewhere):
        clock.await_parked(1)
        clock.advance(8, parked=0)

    assert 8 == clock.monotonic()


def test_advancing_with_nobody_parked_just_moves_the_time() -> None:
    clock = FakeClock(monotonic=5, wall=100)
    clock.advance(2.5)

    assert (7.5, 102.5) == (clock.monotonic(), clock.wall())


def test_time_is_never_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="time only moves forward"):
        FakeClock().advance(-1)


def test_setting_the_wall_clock_moves_no_duration() -> None:
    clock = FakeClock(monotonic=5, wall=100)
    clock.jump_wall(-60)

    assert (5, 40) == (clock.monotonic(), clock.wall())


@every_ticker
def test_a_suspend_moves_boottime_and_wall_and_wakes_nothing(ticker: Ticker) -> None:
    """A suspend moves boottime and wall. Monotonic stands still, and timers are due as late after
    the resume as they were before.
    """
    clock = FakeClock(monotonic=0, wall=100)
    with ticker(clock, 10) as ticks:
        clock.await_parked(1)
        clock.suspend(3600)
        assert (0, 3600, 3700) == (clock.monotonic(), clock.boottime(), clock.wall())

        clock.advance(9)
        assert [] == ticks
        clock.advance(1)
        assert [10] == ticks
    assert (10, 3610, 3710) == (clock.monotonic(), clock.boottime(), clock.wall())


def test_a_suspend_never_moves_time_backwards() -> None:
    with pytest.raises(ValueError, match="time only moves forward"):
        FakeClock().suspend(-1)


@given(steps=st.lists(st.floats(0, 1e5)))
def test_time_only_ever_grows_and_the_wall_goes_along(steps: list[float]) -> None:
    clock = FakeClock(monotonic=0, wall=0)
    for step in steps:
        before = clock.monotonic()
        clock.advance(step)
        assert before + step == clock.monotonic()

    assert clock.monotonic() == pytest.approx(clock.wall())


def test_a_wakeup_wakes_a_parked_thread_at_once_and_time_stands_still() -> None:
    clock = FakeClock(monotonic=0)
    wakeup = Wakeup()
    woken: list[tuple[bool, float]] = []
    with in_thread(lambda: woken.append((clock.wait(wakeup, 100), clock.monotonic()))):
        clock.await_parked(1)
        wakeup.set()
        parked = clock.parked

    assert ([(True, 0)], 0) == (woken, parked)


def test_a_wait_that_runs_out_says_so() -> None:
    clock = FakeClock()
    never = Wakeup()
    woken: list[bool] = []
    with in_thread(lambda: woken.append(clock.wait(never, 100)), stop=never):
        clock.await_parked(1)
        clock.advance(100, parked=0)

    assert [False] == woken


def test_a_wakeup_that_is_cleared_at_once_has_still_woken_its_waiter() -> None:
    clock = FakeClock()
    wakeup = Wakeup()
    woken: list[bool] = []
    with in_thread(lambda: woken.append(clock.wait(wakeup))):
        clock.await_parked(1)
        wakeup.set()
        wakeup.clear()

    assert [True] == woken


def test_a_wait_for_ever_is_not_ended_by_time() -> None:
    clock = FakeClock()
    wakeup = Wakeup()
    with in_thread(lambda: clock.wait(wakeup), stop=wakeup):
        clock.await_parked(1)
        clock.advance(1e9)

        assert 1 == clock.parked


def test_a_wait_leaves_nothing_behind() -> None:
    clock = FakeClock()
    wakeup = Wakeup()
    clock.wait(wakeup, 0)
    wakeup.set()
    clock.wait(wakeup)

    assert ([], 0) == (wakeup._listeners, clock.parked)


def test_a_cancelled_sleep_is_not_parked_any_more() -> None:
    clock = FakeClock()
    with running_loop() as loop:
        future = asyncio.run_coroutine_threadsafe(clock.sleep(100), loop)
        clock.await_parked(1)
        future.cancel()
        clock.await_parked(0)
        clock.advance(200)

    assert 0 == clock.parked


def test_a_sleeper_whose_loop_was_closed_holds_no_one_up() -> None:
    clock = FakeClock(monotonic=0)
    loop = asyncio.new_event_loop()
    sleeper = loop.create_task(clock.sleep(5))
    sleeper._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    parked = clock.parked
    clock.advance(10, parked=0)

    assert (1, 10) == (parked, clock.monotonic())


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_time_at_all_does_not_park(seconds: float) -> None:
    clock = FakeClock()
    asyncio.run(clock.sleep(seconds))

    assert (False, 0) == (clock.wait(Wakeup(), seconds), clock.parked)


def test_waiting_for_the_wrong_number_of_waiters_fails_loudly() -> None:
    with pytest.raises(AssertionError, match="expected 2 parked waiters, there are 0"):
        FakeClock().await_parked(2, timeout=0)


def test_an_advance_whose_waiter_did_not_come_back_fails_loudly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    patient = clock.await_parked
    with thread_timer(clock, 5):
        clock.await_parked(1)
        monkeypatch.setattr(clock, "await_parked", lambda count: patient(count, timeout=0.01))

        with pytest.raises(AssertionError, match="expected 1 parked waiters, there are 0"):
            clock.advance(10)
        with pytest.raises(AssertionError, match="expected 3 parked waiters, there are 0"):
            clock.advance(10, parked=3)


# --- every clock ----------------------------------------------------------------------------------

every_clock = pytest.mark.parametrize("clock", [SystemClock(), FakeClock()], ids=["system", "fake"])


@every_clock
def test_a_wakeup_that_is_set_already_ends_the_wait_before_it_begins(clock: Clock) -> None:
    wakeup = Wakeup()
    wakeup.set()

    assert [True, True, True] == [
        clock.wait(wakeup),
        clock.wait(wakeup, 1000),
        clock.wait(wakeup, 0),
    ]


@every_clock
def test_a_wait_without_time_ends_at_once(clock: Clock) -> None:
    assert [False, False] == [clock.wait(Wakeup(), 0), clock.wait(Wakeup(), -5)]


@every_clock
def test_a_sleep_without_time_ends_at_once(clock: Clock) -> None:
    asyncio.run(clock.sleep(0))
    asyncio.run(clock.sleep(-5))


@every_clock
def test_a_wakeup_from_another_thread_ends_a_wait_for_ever(clock: Clock) -> None:
    wakeup = Wakeup()
    woken: list[bool] = []
    with in_thread(lambda: woken.append(clock.wait(wakeup)), stop=wakeup):
        pass

    assert [True] == woken


@every_clock
def test_monotonic_time_does_not_go_back_and_the_wall_shows_this_millennium(clock: Clock) -> None:
    before = clock.monotonic()

    assert before <= clock.monotonic()
    assert 1_700_000_000 < clock.wall()


@every_clock
def test_boottime_does_not_go_back_and_is_never_behind_monotonic(clock: Clock) -> None:
    before, monotonic = clock.boottime(), clock.monotonic()

    assert before <= clock.boottime()
    assert monotonic <= clock.boottime()


# --- the wakeup -----------------------------------------------------------------------------------


def broken() -> None:
    raise RuntimeError("a listener that cannot")


def test_a_wakeup_stays_set_until_it_is_cleared() -> None:
    wakeup = Wakeup()
    seen = [wakeup.is_set()]
    for change in (wakeup.set, wakeup.set, wakeup.clear):
        change()
        seen.append(wakeup.is_set())

    assert [False, True, True, False] == seen


def test_a_listener_hears_every_set_in_the_order_of_listening() -> None:
    wakeup = Wakeup()
    heard: list[str] = []
    wakeup.subscribe(lambda: heard.append("a"))
    wakeup.subscribe(lambda: heard.append("b"))
    wakeup.set()
    wakeup.set()

    assert ["a", "b", "a", "b"] == heard


def test_who_listens_late_hears_at_once() -> None:
    wakeup = Wakeup()
    wakeup.set()
    heard: list[str] = []
    wakeup.subscribe(lambda: heard.append("late"))

    assert ["late"] == heard


def test_who_was_taken_off_hears_no_more_and_may_be_taken_off_twice() -> None:
    wakeup = Wakeup()
    heard: list[str] = []
    unlisten = wakeup.subscribe(lambda: heard.append("gone"))
    wakeup.subscribe(lambda: heard.append("here"))
    unlisten()
    unlisten()
    wakeup.set()

    assert ["here"] == heard


def test_a_listener_that_raises_keeps_no_other_from_hearing() -> None:
    wakeup = Wakeup()
    heard: list[str] = []
    wakeup.subscribe(lambda: heard.append("first"))
    wakeup.subscribe(broken)
    wakeup.subscribe(lambda: heard.append("last"))

    with pytest.raises(RuntimeError, match="a listener that cannot"):
        wakeup.set()
    assert (["first", "last"], True) == (heard, wakeup.is_set())


def test_a_listener_may_take_itself_off() -> None:
    wakeup = Wakeup()
    heard: list[str] = []

    def once() -> None:
        heard.append("once")
        unlisten()

    unlisten = wakeup.subscribe(once)
    wakeup.set()
    wakeup.set()

    assert ["once"] == heard
