"""Cancellation of work, with a reason."""

from __future__ import annotations

import threading
from collections.abc import Callable

from longwatch.core.clock import Wakeup
from longwatch.errors import CancelledError


class CancelToken:
    """A one-way switch: once cancelled it stays cancelled, with the first reason. Thread-safe.

    A waiter passes `wakeup` to its clock. A token made with a parent is cancelled with it; the
    parent keeps a reference to the child until `detach()`.
    """

    __slots__ = ("_once", "_reason", "detach", "wakeup")

    def __init__(self, parent: CancelToken | None = None) -> None:
        self.wakeup = Wakeup()
        self._once = threading.Lock()
        self._reason = ""
        self.detach: Callable[[], None] = lambda: None
        if parent is not None:
            self.detach = parent.on_cancel(lambda: self.cancel(parent.reason))

    @property
    def cancelled(self) -> bool:
        return self.wakeup.is_set()

    @property
    def reason(self) -> str:
        """Why it was cancelled; empty until then."""
        return self._reason

    def cancel(self, reason: str = "cancelled") -> None:
        """Cancel, wake the waiters and call the listeners. Idempotent."""
        if self._once.acquire(blocking=False):
            self._reason = reason or "cancelled"
            self.wakeup.set()

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancel, at once if already cancelled; return a function that
        removes it.
        """
        return self.wakeup.subscribe(callback)

    def raise_if_cancelled(self) -> None:
        """Raise CancelledError with the reason if this was cancelled."""
        if self.cancelled:
            raise CancelledError(self.reason)
