from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_rig import TIMEOUT
from longwatch.core.events.base import Events
from longwatch.core.events.engine import ClaimSourceFailed, ClaimSourceRecovered
from longwatch.engine.engine_run import EngineRun
from longwatch.errors import (
    ServiceStateError,
    ShutdownTimeoutError,
    StoreLocationError,
    StoreUnreachableError,
)
from longwatch.mailbox import Mailbox, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.runtime import MainLoop, MainLoopContext
from longwatch.store.sqlite.database import SqliteDatabase
from longwatch.testing import FakeClock
from loop_rig import (
    LOOP_IDLE_THREADS,
    NO_BACKOFF,
    BackgroundRun,
    GatedLoop,
    pass_time,
    running_loop,
    wait_until,
)
from redis_server import RedisServer


class Function(MainLoop[Any, Any]):
    """A loop over a plain function."""

    def __init__(self, work: Callable[[Any, MainLoopContext], Any], **settings: Any) -> None:
        self._function = work
        super().__init__(**{"retry": NO_BACKOFF, "events": Events(), **settings})

    def handle(self, request: Any, context: MainLoopContext) -> Any:
        return self._function(request, context)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with SqliteDatabase(tmp_path / "m.db") as opened:
        yield opened


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# --- how a run ends ---


@pytest.mark.parametrize("polls", [1, 3])
def test_after_so_many_polls_it_ends_and_no_message_more_is_taken(
    database: SqliteDatabase, polls: int
) -> None:
    mailbox, seen = open_mailbox(database, "jobs"), list[int]()
    mailbox.send_many(range(5))
    Function(lambda request, context: seen.append(request), requests=mailbox).run(
        max_iterations=polls
    )
    assert (list(range(polls)), 5 - polls) == (seen, mailbox.stats().ready)


def test_no_polls_no_run(mailbox: Mailbox[Any], clock: FakeClock) -> None:
    mailbox.send(1)
    BackgroundRun(lambda: GatedLoop(requests=mailbox, clock=clock).run(max_iterations=0)).wait()
    assert 1 == mailbox.stats().ready


def test_a_poll_without_a_message_lasts_as_long_as_it_may_wait(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    running = BackgroundRun(
        lambda: GatedLoop(requests=mailbox, clock=clock).run(max_iterations=2, wait_time_seconds=20)
    )
    pass_time(clock, 39.0)
    assert not running.is_finished
    clock.advance(1.0, parked=0)
    running.wait()


def test_a_poll_that_may_not_wait_ends_at_once(mailbox: Mailbox[Any], clock: FakeClock) -> None:
    GatedLoop(requests=mailbox, clock=clock).run(max_iterations=3, wait_time_seconds=0)


def test_a_shutdown_wakes_a_long_poll_and_waits_for_the_end(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    loop = GatedLoop(requests=mailbox, clock=clock)
    running = BackgroundRun(lambda: loop.run(wait_time_seconds=1000))
    clock.await_parked(LOOP_IDLE_THREADS)
    seen = [loop.running, loop.shutdown(), loop.running]
    assert [True, True, False] == seen
    running.wait()


def wait_for_drain(loop: GatedLoop) -> None:
    """Until it takes nothing more."""
    wait_until(lambda: loop._engine is not None and loop._engine.draining)


def test_a_shutdown_lets_what_is_in_flight_finish_and_acknowledges_it(
    mailbox: Mailbox[Any],
) -> None:
    loop = GatedLoop(requests=mailbox, concurrency=2)
    mailbox.send_many(["a", "b", "never received"])
    running, stopped = BackgroundRun(loop.run), queue.SimpleQueue[bool]()
    loop.next_started(), loop.next_started()
    stopping = BackgroundRun(lambda: stopped.put(loop.shutdown()))
    wait_for_drain(loop)
    loop.open("a", "b")
    stopping.wait()
    running.wait()
    assert (True, (1, 0)) == (stopped.get(), (mailbox.stats().ready, mailbox.stats().leased))
    assert ["never received"] == [message.body for message in mailbox.receive()]


def test_a_closed_mailbox_ends_the_run_after_what_is_in_flight(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send_many(["a", "b"])
    running = BackgroundRun(loop.run)
    loop.next_started()
    mailbox.close()
    wait_for_drain(loop)
    loop.open("a")
    running.wait()
    assert 1 == mailbox.stats().ready


def test_a_mailbox_that_was_closed_before_ends_it_at_once(mailbox: Mailbox[Any]) -> None:
    mailbox.close()
    GatedLoop(requests=mailbox).run()


def test_told_to_stop_before_its_first_run_that_one_returns_at_once_and_the_next_does_not(
    mailbox: Mailbox[Any],
) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    assert loop.shutdown()
    loop.run()
    assert 1 == mailbox.stats().ready
    with running_loop(loop):
        assert "x" == loop.next_started().request


def test_a_shutdown_of_a_finished_loop_is_nothing_and_it_can_run_again(
    mailbox: Mailbox[Any],
) -> None:
    loop = GatedLoop(requests=mailbox)
    loop.open_all()
    for _ in range(3):
        mailbox.send("x")
        loop.run(max_iterations=1)
        assert (True, False) == (loop.shutdown(), loop.running)
    assert 3 == loop.started.qsize()


def test_it_runs_once_at_a_time(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, name="pages")
    with running_loop(loop):
        wait_until(lambda: loop.running)
        with pytest.raises(ServiceStateError, match="pages is running already"):
            loop.run()


def test_leaving_its_context_shuts_it_down(mailbox: Mailbox[Any]) -> None:
    with GatedLoop(requests=mailbox) as loop:
        running = BackgroundRun(loop.run)
        wait_until(lambda: loop.running)
    running.wait()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_handler_that_shuts_its_own_loop_down_does_not_wait_for_itself(
    mailbox: Mailbox[Any],
    is_async: bool,  # noqa: FBT001 - which kind
) -> None:
    answers: list[bool] = []

    def work(request: Any, context: MainLoopContext) -> None:
        answers.append(loop.shutdown())

    async def work_async(request: Any, context: MainLoopContext) -> None:
        work(request, context)

    loop = Function(work_async if is_async else work, requests=mailbox)
    mailbox.send("x")
    BackgroundRun(loop.run).wait()
    assert ([False], 0) == (answers, mailbox.approximate_count())


def test_past_its_deadline_a_run_raises_and_leaves_its_work_behind(mailbox: Mailbox[Any]) -> None:
    loop = GatedLoop(requests=mailbox, name="pages")
    mailbox.send("x")
    running = BackgroundRun(loop.run)
    loop.next_started()
    assert not loop.shutdown(timeout=0.0)
    with pytest.raises(ShutdownTimeoutError, match="pages did not stop before its deadline"):
        running.wait()
    loop.open("x")
    wait_until(lambda: mailbox.approximate_count() == 0)


def test_a_shutdown_whose_time_ran_out_says_so_every_time(mailbox: Mailbox[Any]) -> None:
    """The run gives up at the deadline, in the moment in which the wait for it ends: whichever is
    first, work was left behind.
    """
    loop = GatedLoop(requests=mailbox)
    for number in range(20):
        mailbox.send(number)
        running = BackgroundRun(loop.run)
        loop.next_started()
        assert not loop.shutdown(timeout=0.02)
        with pytest.raises(ShutdownTimeoutError):
            running.wait()
        loop.open(number)
        assert loop.shutdown(timeout=TIMEOUT)
    assert 0 == mailbox.approximate_count()


def test_a_shutdown_with_more_time_reports_the_work_that_another_one_left_behind(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are asked for before the run begins to stop: the earlier deadline counts."""
    loop = GatedLoop(requests=mailbox)
    answers = queue.SimpleQueue[bool]()
    are_both_asked = threading.Event()
    real_wait = loop._wait

    def wait(*given: Any) -> None:
        real_wait(*given)
        assert are_both_asked.wait(TIMEOUT)

    monkeypatch.setattr(loop, "_wait", wait)
    mailbox.send("x")
    running = BackgroundRun(loop.run)
    loop.next_started()
    patient = BackgroundRun(lambda: answers.put(loop.shutdown(timeout=10 * TIMEOUT)))
    wait_until(lambda: loop._run_guard.current is not None and loop._run_guard.current.is_stopping)
    assert not loop.shutdown(timeout=0.0)
    are_both_asked.set()
    patient.wait()
    assert not answers.get()
    with pytest.raises(ShutdownTimeoutError):
        running.wait()
    loop.open("x")


def test_work_that_was_left_behind_is_not_shut_down_until_it_has_ended(
    mailbox: Mailbox[Any],
) -> None:
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    running = BackgroundRun(loop.run)
    loop.next_started()
    assert not loop.shutdown(timeout=0.0)
    with pytest.raises(ShutdownTimeoutError):
        running.wait()
    assert [False, False] == [loop.shutdown(timeout=0.01), loop.shutdown(timeout=0.0)]
    loop.open("x")
    assert [True, True] == [loop.shutdown(timeout=TIMEOUT), loop.shutdown(timeout=0.0)]
    assert 0 == mailbox.approximate_count()


def test_a_run_that_failed_and_left_work_behind_did_not_stop_in_time(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the run hides that its engine was still busy; the answer does not."""
    loop = GatedLoop(requests=mailbox)
    real_wait = loop._wait

    def failing(*given: Any) -> None:
        real_wait(*given)
        raise RuntimeError("a bug")

    monkeypatch.setattr(loop, "_wait", failing)
    mailbox.send("x")
    running = BackgroundRun(loop.run)
    loop.next_started()
    assert not loop.shutdown(timeout=0.02)
    with pytest.raises(RuntimeError, match="a bug"):
        running.wait()
    loop.open("x")
    assert loop.shutdown(timeout=TIMEOUT)


# --- a store that is not there ---


def test_a_store_that_is_not_there_at_the_start_is_waited_for(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    enter, failures = mailbox.backend.register_owner, iter([StoreUnreachableError("down")] * 3)

    def failing(*given: Any, **named: Any) -> int:
        for error in failures:
            raise error
        return enter(*given, **named)

    monkeypatch.setattr(mailbox.backend, "register_owner", failing)
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    with running_loop(loop):
        assert "x" == loop.next_started().request
    assert ("register_owner", 3) == (
        loop.observer.wait_for(ClaimSourceFailed).call,
        loop.observer.wait_for(ClaimSourceRecovered).failures,
    )


def test_while_its_store_is_not_there_a_loop_beats_and_can_be_told_to_stop(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    def down(*given: Any, **named: Any) -> int:
        raise StoreUnreachableError("down")

    mailbox.backend.register_owner = down  # type: ignore[method-assign]
    loop = GatedLoop(requests=mailbox, clock=clock)
    running = BackgroundRun(loop.run)
    clock.await_parked(1)
    clock.advance(100.0)
    assert 2.0 >= loop.heartbeat.elapsed()
    assert loop.shutdown()
    running.wait()


def test_a_store_that_will_never_be_there_is_an_error(tmp_path: Path) -> None:
    loop = GatedLoop(requests=open_mailbox(f"sqlite:///{tmp_path}/missing/m.db", "jobs"))
    with pytest.raises(StoreLocationError):
        loop.run()
    assert not loop.running


def test_a_server_may_be_down_at_the_start_and_in_between(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    mailbox = open_mailbox(server.url, "jobs")
    loop = GatedLoop(requests=mailbox)
    try:
        with running_loop(loop) as running:
            loop.observer.wait_for(ClaimSourceFailed)
            for body in ("first", "second"):
                server.start()
                mailbox.send(body)
                assert body == loop.next_started().request
                loop.open(body)
                wait_until(lambda: mailbox.approximate_count() == 0)
                server.stop()
            assert not running.is_finished
            server.start()
    finally:
        server.kill()


def test_a_receive_that_raises_does_not_end_the_loop(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, errors = (
        mailbox.backend.exchange,
        iter([StoreUnreachableError("down"), ValueError("a driver's own"), SystemExit(1)]),
    )

    def failing(*given: Any, **named: Any) -> Any:
        for error in errors:
            raise error
        return exchange(*given, **named)

    monkeypatch.setattr(mailbox.backend, "exchange", failing)
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    with running_loop(loop):
        assert "x" == loop.next_started().request
    assert 3 == loop.observer.wait_for(ClaimSourceRecovered).failures


# --- async handlers ---


def test_an_async_handler_is_awaited_before_its_message_is_done(mailbox: Mailbox[Any]) -> None:
    leased: list[int] = []

    async def work(request: Any, context: MainLoopContext) -> None:
        await asyncio.sleep(0)
        leased.append(mailbox.stats().leased)

    mailbox.send("x")
    Function(work, requests=mailbox).run(max_iterations=1)
    assert ([1], 0) == (leased, mailbox.approximate_count())


def test_async_handlers_of_several_slots_run_side_by_side(mailbox: Mailbox[Any]) -> None:
    together: list[Any] = []
    all_there = asyncio.Event()

    async def work(request: Any, context: MainLoopContext) -> None:
        together.append(request)
        if len(together) == 3:
            all_there.set()
        await all_there.wait()

    mailbox.send_many(range(3))
    BackgroundRun(
        lambda: Function(work, requests=mailbox, concurrency=3).run(max_iterations=1)
    ).wait()
    assert [0, 1, 2] == sorted(together)


def test_shortly_before_the_end_an_async_handler_is_cancelled_and_its_message_comes_back_unharmed(
    mailbox: Mailbox[Any], clock: FakeClock
) -> None:
    began, ended = threading.Event(), list[str]()

    async def work(request: Any, context: MainLoopContext) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(context.cancel.reason)
            raise

    loop = Function(work, requests=mailbox, clock=clock)
    mailbox.send("x")
    running = BackgroundRun(loop.run)
    assert began.wait(TIMEOUT)
    stopping = BackgroundRun(lambda: loop.shutdown(timeout=30.0))
    clock.await_parked(LOOP_IDLE_THREADS + 1)
    pass_time(clock, 28.9, loop, parked=LOOP_IDLE_THREADS + 1)
    assert [] == ended
    clock.advance(0.2, parked=0)
    running.wait()
    stopping.wait()
    assert ["shutdown"] == ended
    [message] = mailbox.backend.peek(limit=1)
    assert (1, 0, 0) == (message.deliveries, message.failures, message.crashes)


def test_one_that_has_work_has_reached_its_store_though_it_is_still_starting(
    mailbox: Mailbox[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, may_go_on = EngineRun._start_threads, threading.Event()

    def hesitate(shift: EngineRun) -> None:
        begin(shift)
        may_go_on.wait(TIMEOUT)

    monkeypatch.setattr(EngineRun, "_start_threads", hesitate)
    loop = GatedLoop(requests=mailbox)
    mailbox.send("x")
    with running_loop(loop):
        loop.next_started()
        entered = loop.has_reached_store
        may_go_on.set()
    assert entered
