"""One call in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline


class BackgroundThread:
    """A call that is made once, in a daemon thread of its own, and whose end can be waited for
    through a clock.

    Daemon, because a stuck thread must not be joined when the interpreter exits; no executor, for
    the same reason. `error` is what the call raised; with `report_errors`, for threads whose error
    is never read, it goes to `threading.excepthook` too. Takes no lock that a signal handler could
    find taken.
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
        """Whether this is called from this thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def start(self, *, inline_fallback: bool = False) -> None:
        """Make the call; returns when it is about to be made, a second start changes nothing.

        RuntimeError when the system has no thread left, or with `inline_fallback` the call is
        made by the caller.
        """
        if not self._once.acquire(blocking=False):
            return
        try:
            self._thread.start()
        except RuntimeError as error:
            self._handle_no_thread(error, inline=inline_fallback)
        self._started.wait()

    def wait(self, clock: Clock, deadline: Deadline) -> bool:
        """Wait until the call has returned; False when the deadline comes first, and in
        this thread itself.
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
