"""A few daemon threads for calls that may block. No thread is joined, so none delays the end."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from typing import Any, TypeVar

from longwatch.host.background_thread import BackgroundThread

T = TypeVar("T")

_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


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
        """The result of the call, or its error. Raises TimeoutError if it takes longer."""
        pending: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.put((call, pending))
        async with asyncio.timeout(timeout):
            return await pending

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            call, pending = job
            if pending.cancelled():  # the caller gave up while it waited for a thread
                continue
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 - the caller gets it
                _settle(pending, error=error)
            else:
                _settle(pending, result)


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
