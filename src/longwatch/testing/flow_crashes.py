"""A worker of graphs without threads, that can be ended at every step of the life of an attempt, as
kill -9 would.

Source, slot, beat page and pulse are those of a real worker; only the threads that would turn them
are missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

from longwatch.core.events import Event, Events, Observer
from longwatch.flow.calling import arguments, written
from longwatch.flow.context import FlowContext
from longwatch.flow.flow import Flow
from longwatch.flow.nodes import Node
from longwatch.flow.running import AttemptRunner
from longwatch.flow.worker import FlowWorker
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claim
from longwatch.work.context import WorkContext
from longwatch.work.pending import Answer
from longwatch.work.place import Place
from longwatch.work.policy import EnginePolicy, Surroundings
from longwatch.work.slots import Crew, Finished, Slot
from longwatch.work.source import Leased, Settlement
from longwatch.work.tenure import Tenure

T = TypeVar("T")
_BURY = "UPDATE longwatch_owners SET incarnation = :incarnation, page = :page WHERE owner = :owner"


class Step(StrEnum):
    """The life of an attempt in its worker, step by step; a worker can be ended right after
    each.
    """

    CLAIMED = "claimed"
    """It has a lease; its code has not begun."""
    BEGUN = "begun"
    """The beat page says that it runs: from here on it is spent if the worker dies."""
    RENEWED = "renewed"
    """Its heartbeat was renewed. Only code that takes long comes here: `GraphRun.advance` within
    it.
    """
    COMPUTED = "computed"
    """Its code has returned or raised."""
    FINISHED = "finished"
    """The beat page says nothing of it any more, and the store nothing yet: it is computed
    again, unspent.
    """
    SETTLED = "settled"
    """What it came to is committed, and its worker has not learnt of it."""


class Crash(NamedTuple):
    """The end of a worker: after which step, of which attempt. `elsewhere`: on a machine that
    nobody here can see.
    """

    step: Step
    execution: str
    node: str
    attempt: int
    claim: Claim
    elsewhere: bool


class KilledError(BaseException):
    """The worker has ended here. Not an Exception, so that code which handles those does not
    handle this.
    """


class LoneWorker(FlowWorker):
    """Computes one attempt at a time, in the thread of its caller. `passed` is told of every
    step, and may have it `die` there.
    """

    def __init__(
        self, flow: Flow, folder: Path, passed: Callable[[Step, Leased], None], observer: Observer
    ) -> None:
        super().__init__(flow, concurrency=1, name="lone-worker")
        self.dead = False
        self.leased: Leased | None = None
        self.counted: set[Claim] = set()
        """Claims whose results the store has taken."""
        self._tell = passed
        self._observer = observer
        self._incarnation = Incarnation.mine()
        self._page = BeatPage(folder / f"page-{self._incarnation.id}", 1)
        self.owner = self._source.enter(self._incarnation, page=str(self._page.path))
        self._tenure = Tenure(self.owner, self._lease(), clock=self.clock, page=self._page)
        self._slot = _LoneSlot(self, self._crew())

    def turn(self) -> bool:
        """Claim one attempt, compute it, settle it; False if there was none."""
        asked = self.clock.monotonic()
        found = self._source.exchange(
            [], owner=self.owner, want=1, duration=self._tenure.lease.policy.duration
        ).leased
        if not found:
            return False
        self._tenure.granted(asked)
        self.leased = found[0]
        self.passed(Step.CLAIMED)
        finished = self._slot.live(self.leased)
        if isinstance(finished, Settlement):
            self.counted |= {finished.claim} if self._source.settle([finished])[0] else set()
            self.passed(Step.SETTLED)
        self.leased = None
        return True

    @property
    def late_result(self) -> Settlement | None:
        """What a worker that has died would have settled next."""
        return self._slot.answer if isinstance(self._slot.answer, Settlement) else None

    def passed(self, step: Step) -> None:
        assert self.leased is not None
        self._tell(step, self.leased)

    # --- while the code of a node runs ---

    def next_pulse(self) -> float:
        """Seconds until it renews, or has to look at the limits of what runs."""
        lease = self._tenure.lease
        due = [lease.granted_at + lease.policy.duration * lease.policy.renew_at]
        assert self._overtime is not None
        due += [
            running.due()[0]
            for running in self._overtime._running.values()  # noqa: SLF001
            if running.work.ruling is None
        ]
        return min(due) - self.clock.monotonic()

    def pulse(self) -> None:
        """What its other threads would do by now: renew, notice what is called off, rule on what
        has had its time.
        """
        assert self._overtime is not None
        now, policy = self.clock.monotonic(), self._tenure.lease.policy
        if now >= self._tenure.lease.granted_at + policy.duration * policy.renew_at:
            self._source.renew(owner=self.owner, duration=policy.duration)
            self._tenure.granted(now)
            self.passed(Step.RENEWED)
        self._overtime._look()  # noqa: SLF001 - one turn of its thread, which is not started here
        context = self._slot.context
        if (
            context is not None
            and not context.settled
            and context.leased.claim not in self._source.held(owner=self.owner)
        ):
            context.lose_lease()

    # --- its end ---

    def die(self, *, elsewhere: bool) -> None:
        """From here on it is a process that is gone: its page is as it was. Elsewhere nobody can
        see that, nor its page.
        """
        self.dead = True
        mine = self._incarnation
        gone = (
            replace(mine, namespace=mine.namespace + 1)
            if elsewhere
            else replace(mine, start=mine.start + 1)
        )
        facts = {
            "owner": self.owner,
            "incarnation": str(gone),
            "page": "" if elsewhere else str(self._page.path),
        }
        self.flow.database.write(lambda tx: tx.execute(_BURY, facts))
        raise KilledError

    def leave(self) -> None:
        """It has ended well."""
        self._page.close()

    # --- what it is made of ---

    def _crew(self) -> Crew:
        place = Place(name=self._called, events=Events(self._hear))
        policy = EnginePolicy(lease=self._tenure.lease.policy)
        around = Surroundings(place.name, policy, self.clock, place.events, self.heartbeat)
        crew = Crew(self._runner(place), self._tenure, self._page, around)
        crew.coroutines = _Here()  # type: ignore[assignment] # all that is asked of it
        return crew

    def _hear(self, event: Event) -> None:
        if not self.dead:
            self._observer(event)

    def _runner(self, place: Place) -> AttemptRunner:
        super()._runner(place)
        assert self._overtime is not None
        return AttemptRunner(self._graph_of, self._overtime, _computed_here, clock=self.clock)


def _computed_here(node: Node, inputs: str, context: FlowContext) -> bytes:
    """What is to run in a process of its own runs in this one: a test sees what its functions
    do.
    """
    assert node.function is not None
    return written(node, node.function(**arguments(node, inputs, context)))


class _LoneSlot(Slot):
    """A slot without its thread."""

    def __init__(self, worker: LoneWorker, crew: Crew) -> None:
        super().__init__(0, crew)
        self.answer: Answer = None
        self._worker = worker

    def live(self, leased: Leased) -> Answer:
        """The life of an attempt; how it is to be settled."""
        self._live(leased)
        return self._crew.finished.pop().answer

    def _begin(self, leased: Leased) -> WorkContext | None:
        context = super()._begin(leased)
        if context is not None:
            self._worker.passed(Step.BEGUN)
        return context

    def _run(self, context: WorkContext) -> Answer:
        self.answer = None
        answer = super()._run(context)
        if self._worker.dead:  # ended within the code, which may have caught that
            raise KilledError
        self.answer = answer
        self._worker.passed(Step.COMPUTED)
        return answer

    def _end(self, context: WorkContext, answer: Answer) -> Finished:
        finished = super()._end(context, answer)
        self._worker.passed(Step.FINISHED)
        return finished


class _Here:
    """Awaits what async functions return, in this thread."""

    def run(self, work: Awaitable[T], _context: WorkContext) -> T:
        import asyncio  # noqa: PLC0415 - only for async functions

        async def whole() -> T:
            return await work

        return asyncio.run(whole())
