"""One call in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.deadline import Deadline


class Errand:
    """A call that is made once, in a daemon thread of its own, and whose end can be waited for
    through a clock.

    Daemon, because a stuck thread must not be joined when the interpreter exits; no executor, for
    the same reason. `error` is what the call raised; that of an errand that is `loud`, because
    nobody will ask, goes to `threading.excepthook` too. Takes no lock that a signal handler could
    find taken.
    """

    def __init__(self, work: Callable[[], object], *, name: str, loud: bool = False) -> None:
        self.over = Wakeup()
        self.error: BaseException | None = None
        self._work = work
        self._loud = loud
        self._once = threading.Lock()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def inside(self) -> bool:
        """Whether this is asked from the errand's own thread, which cannot wait for itself."""
        return threading.current_thread() is self._thread

    def start(self, *, here_if_no_thread: bool = False) -> None:
        """Make the call; returns when it is about to be made, a second start changes nothing.

        RuntimeError when the system has no thread left, or with `here_if_no_thread` the call is
        made by the caller.
        """
        if not self._once.acquire(blocking=False):
            return
        try:
            self._thread.start()
        except RuntimeError as error:
            self._manage_without_thread(error, here=here_if_no_thread)
        self._begun.wait()

    def wait(self, clock: Clock, deadline: Deadline) -> bool:
        """Wait until the call has returned; False when the deadline comes first, and to the
        errand itself.
        """
        if self.inside or not clock.wait(self.over, deadline.remaining()):
            return False
        if self._thread.ident is not None:
            self._thread.join()
        return True

    def _run(self) -> None:
        self._begun.set()
        try:
            self._work()
        except BaseException as error:
            self.error = error
            if self._loud:
                raise
        finally:
            self.over.set()

    def _manage_without_thread(self, error: RuntimeError, *, here: bool) -> None:
        if here:
            self._run()
            return
        self.error = error
        self._begun.set()
        self.over.set()
        raise error
