"""One loop in a group: from the start of its thread to the end of its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.events import Events, LoopCrashed, LoopEnded, LoopStarted
from longwatch.core.heartbeat import Heartbeat
from longwatch.errors import ShutdownTimeoutError
from longwatch.host.errand import Errand
from longwatch.host.runnable import Runnable
from longwatch.work.judging import described

_A_MOMENT = 0.05
"""Seconds in which a loop that has stopped is over."""


class Member:
    """Runs a loop in a thread of its own, once. `changed` is called when its run has begun and when
    it is over.

    `armed`: its run is under way, so its beats count. It beats once before that, so that no time
    from before counts.
    """

    def __init__(
        self,
        loop: Runnable,
        name: str,
        *,
        clock: Clock,
        events: Events,
        changed: Callable[[], None],
    ) -> None:
        self.loop = loop
        self.name = name
        self.armed = False
        self.begun = False
        self.error: BaseException | None = None
        self._clock = clock
        self._events = events
        self._changed = changed
        self._errand: Errand | None = None

    @property
    def over(self) -> bool:
        """Whether nothing of it runs: it has ended, or was never started."""
        return self._errand is None or self._errand.over.is_set()

    @property
    def overdue(self) -> bool:
        """Whether it is still there, or had to leave work behind."""
        return not self.over or isinstance(self.error, ShutdownTimeoutError)

    @property
    def crashed(self) -> bool:
        return self.error is not None and not isinstance(self.error, ShutdownTimeoutError)

    @property
    def inside(self) -> bool:
        return bool(getattr(self.loop, "inside", False)) or (
            self._errand is not None and self._errand.inside
        )

    @property
    def holding(self) -> int:
        return int(getattr(self.loop, "holding", 0))

    def elapsed(self) -> float | None:
        """Seconds since its last beat; None while nothing is known about it."""
        heartbeat = self._heartbeat
        return heartbeat.elapsed() if self.armed and heartbeat is not None else None

    def start(self, **settings: Any) -> None:
        self._errand = Errand(lambda: self._run(settings), name=f"loop-{self.name}")
        self._errand.start()

    def tell(self, limit: float) -> Errand:
        """Have it stop within so long; in a thread of its own, because it blocks."""
        deadline = Deadline.after(limit, self._clock)
        telling = Errand(lambda: self._stop(deadline), name=f"stop-{self.name}")
        telling.start(here_if_no_thread=True)
        return telling

    def wait(self, deadline: Deadline) -> bool:
        return self._errand is None or self._errand.wait(self._clock, deadline)

    def pass_on(self, wish: str) -> None:
        """`drain` or `resume`, if the loop knows that."""
        act = getattr(self.loop, wish, None)
        if act is not None:
            act()

    def excuse_the_fresh(self, after: float) -> None:
        excuse = getattr(self.loop, "excuse_the_fresh", None)
        if excuse is not None:
            excuse(after)

    def _stop(self, deadline: Deadline) -> None:
        """Once more if it was about to begin: to one that does not run yet, and has run before,
        a shutdown means nothing.
        """
        assert self._errand is not None
        while self.loop.shutdown(timeout=deadline.remaining() or 0.0):
            if self._clock.wait(self._errand.over, _A_MOMENT) or deadline.expired:
                return

    def _run(self, settings: dict[str, Any]) -> None:
        began = self._clock.monotonic()
        if self._heartbeat is not None:
            self._heartbeat.beat()
        self.armed = self.begun = True
        self._events.emit(LoopStarted(loop=self.name))
        self._changed()
        try:
            self.loop.run(**settings)
        except BaseException as error:  # noqa: BLE001 - the group raises it, once the others have stopped
            self.error = error
        finally:
            self.armed = False
            self._tell_end(self._clock.monotonic() - began)

    def _tell_end(self, lasted: float) -> None:
        crashed = self.error if self.crashed else None
        ended = LoopEnded(loop=self.name, lasted=lasted)
        self._events.emit(
            ended if crashed is None else LoopCrashed(loop=self.name, error=described(crashed))
        )
        self._changed()

    @property
    def _heartbeat(self) -> Heartbeat | None:
        return getattr(self.loop, "heartbeat", None)
