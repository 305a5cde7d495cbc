"""Runs one call in a daemon thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline


class BackgroundThread:
    """A call made once in a daemon thread; `wait` waits for its end on a clock.

    It is a daemon, and no executor is used, because a stuck thread must not be joined when the
    interpreter exits. `error` is the exception that the call raised. With `report_errors`, for
    threads whose error is never read, it goes to `threading.excepthook` too. Takes no lock that a
    signal handler could find taken.
    """

    def __init__(
        self, work: Callable[[], object], *, name: str, report_errors: bool = False
    ) -> None:
        self.done = Wakeup()
        self.error: BaseException | None = None
        self._work = work
        self._report_errors = report_errors
        self._once = threading.Lock()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def in_own_thread(self) -> bool:
        """Whether the caller is this thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def start(self, *, inline_fallback: bool = False) -> None:
        """Start the thread; return when the call is about to be made. Idempotent.

        Raises RuntimeError if the system has no thread left; with `inline_fallback` the caller
        makes the call instead.
        """
        if not self._once.acquire(blocking=False):
            return
        try:
            self._thread.start()
        except RuntimeError as error:
            self._handle_no_thread(error, inline=inline_fallback)
        self._started.wait()

    def wait(self, clock: Clock, deadline: Deadline) -> bool:
        """Wait until the call has returned; False if the deadline passes first, and in the thread
        itself.
        """
        if self.in_own_thread or not clock.wait(self.done, deadline.remaining()):
            return False
        if self._thread.ident is not None:
            self._thread.join()
        return True

    def _run(self) -> None:
        self._started.set()
        try:
            self._work()
        except BaseException as error:
            self.error = error
            if self._report_errors:
                raise
        finally:
            self.done.set()

    def _handle_no_thread(self, error: RuntimeError, *, inline: bool) -> None:
        if inline:
            self._run()
            return
        self.error = error
        self._started.set()
        self.done.set()
        raise error
