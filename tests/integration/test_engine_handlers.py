from __future__ import annotations

import asyncio
import functools
import gc
import os
import queue
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from engine_rig import TIMEOUT, FakeRow, FakeSource
from longwatch.core.clock import SystemClock
from longwatch.core.deadline import Deadline
from longwatch.core.events.base import Events
from longwatch.core.events.engine import WorkFailed
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.engine import Engine, EnginePolicy
from longwatch.mailbox import Mailbox, Message, open_mailbox
from longwatch.mailbox.memory import MemoryStore
from longwatch.mailbox.message_runner import MessageRunner
from longwatch.testing import RecordingObserver

DONE, BACK = RowOutcome.DONE, RowOutcome.RELEASED
Handle = Callable[[Message[Any], RowContext], Any]


@pytest.fixture
def mailbox() -> Mailbox[Any]:
    return open_mailbox(MemoryStore(), "jobs")


def yields(message: Message[Any], context: RowContext) -> Iterator[None]:
    yield


async def yields_async(message: Message[Any], context: RowContext) -> AsyncIterator[None]:
    yield


class Yields:
    def __call__(self, message: Message[Any], context: RowContext) -> Iterator[None]:
        yield

    def method(self, message: Message[Any], context: RowContext) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    "handle", [yields, yields_async, Yields(), Yields().method, functools.partial(yields)]
)
def test_a_handler_that_is_known_to_be_a_generator_is_refused_at_once(
    mailbox: Mailbox[Any], handle: Handle
) -> None:
    with pytest.raises(TypeError, match="the handler is a generator"):
        MessageRunner(mailbox, handle)


async def returns_a_generator(message: Message[Any], context: RowContext) -> Any:
    return yields(message, context)


@pytest.mark.parametrize(
    "handle",
    [
        lambda *given: yields(given[0], given[1]),
        lambda *given: yields_async(given[0], given[1]),
        returns_a_generator,
    ],
    ids=["generator", "async generator", "generator from a coroutine"],
)
def test_a_handler_that_returns_a_generator_has_failed_and_its_message_stays(
    mailbox: Mailbox[Any], handle: Handle
) -> None:
    observer = RecordingObserver()
    mailbox.send(1)
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), events=Events(observer)):
        failed = observer.wait_for(WorkFailed)
    assert failed.error.startswith("TypeError: the handler is a generator")
    assert 1 == mailbox.stats().delayed


class Promise:
    """Can be awaited, and is no coroutine."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.sleep(0).__await__()
        self._done()


def test_whatever_can_be_awaited_is_awaited_before_its_message_is_acknowledged(
    mailbox: Mailbox[Any],
) -> None:
    leased: queue.SimpleQueue[int] = queue.SimpleQueue()
    mailbox.send(1)
    runner = MessageRunner(
        mailbox, lambda message, context: Promise(lambda: leased.put(mailbox.stats().leased))
    )
    with Engine(mailbox.backend, runner):
        assert 1 == leased.get(timeout=TIMEOUT)
    assert 0 == mailbox.approximate_count()


def test_what_a_coroutine_returns_to_be_awaited_is_awaited_too(mailbox: Mailbox[Any]) -> None:
    leased: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def inner() -> None:
        leased.put(mailbox.stats().leased)

    async def outer(message: Message[Any], context: RowContext) -> Coroutine[Any, Any, None]:
        return inner()

    mailbox.send(1)
    with Engine(mailbox.backend, MessageRunner(mailbox, outer)):
        assert 1 == leased.get(timeout=TIMEOUT)
    assert 0 == mailbox.approximate_count()


async def _exit_in_a_child() -> None:
    async def leave() -> None:
        raise KeyboardInterrupt

    with suppress(BaseException):
        await asyncio.ensure_future(leave())
    await asyncio.sleep(0)


async def _stop_the_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)


@pytest.mark.parametrize("misdeed", [_exit_in_a_child, _stop_the_loop])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_a_handler_does_to_the_loop_harms_no_message(
    mailbox: Mailbox[Any], misdeed: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    handled: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def handle(message: Message[int], context: RowContext) -> None:
        if message.body == 0:
            await misdeed()
        handled.put(message.body)

    mailbox.send_many(range(5))
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), policy=EnginePolicy(slots=1)):
        assert [0, 1, 2, 3, 4] == [handled.get(timeout=TIMEOUT) for _ in range(5)]
    assert (0, 0) == (mailbox.approximate_count(), mailbox.stats().dead)


class Promises:
    """A runner of coroutines that counts those that were closed without having been run."""

    def __init__(self) -> None:
        self.closed = 0

    def __call__(self, leased: ClaimedRow, context: RowContext) -> Promised:
        return Promised(self, Settlement(leased.claim, DONE))


class Promised:
    def __init__(self, promises: Promises, settlement: Settlement) -> None:
        self._promises = promises
        self._settlement = settlement

    def __await__(self) -> Generator[Any, Any, Settlement]:
        yield from asyncio.sleep(0).__await__()
        return self._settlement

    def close(self) -> None:
        self._promises.closed += 1


def end_the_loop_of(engine: Engine) -> None:
    assert engine._current_run is not None
    turning = engine._current_run.slot_pool.coroutine_runner._thread._loops[os.getpid()]
    assert turning.stop(SystemClock(), Deadline.after(TIMEOUT, SystemClock()))


def test_work_that_the_engine_itself_cannot_begin_goes_back_for_a_while_and_nobody_is_at_fault() -> (  # noqa: E501 - one name
    None
):
    source, observer, promises = FakeSource([FakeRow(1)]), RecordingObserver(), Promises()
    with Engine(source, promises, events=Events(observer)) as engine:
        source.wait_for_settlements((1, DONE))
        end_the_loop_of(engine)
        source.put(FakeRow(2))
        source.wait_for_settlements((1, DONE), (2, BACK))
        told = observer.wait_for(WorkFailed)
    assert (1, "message-2") == (promises.closed, told.message_id)
    assert (told.retry_in, True) == (source.settlements[-1].delay, source.settlements[-1].delay > 0)
    assert "ServiceStateError" in told.error


def test_the_coroutine_of_a_handler_that_cannot_be_begun_is_closed(mailbox: Mailbox[Any]) -> None:
    """Otherwise the interpreter complains that it was never awaited, and that complaint is an
    error here.
    """
    observer = RecordingObserver()
    handled: queue.SimpleQueue[int] = queue.SimpleQueue()

    async def handle(message: Message[int], context: RowContext) -> None:
        handled.put(message.body)

    mailbox.send(1)
    with Engine(mailbox.backend, MessageRunner(mailbox, handle), events=Events(observer)) as engine:
        assert 1 == handled.get(timeout=TIMEOUT)
        end_the_loop_of(engine)
        mailbox.send(2)
        observer.wait_for(WorkFailed)
    gc.collect()
    assert (1, True) == (mailbox.stats().delayed, handled.empty())
