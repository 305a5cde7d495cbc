"""Engines whose code is `async def`: many slots share a few threads."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import pytest

from engine_rig import TIMEOUT, FakeRow, FakeSource, fake_rows, running_engine
from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.error_policy import NotStartedError
from longwatch.errors import PermanentError
from longwatch.host.beatpage import read_page

DONE, BACK, DEAD = RowOutcome.DONE, RowOutcome.RELEASED, RowOutcome.DEAD


def slot_threads(engine: Engine) -> int:
    assert engine._current_run is not None
    return len(engine._current_run.slot_pool._threads)


def wait_done(source: FakeSource, numbers: Iterable[int]) -> None:
    """Wait until each of these rows was settled as done once. Rows that wait here for long are
    released and claimed again.
    """
    expected = [(number, DONE) for number in numbers]
    source.wait_until(
        lambda: expected == sorted(each for each in source.outcomes() if each[1] is DONE)
    )


class Meeting:
    """Coroutines that wait for each other, so that they run at the same time."""

    def __init__(self, size: int) -> None:
        self._missing = size
        self._everybody = asyncio.Event()

    async def attend(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._everybody.set()
        await self._everybody.wait()


def test_coroutines_in_many_slots_share_two_threads() -> None:
    meeting = Meeting(200)

    async def meet(claimed: ClaimedRow, context: RowContext) -> Settlement:
        await meeting.attend()
        return Settlement(claimed.claim, DONE)

    source = FakeSource(fake_rows(*range(1, 201)))
    with Engine(source, meet, policy=EnginePolicy(slots=200)) as engine:
        wait_done(source, range(1, 201))
        assert 2 == slot_threads(engine)


class MixedRunner:
    """Runs rows with odd numbers in the thread, until `may_end`, and the others on the loop."""

    runs_coroutines = True

    def __init__(self) -> None:
        self.began: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.may_end = threading.Event()

    def is_async_row(self, claimed: ClaimedRow) -> bool:
        return claimed.claim.seq % 2 == 0

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> Any:
        if self.is_async_row(claimed):
            return self._run_async(claimed)
        self.began.put(claimed.claim.seq)
        assert self.may_end.wait(TIMEOUT)
        return Settlement(claimed.claim, DONE)

    async def _run_async(self, claimed: ClaimedRow) -> Settlement:
        await asyncio.sleep(0)
        return Settlement(claimed.claim, DONE)


def test_rows_that_block_their_threads_delay_no_coroutine() -> None:
    source, runner = FakeSource(fake_rows(*range(1, 21))), MixedRunner()
    with Engine(source, runner, policy=EnginePolicy(slots=20)) as engine:
        blocked = sorted(runner.began.get(timeout=TIMEOUT) for _ in range(10))
        assert list(range(1, 21, 2)) == blocked
        wait_done(source, range(2, 21, 2))
        assert 12 == slot_threads(engine)
        runner.may_end.set()
        wait_done(source, range(1, 21))


def test_a_slot_runs_one_row_at_a_time() -> None:
    running: list[int] = []

    async def work(claimed: ClaimedRow, context: RowContext) -> Settlement:
        running.append(claimed.claim.seq)
        await asyncio.sleep(0)
        assert [claimed.claim.seq] == running
        running.clear()
        return Settlement(claimed.claim, DONE)

    source = FakeSource(fake_rows(*range(1, 31)))
    with Engine(source, work, policy=EnginePolicy(slots=1)):
        wait_done(source, range(1, 31))


class StepRunner:
    """Runs each row as a pending result whose steps call these functions."""

    runs_coroutines = True

    def __init__(
        self,
        *,
        in_call: Callable[[], object] = lambda: None,
        on_loop: Callable[[], object] = lambda: None,
        at_end: Callable[[], object] = lambda: None,
        may_block: bool = False,
    ) -> None:
        self.errors: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._in_call, self._on_loop, self._at_end = in_call, on_loop, at_end
        self._may_block = may_block

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> PendingResult:
        self._in_call()
        return PendingResult(
            self._run(claimed),
            self._conclude,
            on_error=self.errors.put,
            may_block=self._may_block,
        )

    async def _run(self, claimed: ClaimedRow) -> Settlement:
        self._on_loop()
        return Settlement(claimed.claim, DONE)

    def _conclude(self, result: Settlement) -> Settlement:
        self._at_end()
        return result


class Barrier:
    """A place in the code of a row where it waits for the test."""

    def __init__(self) -> None:
        self._reached, self._is_open = threading.Event(), threading.Event()

    def cross(self) -> None:
        self._reached.set()
        assert self._is_open.wait(TIMEOUT)

    def wait(self) -> None:
        assert self._reached.wait(TIMEOUT)

    def open(self) -> None:
        self._is_open.set()


def test_a_row_whose_coroutine_has_ended_has_beaten_and_is_on_the_page_until_it_is_concluded() -> (
    None
):
    on_loop, at_end = Barrier(), Barrier()
    runner = StepRunner(on_loop=on_loop.cross, at_end=at_end.cross)
    with running_engine(runner, FakeRow(1)) as rig:
        on_loop.wait()
        rig.wait_idle()
        rig.clock.advance(5.0)
        on_loop.open()
        at_end.wait()
        [beat] = rig.engine.slot_heartbeats()
        page = read_page(rig.source.pages[0])
        assert page is not None
        assert (0.0, [1]) == (beat.elapsed(), list(page.running_rows))
        at_end.open()
        rig.source.wait_for_settlements((1, DONE))


def test_each_row_has_context_variables_of_its_own() -> None:
    steps: queue.SimpleQueue[str] = queue.SimpleQueue()
    variable: ContextVar[str] = ContextVar("variable", default="new")

    def step(name: str) -> None:
        steps.put(variable.get())
        variable.set(name)

    runner = StepRunner(
        in_call=lambda: step("call"), on_loop=lambda: step("loop"), at_end=lambda: step("end")
    )
    source = FakeSource(fake_rows(1, 2, 3, 4, 5, 6))
    with Engine(source, runner, policy=EnginePolicy(slots=1)):
        wait_done(source, range(1, 7))
    assert ["new", "call", "call"] * 6 == [steps.get() for _ in range(18)]


def test_replies_get_more_threads_up_to_sixteen() -> None:
    replying: queue.SimpleQueue[None] = queue.SimpleQueue()
    may_reply = threading.Event()

    def reply() -> None:
        replying.put(None)
        assert may_reply.wait(TIMEOUT)

    source = FakeSource(fake_rows(*range(1, 51)))
    runner = StepRunner(at_end=reply, may_block=True)
    with Engine(source, runner, policy=EnginePolicy(slots=50)) as engine:
        for _ in range(16):
            replying.get(timeout=TIMEOUT)
        assert 16 == slot_threads(engine)
        may_reply.set()
        wait_done(source, range(1, 51))
        assert 16 == slot_threads(engine)


def test_a_row_that_the_loop_cannot_run_is_released_and_its_runner_gets_the_error() -> None:
    runner = StepRunner()
    source = FakeSource(fake_rows(1))
    with Engine(source, runner) as engine:
        source.wait_for_settlements((1, DONE))
        assert engine._current_run is not None
        engine._current_run.slot_pool.coroutine_runner._thread._loops[os.getpid()].stop(
            SystemClock(), Deadline.after(TIMEOUT, SystemClock())
        )
        source.put(FakeRow(2))
        source.wait_for_settlements((1, DONE), (2, BACK))
    assert isinstance(runner.errors.get(timeout=TIMEOUT), NotStartedError)


def test_a_row_that_raises_before_there_is_a_coroutine_frees_its_slot() -> None:
    def refuse() -> None:
        raise PermanentError("never")

    source = FakeSource(fake_rows(1, 2, 3))
    with Engine(source, StepRunner(in_call=refuse), policy=EnginePolicy(slots=1)):
        source.wait_for_settlements((1, DEAD), (2, DEAD), (3, DEAD))


@pytest.mark.parametrize("slots", [1, 3])
def test_no_waiting_row_is_forgotten_whatever_the_order_of_ends(slots: int) -> None:
    """Rows arrive one by one, while slots are freed in other threads."""

    async def work(claimed: ClaimedRow, context: RowContext) -> Settlement:
        await asyncio.sleep(0)
        return Settlement(claimed.claim, DONE)

    source = FakeSource()
    with Engine(source, work, policy=EnginePolicy(slots=slots)):
        for number in range(1, 301):
            source.put(FakeRow(number))
        wait_done(source, range(1, 301))
