"""A graph worker without threads, which a test can kill at every step of an attempt, as kill -9
would.

Claim source, slot, beat page and heartbeat are those of a real worker. Only the threads that drive
them are missing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from longwatch.core.events.base import Event, Events, Observer
from longwatch.core.lease import RenewalSchedule
from longwatch.engine.claim_source import ClaimedRow, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import RowResult, resolve_nested
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext, EngineEnvironment, EnginePolicy
from longwatch.engine.row_life import BeginGate, RowRunner, Slot
from longwatch.flow.attempt_runner import AttemptRunner
from longwatch.flow.context import FlowContext
from longwatch.flow.flow import Flow
from longwatch.flow.invocation import arguments, encode_result
from longwatch.flow.nodes import Node
from longwatch.flow.worker import FlowWorker
from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.store.claims import Claim

_REPLACE_OWNER = (
    "UPDATE longwatch_owners SET incarnation = :incarnation, page = :page WHERE owner = :owner"
)


class Step(StrEnum):
    """The steps of an attempt in its worker. A worker can be killed right after each."""

    CLAIMED = "claimed"
    """The attempt is leased, and its code has not begun."""
    BEGUN = "begun"
    """The beat page says that the attempt runs. From here on it is spent if the worker dies."""
    RENEWED = "renewed"
    """The heartbeat was renewed. Only code that calls `GraphRun.advance` reaches this step."""
    COMPUTED = "computed"
    """The code has returned or raised."""
    FINISHED = "finished"
    """The beat page no longer names the attempt, and the store has no result yet. It is computed
    again and not spent.
    """
    SETTLED = "settled"
    """The result is committed, and the worker has not received the reply."""


class Crash(NamedTuple):
    """The death of a worker: after which step of which attempt. `on_other_host`: on a machine that
    other workers cannot inspect. `element`: the number of an element of a map in the store.
    `is_firing`: the attempt fires a tick and runs no code.
    """

    step: Step
    execution: str
    node: str
    attempt: int
    claim: Claim
    on_other_host: bool
    element: int | None = None
    is_firing: bool = False


class KilledError(BaseException):
    """Ends a killed worker. Not an Exception, so that code that catches those does not catch it."""


class SteppedWorker(FlowWorker):
    """Computes one attempt at a time, in the thread of its caller. It calls `on_step` after every
    step, which may call `die`.
    """

    def __init__(
        self,
        flow: Flow,
        folder: Path,
        on_step: Callable[[Step, ClaimedRow], None],
        observer: Observer,
    ) -> None:
        super().__init__(flow, concurrency=1, name="lone-worker")
        self.is_dead = False
        self.claimed: ClaimedRow | None = None
        self.settled_claims: set[Claim] = set()
        """Claims whose results the store has accepted."""
        self._on_step = on_step
        self._observer = observer
        self._incarnation = Incarnation.current()
        self._page = BeatPage(folder / f"page-{self._incarnation.id}", 1)
        self.owner = self._source.register_owner(self._incarnation, page=str(self._page.path))
        self._lease_trust = LeaseTrust(self.owner, self._lease(), clock=self.clock, page=self._page)
        self._renewals = RenewalSchedule(self._lease_trust.lease.policy)
        self._slot = self._make_slot()

    def run_one(self) -> bool:
        """Claim one attempt, compute and settle it. Return False if none was ready."""
        asked = self.clock.boottime()
        found = self._source.exchange(
            [],
            owner=self.owner,
            limit=1,
            lease_seconds=self._lease_trust.lease.policy.lease_seconds,
        ).claimed
        if not found:
            return False
        self._lease_trust.record_grant(asked)
        self.claimed = found[0]
        self.step_done(Step.CLAIMED)
        result = self._slot.live(self.claimed).result
        if isinstance(result, Settlement):
            self.settled_claims |= {result.claim} if self._source.settle([result])[0] else set()
            self.step_done(Step.SETTLED)
        self.claimed = None
        return True

    @property
    def late_result(self) -> Settlement | None:
        """The result that a killed worker would have settled next."""
        return self._slot.answer if isinstance(self._slot.answer, Settlement) else None

    def step_done(self, step: Step) -> None:
        assert self.claimed is not None
        self._on_step(step, self.claimed)

    # --- while the code of a node runs ---

    def next_tick(self) -> float:
        """Return the seconds until the next renewal or the next limit of the running attempt."""
        until_renewal = self._renewals.next_renewal(self._lease_trust.lease) - self.clock.boottime()
        assert self._watchdog is not None
        until_limit = [
            running.expiry()[0] - self.clock.monotonic()
            for running in self._watchdog._running.values()  # noqa: SLF001
            if running.work.forced_settlement is None
        ]
        return min([until_renewal, *until_limit])

    def tick(self) -> None:
        """Do what the other threads of a worker would do now: renew, apply limits, and notice a
        lost lease.
        """
        assert self._watchdog is not None
        now, lease = self.clock.boottime(), self._lease_trust.lease
        if self._renewals.is_due(lease, now):
            self._source.renew(owner=self.owner, lease_seconds=lease.policy.lease_seconds)
            self._lease_trust.record_grant(now)
            self.step_done(Step.RENEWED)
        self._watchdog._check()  # noqa: SLF001 - one turn of its thread, which is not started here
        context = self._slot.context
        if (
            context is not None
            and not context.settled
            and context.claimed.claim not in self._source.held(owner=self.owner)
        ):
            context.lose_lease()

    # --- its end ---

    def die(self, *, on_other_host: bool) -> None:
        """Make the worker look like a dead process whose beat page stays as it was. On another host
        other workers see neither its death nor its page.
        """
        self.is_dead = True
        mine = self._incarnation
        gone = (
            replace(mine, namespace=mine.namespace + 1)
            if on_other_host
            else replace(mine, start=mine.start + 1)
        )
        facts = {
            "owner": self.owner,
            "incarnation": str(gone),
            "page": "" if on_other_host else str(self._page.path),
        }
        self.flow.database.write(lambda tx: tx.execute(_REPLACE_OWNER, facts))
        raise KilledError

    def leave(self) -> None:
        """End the worker cleanly."""
        self._page.close()

    # --- parts ---

    def _make_slot(self) -> _SteppedSlot:
        place = EngineEnvironment(name=self._display_name, events=Events(self._forward_event))
        policy = EnginePolicy(lease=self._lease_trust.lease.policy)
        around = EngineContext(place.name, policy, self.clock, place.events, self.heartbeat)
        gate = BeginGate(self._lease_trust)
        return _SteppedSlot(self, self._make_runner(place), gate, self._page, around)

    def _forward_event(self, event: Event) -> None:
        if not self.is_dead:
            self._observer(event)

    def _make_runner(self, environment: EngineEnvironment) -> AttemptRunner:
        super()._make_runner(environment)
        assert self._watchdog is not None
        return AttemptRunner(self._graph_of, self._watchdog, _compute_inline, clock=self.clock)


def _compute_inline(node: Node, inputs: str, context: FlowContext) -> bytes:
    """Compute an isolated node in this process, so that a test sees what its functions do."""
    assert node.function is not None
    return encode_result(node, node.function(**arguments(node, inputs, context)))


class _SteppedSlot(Slot):
    """A slot without a thread, which reports each step of a row's life."""

    def __init__(
        self,
        worker: SteppedWorker,
        runner: RowRunner,
        gate: BeginGate,
        page: BeatPage,
        around: EngineContext,
    ) -> None:
        coroutines: Any = _InlineCoroutines()  # a slot calls only its `run`
        super().__init__(0, runner, coroutines, gate, page, around)
        self.answer: RowResult = None
        self._worker = worker

    def _begin(self, claimed: ClaimedRow) -> RowContext | None:
        context = super()._begin(claimed)
        if context is not None:
            self._worker.step_done(Step.BEGUN)
        return context

    def _run(self, context: RowContext) -> RowResult:
        self.answer = None
        answer = super()._run(context)
        if (
            self._worker.is_dead
        ):  # the worker was killed inside the code, which may have caught KilledError
            raise KilledError
        self.answer = answer
        self._worker.step_done(Step.COMPUTED)
        return answer

    def _end(self, context: RowContext) -> float:
        duration = super()._end(context)
        self._worker.step_done(Step.FINISHED)
        return duration


class _InlineCoroutines:
    """Awaits the results of async functions in this thread."""

    def run(self, work: Awaitable[Any], _context: RowContext) -> Any:
        import asyncio  # noqa: PLC0415 - only for async functions

        return asyncio.run(resolve_nested(work))
