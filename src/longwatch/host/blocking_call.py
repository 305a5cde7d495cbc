"""Runs blocking calls, such as health checks, off the event loop.

A call has a thread of its own, started with the first caller. A caller that comes while the call
runs waits for the same result. Once the call has taken longer than its timeout, every caller gets
TimeoutError at once, until the call returns. A thread whose call never returns stays: it is a
daemon, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Generic, TypeVar

from longwatch.core.error_text import describe_error
from longwatch.host.background_thread import BackgroundThread

T = TypeVar("T")


class BlockingCall(Generic[T]):
    """Runs a blocking call off the loop; for callers on one loop.

    `run` returns its result or raises its error, or TimeoutError if it takes longer than `timeout`.
    """

    def __init__(self, call: Callable[[], T], *, name: str, timeout: float) -> None:
        self._call = call
        self._name = name
        self._timeout = timeout
        self._requests: queue.SimpleQueue[asyncio.Future[T] | None] = queue.SimpleQueue()
        self._pending: asyncio.Future[T] | None = None
        self._timed_out = False
        self._thread: BackgroundThread | None = None

    async def run(self) -> T:
        if self._pending is None:
            self._submit()
        elif self._timed_out:
            raise TimeoutError
        assert self._pending is not None
        done, _ = await asyncio.wait({self._pending}, timeout=self._timeout)
        if not done:
            self._timed_out = True
            raise TimeoutError
        return next(iter(done)).result()

    def close(self) -> None:
        """End the thread once its current call has returned. Does not wait."""
        self._requests.put(None)
        self._thread = None

    def _submit(self) -> None:
        if self._thread is None:
            thread = BackgroundThread(self._serve, name=self._name, report_errors=True)
            # raises if the system has no thread left; the next caller tries again
            thread.start()
            self._thread = thread
        pending = self._pending = asyncio.get_running_loop().create_future()
        pending.add_done_callback(self._finished)
        self._requests.put(pending)

    def _finished(self, pending: asyncio.Future[T]) -> None:
        if not pending.cancelled():
            pending.exception()  # marks it as retrieved: the caller may be gone
        self._pending, self._timed_out = None, False

    def _serve(self) -> None:
        while (pending := self._requests.get()) is not None:
            try:
                result = self._call()
            except BaseException as error:  # noqa: BLE001 - the caller gets it; an exit in the user's code must not end the thread
                _resolve(pending, error=error)
            else:
                _resolve(pending, result)


def _fits_future(error: BaseException) -> bool:
    """Whether a future accepts the error: no exit, which would end the loop, and no
    StopIteration.
    """
    return isinstance(error, Exception) and not isinstance(error, StopIteration)


def _resolve(
    pending: asyncio.Future[T], result: T | None = None, error: BaseException | None = None
) -> None:
    def resolve() -> None:
        if pending.done():
            return
        if error is None:
            pending.set_result(result)  # type: ignore[arg-type] # without an error it is a T
        else:
            pending.set_exception(
                error if _fits_future(error) else RuntimeError(describe_error(error))
            )

    loop = pending.get_loop()
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(resolve)
        except RuntimeError:
            return  # closed at this moment: no caller waits any more
