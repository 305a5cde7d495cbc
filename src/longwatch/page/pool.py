"""A few daemon threads for calls that may block. No thread is joined, so none delays the end."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from longwatch.host.background_thread import BackgroundThread

T = TypeVar("T")


class NotBegunError(TimeoutError):
    """All threads were busy until the timeout. The call was not made, and will not be."""


class _Job:
    """A call that either a thread begins or its caller withdraws."""

    def __init__(self, call: Callable[[], Any], pending: asyncio.Future[Any]) -> None:
        self.call = call
        self.pending = pending
        self._unclaimed = threading.Lock()

    def claim(self) -> bool:
        """Begin or withdraw the call; whether this caller is the first that does."""
        return self._unclaimed.acquire(blocking=False)


class ThreadPool:
    """Runs blocking calls off the loop; for callers on one loop.

    A call that has started cannot be stopped. If the caller gives up, its thread goes on alone and
    is missing until the call returns.
    """

    def __init__(self, size: int, *, name: str) -> None:
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads = [
            BackgroundThread(self._serve, name=f"{name}-{number}", report_errors=True)
            for number in range(1, size + 1)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads once their present calls have returned. Does not wait."""
        for _ in self._threads:
            self._jobs.put(None)

    async def run(self, call: Callable[[], T], *, timeout: float) -> T:
        """The result of the call, or its error. Raises TimeoutError if it takes longer, and its
        subclass NotBegunError if no thread was free.
        """
        pending: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        job = _Job(call, pending)
        self._jobs.put(job)
        try:
            async with asyncio.timeout(timeout):
                return await pending
        except TimeoutError:
            if job.claim():
                raise NotBegunError from None
            raise

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.pending.cancelled() or not job.claim():  # the caller does not wait any more
                continue
            try:
                result = job.call()
            except Exception as error:  # noqa: BLE001 - the caller gets it
                _settle(job.pending, error=error)
            else:
                _settle(job.pending, result)


def _settle(
    pending: asyncio.Future[Any], result: Any = None, error: Exception | None = None
) -> None:
    def settle() -> None:
        if pending.done():
            return
        if error is None:
            pending.set_result(result)
        else:
            pending.set_exception(error)

    loop = pending.get_loop()
    if not loop.is_closed():
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            return  # closed at this moment: no caller waits any more
