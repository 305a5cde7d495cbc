"""Runs `async def` code on the one loop thread of the engine, while its slot waits.

The code that runs a row may also return that the row is settled already, or an awaitable.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.error_policy import NotStartedError
from longwatch.errors import CancelledError
from longwatch.host.loop import EventLoopThread

T = TypeVar("T")


class CoroutineRunner:
    """Runs coroutines for the slots; the thread starts with the first one."""

    def __init__(self, *, name: str, clock: Clock) -> None:
        self._thread = EventLoopThread(name=name, clock=clock)

    @property
    def in_own_thread(self) -> bool:
        return self._thread.in_own_thread

    def run(self, awaitable: Awaitable[T], context: RowContext) -> T:
        """Run it on the loop and wait for its end; cancelled there when its context is, and then
        too it is waited for.

        Raises NotStartedError if there is no loop that could.
        """
        future = self._submit(awaitable, context)
        try:
            ended = future.result()
        except FutureCancelledError:
            raise CancelledError(context.cancel.reason or "cancelled") from None
        if isinstance(ended, _Exit):
            raise ended.error
        return ended

    def _submit(self, awaitable: Awaitable[T], context: RowContext) -> Future[T | _Exit]:
        try:
            return self._thread.spawn(_contain_exit(awaitable, context))
        except Exception as error:
            if (close := getattr(awaitable, "close", None)) is not None:
                close()
            raise NotStartedError(describe_error(error)) from error

    def stop(self, deadline: Deadline) -> bool:
        return self._thread.stop(deadline=deadline)


class _Exit(NamedTuple):
    """An exit that user code raised."""

    error: BaseException


async def _contain_exit(awaitable: Awaitable[T], context: RowContext) -> T | _Exit:
    """Its result, and an exit as a value: one that came out of a task would end the loop, and
    everybody's work with it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    unsubscribe = context.cancel.on_cancel(lambda: _cancel(loop, task))
    try:
        return await awaitable
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)
    finally:
        unsubscribe()


def _cancel(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


class AlreadySettled(NamedTuple):
    """The row is settled already, in this way: it only has to be counted, and a dead letter
    reported with its reason.
    """

    outcome: RowOutcome
    reason: str = ""
    error: str | None = None

    @classmethod
    def by(cls, settlement: Settlement) -> AlreadySettled:
        return cls(settlement.outcome, settlement.reason, settlement.error)


RowResult = Settlement | AlreadySettled | None


class PendingResult:
    """What is awaited on the engine's loop thread, and what then is done with its result, in the
    slot's thread again.

    `on_error` is called with what it raised, before the settlement is decided.
    """

    def __init__(
        self,
        awaitable: Awaitable[Any],
        conclude: Callable[[Any], RowResult],
        *,
        on_error: Callable[[BaseException], object] = lambda _: None,
    ) -> None:
        self._awaitable = _NestedAwaitable(awaitable)
        self._conclude = conclude
        self._on_error = on_error

    def resolve(self, coroutine_runner: CoroutineRunner, context: RowContext) -> RowResult:
        """Wait for it, and conclude."""
        try:
            result = coroutine_runner.run(self._awaitable, context)
        except NotStartedError:
            raise
        except BaseException as error:
            self._on_error(error)
            raise
        return self._conclude(result)


class _NestedAwaitable(Awaitable[Any]):
    """What user code returned to be awaited, and what that returned to be awaited in turn."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._resolve().__await__()

    def close(self) -> None:
        """It will not be awaited."""
        if (close := getattr(self._awaitable, "close", None)) is not None:
            close()

    async def _resolve(self) -> Any:
        result: Any = self._awaitable
        while inspect.isawaitable(result):
            result = await result
        return result
