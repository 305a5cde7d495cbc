"""The pulse of a worker's attempts: which of them may go on, and which have had their time.

One thread. While something runs it wakes every second, and at every deadline. An attempt within its
limits gets a beat, so that its slot counts as alive for as long as this thread turns, whatever its
code does. One that is past its deadline, or has not said for too long that it moves, is ruled on:
how it is settled is decided from here on; the store is told at once, which has it tried again, and
the code is told to stop. Code that does not gets no more beats: its slot is out of service, and the
watchdog's rule applies. Its waits end at moments that it computes anew each time (`host.periodic`
keeps one interval), so it turns a loop of its own. Heartbeats in the store are not made here: the
engine's keeper renews all of a worker's attempts in one statement.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from longwatch.core.clock import Clock, Wakeup
from longwatch.core.events import AttemptAbandoned, Events
from longwatch.flow.context import FlowContext
from longwatch.flow.standing import Cause
from longwatch.host.errand import Errand
from longwatch.work.calls import SourceCall
from longwatch.work.context import WorkContext
from longwatch.work.policy import Surroundings
from longwatch.work.source import Outcome, Settlement

BEAT_EVERY = 1.0
_A_MOMENT = 0.5
"""Seconds that a store has to answer, before work is told to stop without that."""


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt under way."""

    work: WorkContext
    context: FlowContext
    progress_timeout: float | None

    def due(self) -> tuple[float, Cause]:
        """When its time is over, on the clock of its deadline, and why."""
        deadline = self.context.deadline.at
        if self.progress_timeout is None:
            return deadline, Cause.DEADLINE
        stalled = self.context.progressed_at + self.progress_timeout
        return (stalled, Cause.STALLED) if stalled < deadline else (deadline, Cause.DEADLINE)


class Overtime:
    """Watches what runs. `settle` has the store conclude an attempt; whether it was still its
    claimant's.
    """

    def __init__(
        self, settle: Callable[[list[Settlement]], list[bool]], around: Surroundings
    ) -> None:
        self._settle = settle
        self._clock: Clock = around.clock
        self._events: Events = around.events
        self._telling = SourceCall("abandon", around)
        self._running: dict[int, Running] = {}
        self._untold: deque[Running] = deque()
        self._teller: Errand | None = None
        self._lock = threading.Lock()
        self._news = Wakeup()
        self._ending = False
        self._resting = False
        self._busy = False
        self._errand = Errand(self._turn, name=f"{around.name}-overtime", loud=True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._errand.start()
        try:
            yield
        finally:
            self._ending = True
            self._news.set()

    def begin(self, running: Running) -> None:
        with self._lock:
            self._running[running.work.leased.claim.seq] = running
            self._busy = True
        if self._resting or running.due()[0] < self._clock.monotonic() + BEAT_EVERY:
            self._news.set()

    def end(self, running: Running) -> None:
        with self._lock:
            self._running.pop(running.work.leased.claim.seq, None)

    # --- its thread ---

    def _turn(self) -> None:
        while not self._ending:
            self._clock.wait(self._news, self._patience())
            self._news.clear()
            self._look()

    def _patience(self) -> float | None:
        """Until the next thing to do; after a round in which nothing ran, for ever: who begins
        something rarely has to wake it.
        """
        now = self._clock.monotonic()
        with self._lock:
            dues = [each.due()[0] for each in self._running.values() if each.work.ruling is None]
            self._resting = not (dues or self._untold or self._busy)
            self._busy = False
        if self._resting:
            return None
        waits = [BEAT_EVERY, *(due - now for due in dues)]
        return max(min(waits), self._telling.retry_in if self._untold else 0.0)

    def _look(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            running = [each for each in self._running.values() if each.work.ruling is None]
        for each in running:
            due, cause = each.due()
            if now >= due:
                self._rule(each, cause)
            else:
                each.work.beat()
        if self._untold:
            self._tell_soon()

    def _rule(self, running: Running, cause: Cause) -> None:
        """It has had its time: what it says does not count from here on. It is told to stop once
        the store knows, or does not answer in a moment: one that obeys at once would otherwise be
        settled twice.
        """
        item = running.work.leased.item
        limit = running.progress_timeout if cause is Cause.STALLED else item.abandon_after
        error = f"{_WORDS[cause]} {limit:g} seconds"
        ruling = running.work.ruling = Settlement(
            running.work.leased.claim, Outcome.FAILED, reason=str(cause), error=error
        )
        running.work.ruling = ruling._replace(error=error + running.context.last_words())
        self._untold.append(running)
        self._tell_soon()
        running.work.cancel.cancel(str(cause))

    def _tell_soon(self) -> None:
        """In a thread of its own, because a store that does not answer must not keep others from
        their beats and their ends.
        """
        if self._teller is None or self._teller.over.is_set():
            self._teller = Errand(self._tell, name="longwatch-overtime-telling", loud=True)
            self._teller.start(here_if_no_thread=True)
        self._teller.over.block(_A_MOMENT)

    def _tell(self) -> None:
        """Have the store know, as often as it takes; if its slot was quicker, that has counted."""
        while self._untold and not self._ending:
            running = self._untold[0]
            ruling = running.work.ruling
            assert ruling is not None
            counted = self._telling.make(lambda ruling=ruling: self._settle([ruling]))  # type: ignore[misc]
            if counted is None:
                return
            self._untold.popleft()
            running.work.settled = True
            running.work.lease_lost = True
            if counted[0]:
                item = running.work.leased.item
                self._events.emit(
                    AttemptAbandoned(
                        execution=item.id, node=item.node, attempt=item.number, cause=ruling.reason
                    )
                )


_WORDS = {Cause.DEADLINE: "it took longer than", Cause.STALLED: "it has not said that it moves for"}
