"""Runs `async def` code on the engine's loop thread.

Also defines the results that a runner may return besides a settlement.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import Future
from typing import Any, NamedTuple

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.error_policy import NotStartedError
from longwatch.errors import CancelledError
from longwatch.host.loop import EventLoopThread
from longwatch.host.task_stacks import describe_tasks


class CoroutineRunner:
    """Runs coroutines for the slots. Its thread starts with the first one."""

    def __init__(self, *, name: str, clock: Clock) -> None:
        self._thread = EventLoopThread(name=name, clock=clock)

    @property
    def in_own_thread(self) -> bool:
        return self._thread.in_own_thread

    def run(self, awaitable: Awaitable[Any], context: RowContext) -> Any:
        """Run an awaitable on the loop thread and wait for its end, as `start` does. Blocks."""
        return self.result_of(self.start(awaitable, context), context)

    def start(self, awaitable: Awaitable[Any], context: RowContext) -> Future[Any]:
        """Start an awaitable on the loop thread. It is cancelled when its context is, and its
        future is done when it has ended.

        Raises NotStartedError if the loop cannot run it. The awaitable is then closed.
        """
        try:
            return self._thread.spawn(_contain_exit(awaitable, context))
        except Exception as error:
            if (close := getattr(awaitable, "close", None)) is not None:
                close()
            raise NotStartedError(describe_error(error)) from error

    @staticmethod
    def result_of(future: Future[Any], context: RowContext) -> Any:
        """Return or raise what the awaitable of `start` returned or raised. Blocks until its
        end.
        """
        try:
            ended = future.result()
        except FutureCancelledError:
            raise CancelledError(context.cancel.reason or "cancelled") from None
        if isinstance(ended, _Exit):
            raise ended.error
        return ended

    def describe_tasks(self) -> str:
        """Return the stacks of the tasks on the loop, for people; empty without tasks."""
        loop = self._thread.current_loop()
        return "" if loop is None else describe_tasks(loop)

    def stop(self, deadline: Deadline) -> bool:
        return self._thread.stop(deadline=deadline)


def is_coroutine_function(code: object) -> bool:
    """Return whether calling this object is known to return a coroutine."""
    return inspect.iscoroutinefunction(code) or inspect.iscoroutinefunction(
        getattr(code, "__call__", None)  # noqa: B004 - needs the method itself
    )


def runs_coroutines(runner: object) -> bool:
    """Return whether the code of this runner of rows is `async def`, by its attribute
    `runs_coroutines` or because the runner itself is.
    """
    return bool(getattr(runner, "runs_coroutines", is_coroutine_function(runner)))


class _Exit(NamedTuple):
    """An exit that user code raised."""

    error: BaseException


async def _contain_exit(awaitable: Awaitable[Any], context: RowContext) -> Any:
    """Await, and return an exit as a value. An exit raised in a task would end the loop and the
    work of all slots.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    task.set_name(context.claimed.message_id or context.claimed.computation or task.get_name())
    unsubscribe = context.cancel.on_cancel(lambda: _cancel(loop, task))
    try:
        return await resolve_nested(awaitable)
    except (SystemExit, KeyboardInterrupt) as error:
        return _Exit(error)
    finally:
        unsubscribe()


async def resolve_nested(result: Any) -> Any:
    """Await the awaitable that user code returned, then any awaitable that this returns."""
    while inspect.isawaitable(result):
        result = await result
    return result


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
    a thread of the slots.

    `on_error` is called with the exception, before the settlement is decided. `may_block`: these
    two write to a store.
    """

    def __init__(
        self,
        awaitable: Awaitable[Any],
        conclude: Callable[[Any], RowResult],
        *,
        on_error: Callable[[BaseException], object] = lambda _: None,
        may_block: bool = False,
    ) -> None:
        self.may_block = may_block
        self._awaitable = awaitable
        self._conclude = conclude
        self._on_error = on_error

    def resolve(self, coroutine_runner: CoroutineRunner, context: RowContext) -> RowResult:
        """Wait for the awaitable, and return the settlement. Blocks."""
        return self._concluded(lambda: coroutine_runner.run(self._awaitable, context))

    def start(self, coroutine_runner: CoroutineRunner, context: RowContext) -> Future[Any]:
        """Start the awaitable, for a later `conclude`. Raises NotStartedError."""
        try:
            return coroutine_runner.start(self._awaitable, context)
        except NotStartedError as error:
            self._on_error(error)
            raise

    def conclude(self, future: Future[Any], context: RowContext) -> RowResult:
        """Return the settlement, from the future of `start`, which is done. May block on a
        store.
        """
        return self._concluded(lambda: CoroutineRunner.result_of(future, context))

    def _concluded(self, wait: Callable[[], Any]) -> RowResult:
        try:
            result = wait()
        except BaseException as error:
            self._on_error(error)
            raise
        return self._conclude(result)


def as_pending(awaitable: Any) -> PendingResult:
    """Return the pending result for what a runner returned that is no result itself."""
    if isinstance(awaitable, PendingResult):
        return awaitable
    return PendingResult(awaitable, _identity)


def _identity(result: RowResult) -> RowResult:
    return result
