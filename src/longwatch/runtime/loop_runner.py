"""Runs one loop of a group in a thread, from its start to its end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import LoopCrashed, LoopEnded, LoopStarted
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import ShutdownTimeoutError
from longwatch.host.background_thread import BackgroundThread
from longwatch.host.service import Runnable

_STOP_POLL_SECONDS = 0.05
"""Seconds between two stop requests to a loop whose thread has not ended."""


class LoopRunner:
    """Runs a loop once, in its own thread. Calls `on_change` when the run begins and when it ends.

    While `is_running` is true the beats of the loop count. The loop beats once before that, so that
    no earlier time counts.
    """

    def __init__(
        self,
        loop: Runnable,
        name: str,
        *,
        clock: Clock,
        events: Events,
        on_change: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.name = name
        self.is_running = False
        self.has_started = False
        self.error: BaseException | None = None
        self.ended_at = -inf
        """The time at which the run ended; -inf before that."""
        self._clock = clock
        self._events = events
        self._on_change = on_change
        self._thread: BackgroundThread | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the loop has ended or was never started."""
        return self._thread is None or self._thread.done.is_set()

    @property
    def is_overdue(self) -> bool:
        """Whether the loop still runs, or left work behind."""
        return not self.is_finished or isinstance(self.error, ShutdownTimeoutError)

    @property
    def has_crashed(self) -> bool:
        return self.error is not None and not isinstance(self.error, ShutdownTimeoutError)

    @property
    def in_own_thread(self) -> bool:
        return bool(getattr(self.loop, "in_own_thread", False)) or (
            self._thread is not None and self._thread.in_own_thread
        )

    @property
    def held_count(self) -> int:
        return int(getattr(self.loop, "held_count", 0))

    def elapsed(self) -> float | None:
        """Seconds since the last beat; None before the first."""
        heartbeat = self._heartbeat
        return heartbeat.elapsed() if self.is_running and heartbeat is not None else None

    def start(self, **settings: Any) -> None:
        self._thread = BackgroundThread(lambda: self._run(settings), name=f"loop-{self.name}")
        self._thread.start()

    def request_stop(self, timeout: float) -> BackgroundThread:
        """Stop the loop within so many seconds, in a background thread, because stopping blocks."""
        deadline = Deadline.after(timeout, self._clock)
        stopping = BackgroundThread(lambda: self._stop(deadline), name=f"stop-{self.name}")
        stopping.start(inline_fallback=True)
        return stopping

    def wait(self, deadline: Deadline) -> bool:
        return self._thread is None or self._thread.wait(self._clock, deadline)

    def forward(self, action: str) -> None:
        """Call `drain` or `resume` of the loop, if it has that method."""
        method = getattr(self.loop, action, None)
        if method is not None:
            method()

    def blame_only_stalled(self, threshold: float) -> None:
        blame = getattr(self.loop, "blame_only_stalled", None)
        if blame is not None:
            blame(threshold)

    def describe_tasks(self) -> str:
        """Return the stacks of the coroutines of the loop; empty without any."""
        describe: Callable[[], str] | None = getattr(self.loop, "describe_tasks", None)
        return "" if describe is None else describe()

    def _stop(self, deadline: Deadline) -> None:
        """Stop the loop. Repeats the call if the run was about to begin: a shutdown between two
        runs has no effect.
        """
        assert self._thread is not None
        while self.loop.shutdown(timeout=deadline.remaining() or 0.0):
            if self._clock.wait(self._thread.done, _STOP_POLL_SECONDS) or deadline.expired:
                return

    def _run(self, settings: dict[str, Any]) -> None:
        began = self._clock.monotonic()
        if self._heartbeat is not None:
            self._heartbeat.beat()
        self.is_running = self.has_started = True
        self._events.emit(LoopStarted(loop=self.name))
        self._on_change()
        try:
            self.loop.run(**settings)
        except BaseException as error:  # noqa: BLE001 - the group raises it, once the others have stopped
            self.error = error
        finally:
            self.is_running = False
            self.ended_at = self._clock.monotonic()
            self._emit_end(self.ended_at - began)

    def _emit_end(self, lasted: float) -> None:
        crashed = self.error if self.has_crashed else None
        ended = LoopEnded(loop=self.name, lasted=lasted)
        self._events.emit(
            ended if crashed is None else LoopCrashed(loop=self.name, error=describe_error(crashed))
        )
        self._on_change()

    @property
    def _heartbeat(self) -> Heartbeat | None:
        return getattr(self.loop, "heartbeat", None)
