from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest

from engine_rig import TIMEOUT, FakeRow, FakeSource, fake_rows, stop_once_cancelled
from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.engine.row_life import RowRunner
from longwatch.errors import PermanentError
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.testing import FakeClock, RecordingObserver, check_service

DONE, FAILED, BACK, DEAD = RowOutcome.DONE, RowOutcome.FAILED, RowOutcome.RELEASED, RowOutcome.DEAD
Work = Callable[[ClaimedRow, RowContext], Awaitable[Any]]


def awaiting(work: Work) -> RowRunner:
    async def run(leased: ClaimedRow, context: RowContext) -> Settlement:
        await work(leased, context)
        return Settlement(leased.claim, DONE)

    return run


class AsyncEngine:
    """An engine whose rows are coroutines, in real time unless it is given a clock."""

    def __init__(
        self, work: Work, *rows: FakeRow, slots: int = 4, clock: FakeClock | None = None
    ) -> None:
        self.source = FakeSource(list(rows))
        self.observer = RecordingObserver()
        policy, events = EnginePolicy(slots=slots), Events(self.observer)
        self.engine = Engine(self.source, awaiting(work), policy=policy, clock=clock, events=events)

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.engine.stop(timeout=TIMEOUT)


def test_coroutines_of_all_slots_run_on_one_loop_at_the_same_time() -> None:
    threads: set[str] = set()
    meeting: dict[str, asyncio.Event] = {}

    async def meet(leased: ClaimedRow, context: RowContext) -> None:
        threads.add(threading.current_thread().name)
        everybody = meeting.setdefault("everybody", asyncio.Event())
        meeting[str(leased.claim.seq)] = everybody
        if len(meeting) == 5:
            everybody.set()
        await everybody.wait()

    with AsyncEngine(meet, *fake_rows(1, 2, 3, 4)) as scene:
        scene.source.wait_for_settlements((1, DONE), (2, DONE), (3, DONE), (4, DONE))
    assert {"engine-async"} == threads


def test_an_async_handler_of_messages_is_awaited_before_they_are_acknowledged(
    tmp_path: Path,
) -> None:
    mailbox: Mailbox[int] = open_mailbox(f"sqlite:///{tmp_path}/m.db", "jobs")
    done: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def handle(message: Message[int], context: RowContext) -> None:
        await asyncio.sleep(0)
        assert 1 == mailbox.stats().leased
        done.put(message.body)

    mailbox.send(7)
    with Engine(mailbox.backend, MessageRunner(mailbox, handle)):
        assert 7 == done.get(timeout=TIMEOUT)
    assert 0 == mailbox.approximate_count()
    mailbox.backend.database.close()  # type: ignore[attr-defined]


class Caller:
    """An object whose call is a coroutine: nothing about it says so before it is called."""

    def __init__(self) -> None:
        self.called: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def __call__(self, message: Message[int], context: RowContext) -> None:
        await asyncio.sleep(0)
        self.called.put(message.body)


def test_whatever_returns_a_coroutine_is_awaited() -> None:
    mailbox: Mailbox[int] = open_mailbox("memory://caller", "jobs")
    caller = Caller()
    mailbox.send(7)
    with Engine(mailbox.backend, MessageRunner(mailbox, caller)):
        assert 7 == caller.called.get(timeout=TIMEOUT)
    assert 0 == mailbox.approximate_count()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("no"), FAILED),
        (PermanentError("never"), DEAD),
        (SystemExit(3), FAILED),
        (KeyboardInterrupt(), FAILED),
    ],
    ids=lambda value: str(value) or type(value).__name__,
)
def test_what_a_coroutine_raises_is_judged_like_any_other_and_the_loop_goes_on(
    error: BaseException, outcome: RowOutcome
) -> None:
    async def work(leased: ClaimedRow, context: RowContext) -> None:
        await asyncio.sleep(0)
        if leased.claim.seq == 1:
            raise error

    with AsyncEngine(work, *fake_rows(1, 2, 3), slots=2) as scene:
        scene.source.wait_for_settlements((1, outcome), (2, DONE), (3, DONE))
        assert "message-1" == scene.observer.wait_for(WorkFailed).message_id


def test_a_cancellation_that_nobody_here_asked_for_is_a_failure() -> None:
    async def work(leased: ClaimedRow, context: RowContext) -> None:
        raise asyncio.CancelledError

    with AsyncEngine(work, FakeRow(1)) as scene:
        scene.source.wait_for_settlements((1, FAILED))


def test_a_coroutine_is_cancelled_with_its_context_and_its_slot_waits_for_its_end() -> None:
    began, cleaning, cleaned = threading.Event(), threading.Event(), threading.Event()

    async def work(leased: ClaimedRow, context: RowContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.to_thread(cleaned.wait, TIMEOUT)

    with AsyncEngine(work, FakeRow(1)) as scene:
        assert began.wait(TIMEOUT)
        run = scene.engine._current_run
        assert run is not None
        [context] = run.slot_pool.running()
        context.lose_lease()
        assert cleaning.wait(TIMEOUT)
        assert [] == scene.source.outcomes()
        assert [context] == run.slot_pool.running()
        cleaned.set()
        scene.source.wait_until(lambda: (1, BACK) in scene.source.outcomes())
        scene.source.rows.clear()
        for again in run.slot_pool.running():
            again.cancel.cancel()


def test_a_coroutine_that_was_cancelled_before_it_began_does_not_run_on() -> None:
    reached: list[int] = []

    async def work(leased: ClaimedRow, context: RowContext) -> None:
        context.cancel.cancel("shutdown")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reached.append(1)

    with AsyncEngine(work, FakeRow(1)) as scene:
        scene.source.wait_until(lambda: (1, BACK) in scene.source.outcomes())
        scene.source.rows.clear()
    assert [] == reached


def test_stop_cancels_coroutines_before_its_deadline_and_hands_their_rows_back() -> None:
    began, told = threading.Event(), threading.Event()

    async def work(leased: ClaimedRow, context: RowContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    clock = FakeClock()
    scene = AsyncEngine(work, FakeRow(1), clock=clock)
    with scene:
        assert began.wait(TIMEOUT)
        assert stop_once_cancelled(
            clock, told.is_set, lambda timeout: scene.engine.stop(timeout=timeout)
        )
    assert [(1, BACK)] == scene.source.outcomes()


def test_with_coroutines_it_keeps_the_contract_of_a_service() -> None:
    async def work(leased: ClaimedRow, context: RowContext) -> None:
        await asyncio.sleep(0)

    check_service(
        lambda: Engine(
            FakeSource(fake_rows(*range(5))), awaiting(work), policy=EnginePolicy(slots=2)
        )
    )


def test_a_handler_that_is_not_async_needs_no_loop() -> None:
    before = set(threading.enumerate())
    source = FakeSource(fake_rows(1))
    with Engine(source, lambda leased, context: Settlement(leased.claim, DONE)):
        source.wait_for_settlements((1, DONE))
        started = set(threading.enumerate()) - before
        assert not [thread for thread in started if "async" in thread.name]


def test_exits_in_coroutines_leave_no_loop_and_no_thread_behind() -> None:
    async def work(leased: ClaimedRow, context: RowContext) -> None:
        sys.exit(1)

    with AsyncEngine(work, *fake_rows(1, 2, 3), slots=3) as scene:
        scene.source.wait_for_settlements((1, FAILED), (2, FAILED), (3, FAILED))
    assert not any("engine-" in thread.name for thread in threading.enumerate())
