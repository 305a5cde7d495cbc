"""Where user code runs: N threads, each with its heartbeat and its place on the beat page."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import NamedTuple, Protocol

from longwatch.core.clock import Wakeup
from longwatch.core.deadline import Deadline
from longwatch.core.events import WorkFailed
from longwatch.host.beatpage import BeatPage
from longwatch.host.errand import Errand
from longwatch.work.context import Pulse, WorkContext
from longwatch.work.coroutines import Coroutines
from longwatch.work.judging import judged
from longwatch.work.pending import Answer, Pending, Settled
from longwatch.work.policy import Surroundings
from longwatch.work.source import Leased, Outcome, Settlement
from longwatch.work.tenure import Tenure


class Runner(Protocol):
    """Runs one row: decodes it, calls the user's code, says what to do with it; or that it is
    settled, None if nobody knows how.

    What can be awaited instead of an answer is awaited on the engine's loop thread, while the slot
    waits; if it has a `close` and cannot be, that is called. `Pending` says what is done with its
    result. A raise counts as a failure.
    """

    def __call__(
        self, leased: Leased, context: WorkContext
    ) -> Pending | Awaitable[Answer] | Answer: ...


class Finished(NamedTuple):
    """A row that is over with: without a settlement nothing is to be said about it; without a
    duration it was never begun.
    """

    leased: Leased
    answer: Answer
    lasted: float | None


class Slot:
    """One thread that runs one row at a time."""

    def __init__(self, number: int, crew: Crew) -> None:
        self.pulse = Pulse(crew.clock, crew.page, number)
        self.context: WorkContext | None = None
        self._crew = crew
        self.errand = Errand(self._turn, name=f"{crew.name}-slot-{number}", loud=True)

    def _turn(self) -> None:
        take = self._crew.line.get
        while (leased := take()) is not None:
            following: Leased | None = leased
            while following is not None:
                following = self._live(following)

    def _live(self, leased: Leased) -> Leased | None:
        """The life of a row in its slot; the row to go on with, if it got one for it."""
        context = self._begin(leased)
        if context is None:
            self._crew.finish(_handed_back(leased))
            return None
        return self._crew.hand_in(self._end(context, self._run(context)))

    def _begin(self, leased: Leased) -> WorkContext | None:
        """Its context, or None if it may not begin any more. The context is shown first: whoever
        then forbids it either finds the context or is heeded here.
        """
        now = self._crew.clock.monotonic()
        # before it counts as busy: nobody is to take its rest for a stall
        self.pulse.heartbeat.beat()
        context = self.context = WorkContext(leased, self.pulse, self._crew.never, began=now)
        if not self._crew.may_begin(now):
            self.context = None
            return None
        self.pulse.begin(leased.claim.seq, now)
        self._crew.begun_at = now
        return context

    def _run(self, context: WorkContext) -> Answer:
        try:
            answer = self._crew.runner(context.leased, context)
            if answer is None or type(answer) is Settlement or type(answer) is Settled:
                return answer
            pending = answer if isinstance(answer, Pending) else Pending(answer, _itself)  # type: ignore[arg-type] # what is left
            return pending.settled(self._crew.coroutines, context)
        except BaseException as error:  # noqa: BLE001 - user code may raise anything, exits too; it is a failure of this row
            return self._crew.failed(context, error)

    def _end(self, context: WorkContext, answer: Answer) -> Finished:
        lasted = self._crew.clock.monotonic() - context.began
        context.close()
        self.pulse.end()
        self.context = None
        if context.ruling is not None:
            answer = Settled(context.ruling.outcome) if context.settled else context.ruling
        elif context.lease_lost and type(answer) is Settlement:
            answer = Settlement(answer.claim, Outcome.BACK)
        return Finished(context.leased, answer, lasted)


class Crew:
    """The slots of one engine, the line of rows before them and the heap of finished ones behind
    them.

    `bell` is what the feeder waits for while it rests: it is rung when `enough` rows are finished,
    or none is left in line. `helper` does the feeder's work meanwhile, in the thread of a slot;
    then nobody has to be woken.
    """

    def __init__(
        self, runner: Runner, tenure: Tenure, page: BeatPage, around: Surroundings
    ) -> None:
        self.runner = runner
        self.name = around.name
        self.clock = around.clock
        self.page = page
        self.never = Deadline.never(around.clock)
        self.coroutines = Coroutines(name=f"{around.name}-async", clock=around.clock)
        self.line: queue.SimpleQueue[Leased | None] = queue.SimpleQueue()
        self.finished: deque[Finished] = deque()
        self.taking = True
        self.begun_at = -inf
        self.bell: Wakeup | None = None
        self.enough = 1
        self.helper: Callable[[], Leased | None] | None = None
        self.slots = [Slot(number, self) for number in range(around.policy.slots)]
        self._started: list[Slot] = []
        self._tenure = tenure
        self._retry = around.policy.retry
        self._events = around.events

    @property
    def inside(self) -> bool:
        return self.coroutines.inside or any(slot.errand.inside for slot in self.slots)

    def start(self) -> None:
        for slot in self.slots:
            slot.errand.start()
            self._started.append(slot)

    def dismiss(self, deadline: Deadline) -> bool:
        """End the threads that were started; False if one did not come back in time."""
        for _ in self._started:
            self.line.put(None)
        ended = [slot.errand.wait(self.clock, deadline) for slot in self._started]
        return self.coroutines.stop(deadline) and all(ended)

    # --- for the slots ---

    def may_begin(self, now: float) -> bool:
        return self.taking and self._tenure.is_trusted(now)

    def hand_in(self, finished: Finished) -> Leased | None:
        """The same by a slot that has time now: if nothing else runs or waits, it settles the
        row itself, and may get another.
        """
        helper = self.helper
        if (
            helper is None
            or not self.line.empty()
            or any(slot.context is not None for slot in self.slots)
        ):
            self.finish(finished)
            return None
        self.finished.append(finished)
        return helper()

    def finish(self, finished: Finished) -> None:
        """Hand a row over to be settled, and wake the feeder when it has a reason to come."""
        self.finished.append(finished)
        bell = self.bell
        if bell is not None and (len(self.finished) >= self.enough or self.line.empty()):
            bell.set()

    def failed(self, context: WorkContext, error: BaseException) -> Settlement | Settled:
        """How it is settled; or was, if its runner did so before it raised."""
        settlement = judged(context, error, self._retry)
        if settlement.outcome is not Outcome.BACK or settlement.delay:
            self._events.emit(
                WorkFailed(
                    engine=self.name,
                    row=settlement.claim.seq,
                    attempt=context.attempt,
                    error=settlement.error or "",
                    retry_in=None if settlement.outcome is Outcome.DEAD else settlement.delay,
                )
            )
        return Settled(settlement.outcome) if context.settled else settlement

    # --- for feeder and keeper ---

    def running(self) -> list[WorkContext]:
        """The contexts of what runs just now."""
        return [context for slot in self.slots if (context := slot.context) is not None]

    def is_stuck(self, after: float) -> bool:
        """Whether every slot is busy and none has begun anything for so long."""
        return self.clock.monotonic() - self.begun_at >= after and len(self.running()) == len(
            self.slots
        )

    def stale(self, after: float) -> list[WorkContext]:
        """What runs and has given no beat for so long."""
        return [
            context
            for slot in self.slots
            if (context := slot.context) and slot.pulse.heartbeat.elapsed() > after
        ]

    def drop_waiting(self, *, keep: int = 0) -> None:
        """Finish what was not begun, but for the first `keep`, by handing it back."""
        waiting = self._emptied()
        for leased in waiting[:keep]:
            self.line.put(leased)
        for leased in waiting[keep:]:
            self.finish(_handed_back(leased))

    def excuse_the_fresh(self, after: float) -> None:
        """The process is about to be ended because slots have given no beat for so long: nobody
        else is to blame for that.
        """
        for slot in self.slots:
            if slot.context is not None and slot.pulse.heartbeat.elapsed() <= after:
                slot.pulse.end()

    def lose(self, context: WorkContext, *, blameless: bool) -> None:
        """The lease of what this slot runs is lost; without blame its end is nobody's fault from
        here on.
        """
        context.lose_lease()
        for slot in self.slots:
            if blameless and slot.context is context:
                slot.pulse.end()

    def _emptied(self) -> list[Leased]:
        waiting: list[Leased] = []
        while True:
            try:
                leased = self.line.get_nowait()
            except queue.Empty:
                return waiting
            if leased is not None:
                waiting.append(leased)


def _itself(answer: Answer) -> Answer:
    return answer


def _handed_back(leased: Leased) -> Finished:
    return Finished(leased, Settlement(leased.claim, Outcome.BACK), None)
