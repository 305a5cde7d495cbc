"""`async def` code: on the one loop thread of the engine, while its slot waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.errors import CancelledError
from longwatch.host.loop import LoopThread
from longwatch.work.context import WorkContext
from longwatch.work.judging import NotBegunError, described

T = TypeVar("T")


class Coroutines:
    """Runs coroutines for the slots; the thread starts with the first one."""

    def __init__(self, *, name: str, clock: Clock) -> None:
        self._thread = LoopThread(name=name, clock=clock)

    @property
    def inside(self) -> bool:
        return self._thread.inside

    def run(self, work: Awaitable[T], context: WorkContext) -> T:
        """Run it on the loop and wait for its end; cancelled there when its context is, and then
        too it is waited for.

        NotBegunError: there is no loop that could.
        """
        future = self._begun(work, context)
        try:
            ended = future.result()
        except FutureCancelledError:
            raise CancelledError(context.cancel.reason or "cancelled") from None
        if isinstance(ended, _Exit):
            raise ended.error
        return ended

    def _begun(self, work: Awaitable[T], context: WorkContext) -> Future[T | _Exit]:
        try:
            return self._thread.spawn(_contained(work, context))
        except Exception as error:
            if (close := getattr(work, "close", None)) is not None:
                close()
            raise NotBegunError(described(error)) from error

    def stop(self, deadline: Deadline) -> bool:
        return self._thread.stop(deadline=deadline)


class _Exit(NamedTuple):
    """An exit that user code raised."""

    error: BaseException


async def _contained(work: Awaitable[T], context: WorkContext) -> T | _Exit:
    """Its result, and an exit as a value: one that came out of a task would end the loop, and
    everybody's work with it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    forget = context.cancel.on_cancel(lambda: _cancel(loop, task))
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)
    finally:
        forget()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)
