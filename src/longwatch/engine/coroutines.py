"""Runs `async def` code on the engine's loop thread, while its slot waits.

Also defines the results that a runner may return besides a settlement.
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
    """Runs coroutines for the slots. Its thread starts with the first one."""

    def __init__(self, *, name: str, clock: Clock) -> None:
        self._thread = EventLoopThread(name=name, clock=clock)

    @property
    def in_own_thread(self) -> bool:
        return self._thread.in_own_thread

    def run(self, awaitable: Awaitable[T], context: RowContext) -> T:
        """Run an awaitable on the loop thread and wait for its end. Blocks.

        It is cancelled when its context is; the call then still waits for its end. Raises
        NotStartedError if the loop cannot run it.
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
    """Await, and return an exit as a value. An exit raised in a task would end the loop and the
    work of all slots.
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
    """The outcome of a row that is settled already. The engine only counts it, and reports a dead
    letter with its reason.
    """

    outcome: RowOutcome
    reason: str = ""
    error: str | None = None

    @classmethod
    def by(cls, settlement: Settlement) -> AlreadySettled:
        return cls(settlement.outcome, settlement.reason, settlement.error)


RowResult = Settlement | AlreadySettled | None


class PendingResult:
    """An awaitable for the loop thread, and a function that turns its result into a settlement in
    the slot's thread.

    `on_error` is called with the exception, before the settlement is decided.
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
        """Wait for the awaitable, and return the settlement."""
        try:
            result = coroutine_runner.run(self._awaitable, context)
        except NotStartedError:
            raise
        except BaseException as error:
            self._on_error(error)
            raise
        return self._conclude(result)


class _NestedAwaitable(Awaitable[Any]):
    """Awaits the awaitable that user code returned, then any awaitable that this returns."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._resolve().__await__()

    def close(self) -> None:
        """Close the awaitable, which will not be awaited."""
        if (close := getattr(self._awaitable, "close", None)) is not None:
            close()

    async def _resolve(self) -> Any:
        result: Any = self._awaitable
        while inspect.isawaitable(result):
            result = await result
        return result
