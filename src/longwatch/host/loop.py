"""The one event-loop thread of a process: it runs children, sockets and timers.

Other threads call in with a timeout. `wait_until_done` waits on the loop with a timeout.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.errors import DeadlineExceededError, ServiceStateError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.service import Service

T = TypeVar("T")


class EventLoopThread(Service):
    """Runs one asyncio event loop in a daemon thread. Thread-safe.

    The thread starts with the first use and belongs to the process that started it: after a fork
    the child gets its own. `call` from the loop's own thread would wait for itself and is refused.
    `stop` cancels the tasks on the loop, lets them clean up and ends the thread.
    """

    def __init__(self, *, name: str = "longwatch-loop", clock: Clock | None = None) -> None:
        super().__init__(name=name, clock=clock)
        # Keyed by pid: a child must keep the loop it inherited, because closing it would unregister
        # the parent's descriptors.
        self._loops: dict[int, _RunningLoop] = {}

    @property
    def running(self) -> bool:
        return self.started

    @property
    def in_own_thread(self) -> bool:
        running = self._loops.get(os.getpid())
        return running is not None and running.in_own_thread

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop; starts it if it is not running."""
        return self._ensure_running().loop

    def current_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of this process; None if it does not run."""
        running = self._loops.get(os.getpid())
        return None if running is None or running.loop.is_closed() else running.loop

    def spawn(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine on the loop; return its future at once.

        The coroutine always ends, at the latest by being cancelled. Raises ServiceStateError if the
        loop is stopping.
        """
        try:
            return self._ensure_running().submit(work)
        except BaseException:
            work.close()
            raise

    def call(self, work: Coroutine[Any, Any, T], *, timeout: float | None) -> T:
        """Run a coroutine on the loop and wait for its result. Blocks.

        Past the timeout the coroutine is cancelled and DeadlineExceededError is raised.
        """
        if self.in_own_thread:
            work.close()
            raise ServiceStateError(
                f"call() from {self.name} itself would wait for ever; await the coroutine instead"
            )
        future = self.spawn(work)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            if future.done() and not future.cancelled():
                raise
            future.cancel()
            raise DeadlineExceededError(f"no answer from {self.name} within {timeout} s") from None

    def _start(self) -> None:
        running = _RunningLoop(self.name)
        running.start()
        self._loops[os.getpid()] = running

    def _stop(self, deadline: Deadline) -> bool:
        return self._loops[os.getpid()].stop(self._clock, deadline)

    def _ensure_running(self) -> _RunningLoop:
        # On the loop's own thread the loop exists, and waiting for a stop would be a deadlock.
        if not self.in_own_thread:
            self.start()
        return self._loops[os.getpid()]


class _RunningLoop:
    """One event loop and its thread, from creation to close."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._name = name
        self._thread = BackgroundThread(self._run, name=name, report_errors=True)
        self._lock = threading.Lock()
        self._stopping = False
        self._halted = False
        self._futures: set[concurrent.futures.Future[Any]] = set()
        """The running coroutines. A loop has only weak references to its tasks, so an unreferenced
        task could be collected while it runs.
        """

    @property
    def in_own_thread(self) -> bool:
        return self._thread.in_own_thread

    def start(self) -> None:
        try:
            self._thread.start()
        except BaseException:
            self.loop.close()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; raises ServiceStateError once the stop has begun.

        A coroutine accepted here is on the loop before the stop is.
        """
        with self._lock:
            if self._stopping or self.loop.is_closed():
                raise ServiceStateError(
                    f"{self._name} is stopping and takes no more work; start() it again first"
                )
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def stop(self, clock: Clock, deadline: Deadline) -> bool:
        """Stop the loop, once, and wait for its thread."""
        with self._lock:
            first, self._stopping = not self._stopping, True
            if first and not self.loop.is_closed():
                self.loop.call_soon_threadsafe(self._halt)
        return self._thread.wait(clock, deadline)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self._run_until(lambda: self._halted)
            self._cancel_all()
            self._complete(self.loop.shutdown_asyncgens())
        finally:
            self.loop.close()

    def _halt(self) -> None:
        """Stop the loop. Runs on it after everything submitted before the stop."""
        self._halted = True
        self.loop.stop()

    def _run_until(self, is_over: Callable[[], bool]) -> None:
        """Run the loop until `is_over`.

        A task that raises SystemExit or KeyboardInterrupt, or calls `stop`, ends `run_forever`.
        This loop is shared, so it continues.
        """
        while not is_over():
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                threading.excepthook(
                    threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
                )

    def _cancel_all(self) -> None:
        """Cancel every task and let it clean up, including tasks that the cleanup started."""
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:
                task.cancel()
            self._complete(asyncio.wait(tasks))

    def _complete(self, work: Coroutine[Any, Any, object]) -> None:
        task = self.loop.create_task(work)
        task.add_done_callback(lambda _: self.loop.stop())
        self._run_until(task.done)


async def wait_until_done(future: asyncio.Future[Any], seconds: float, clock: Clock) -> bool:
    """Wait until the future is done (True) or the seconds have passed (False); never cancels the
    future.
    """
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({future, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
    return future.done()
