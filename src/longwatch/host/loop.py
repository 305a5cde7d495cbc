"""The one event-loop thread of a process: children, sockets and timers live here, everyone else calls in with a deadline."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from longwatch.errors import DeadlineExceededError, ServiceStateError

T = TypeVar("T")


class LoopThread:
    """Runs one asyncio event loop in a daemon thread.

    The thread starts with the first use and belongs to the process that started it: after a fork the child gets its own. Everything
    may be called from any thread. `call` from the loop's own thread would wait for itself and is refused.
    """

    def __init__(self, *, name: str = "longwatch-loop") -> None:
        self.name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def running(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop, started if it is not running yet."""
        with self._lock:
            if not self.running:
                self._start()
            assert self._loop is not None
            return self._loop

    def spawn(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; returns at once."""
        return asyncio.run_coroutine_threadsafe(work, self.loop())

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None) -> T:
        """Run a coroutine on the loop and wait for its result; past the timeout it is cancelled: DeadlineExceededError."""
        if threading.current_thread() is self._thread:
            work.close()
            raise ServiceStateError(f"call() from {self.name} itself would wait for ever; await the coroutine instead")
        future = self.spawn(work)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                raise
            future.cancel()
            raise DeadlineExceededError(f"no answer from {self.name} within {timeout} s") from None

    def stop(self, *, timeout: float = 5.0) -> bool:
        """Cancel what runs on the loop, let it clean up, end the thread; False if that took longer than the timeout."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
            if loop is None or thread is None or self._pid != os.getpid():
                return True
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(timeout)
        return not thread.is_alive()

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=_turn, args=(self._loop,), name=self.name, daemon=True)
        self._thread.start()


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """On the loop: cancel every task and stop once all of them have ended."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    ended = asyncio.gather(*tasks, return_exceptions=True)
    ended.add_done_callback(lambda _: loop.stop())
