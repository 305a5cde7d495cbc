"""The life of a claimed row in its slot: begin → run → settle.

claimed ──begin──► begun ──run──► ended ──► finished, with its one settlement
   └──may not begin──────────────────────► finished, released

How a row is settled, first rule first
    1. It never began: released. The engine drains, or its leases are not trusted.
    2. Its settlement was forced (`RowContext.forced_settlement`): settled that way, whatever the
       code returned or raised.
    3. Its lease was lost while it ran: released. If another worker owns the row by now, the source
       refuses even that, and only that worker settles the row.
    4. Its code raised: `error_policy.settlement_for` decides (dead letter, failure, released).
    5. Otherwise: the settlement that its runner returned.
    A row that was settled while its code ran (`RowContext.settled`) is only counted.

Invariants
    1. Each row that goes into `Slot.live` comes out exactly once, with at most one settlement.
    2. The beat page names the row from just before its code runs until just after. If the process
       dies in between, this row is blamed, and no other row of the slot.
    3. The context of a row is visible before the gate is checked. So a thread that closes the gate
       either finds the context, or the row does not begin.
    4. Nothing that user code raises leaves the slot, not even an exit.
"""

from __future__ import annotations

from collections.abc import Awaitable
from math import inf
from typing import NamedTuple, Protocol

from longwatch.core.deadline import Deadline
from longwatch.core.error_text import error_text
from longwatch.core.events.engine import WorkFailed, WorkReleased
from longwatch.core.tracing import active as active_tracer
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext, SlotActivity
from longwatch.engine.coroutines import (
    AlreadySettled,
    CoroutineRunner,
    PendingResult,
    RowResult,
    as_pending,
)
from longwatch.engine.error_policy import settlement_for
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.engine.policy import EngineContext
from longwatch.engine.row_span import DescribeWork, describe_result
from longwatch.errors import Release
from longwatch.host.beatpage import BeatPage


class RowRunner(Protocol):
    """Runs one row: decodes it, calls the user's code, and returns the settlement.

    It returns None if the settlement is unknown, and `AlreadySettled` if it has settled the row. An
    awaitable is awaited on the engine's loop thread. If that is impossible, it is closed. A
    `PendingResult` also turns the awaited value into a settlement. An exception is a failure of the
    row.

    Optional attributes: `runs_coroutines`, whether its engine gets async slots. By default it does
    if the runner is a coroutine function. `is_async_row(claimed)`, for such an engine: whether the
    call blocks no thread, by default always. `describe_work`, see `row_span.py`.
    """

    def __call__(
        self, claimed: ClaimedRow, context: RowContext, /
    ) -> PendingResult | Awaitable[RowResult] | RowResult: ...


class FinishedRow(NamedTuple):
    """A row that its slot has finished. `result` None: there is nothing to settle. `duration` None:
    the row never began.
    """

    claimed: ClaimedRow
    result: RowResult
    duration: float | None


class BeginGate:
    """Decides whether rows may begin: the engine accepts rows, and its leases are trusted.
    Thread-safe.
    """

    def __init__(self, lease_trust: LeaseTrust) -> None:
        self._lease_trust = lease_trust
        self._is_open = True

    def open(self) -> None:
        self._is_open = True

    def close(self) -> None:
        """Let no row begin. Running rows go on."""
        self._is_open = False

    def may_begin(self, now: float) -> bool:
        """Return whether a row may begin at this moment of `boottime()`."""
        return self._is_open and self._lease_trust.may_begin(now)


class Slot:
    """One place where user code runs, one row at a time.

    `context` is the context of the running row. `last_begin_at` is when a row last began here.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a row needs to begin, run and settle
        self,
        number: int,
        runner: RowRunner,
        coroutine_runner: CoroutineRunner,
        gate: BeginGate,
        page: BeatPage,
        engine_context: EngineContext,
    ) -> None:
        self.activity = SlotActivity(engine_context.clock, page, number)
        self.context: RowContext | None = None
        self.last_begin_at = -inf
        self._runner = runner
        self._coroutine_runner = coroutine_runner
        self._gate = gate
        self._engine = engine_context.name
        self._clock = engine_context.clock
        self._events = engine_context.events
        self._retry = engine_context.policy.retry
        self._no_deadline = Deadline.never(engine_context.clock)
        self._describe_work: DescribeWork = getattr(runner, "describe_work", _no_work)

    def live(self, claimed: ClaimedRow) -> FinishedRow:
        """Run one claimed row and return how it is settled. Blocks while the user's code runs.

        Every path ends in one settlement, or in none because the row is settled already or its
        settlement is unknown.
        """
        context = self._begin(claimed)
        if context is None:
            return released(claimed)
        if (tracer := active_tracer()) is None or (work := self._describe_work(claimed)) is None:
            return self._finish(claimed, context, self._run(context))
        with tracer.span(work) as context.span:
            finished = self._finish(claimed, context, self._run(context))
            describe_result(context.span, finished.result, lease_lost=context.lease_lost)
        return finished

    def _finish(self, claimed: ClaimedRow, context: RowContext, result: RowResult) -> FinishedRow:
        """End the run of a row, and decide how the row is settled."""
        duration = self._end(context)
        forced = context.forced_settlement
        if forced is not None:  # decided while the code ran
            result = AlreadySettled.by(forced) if context.settled else forced
        elif context.lease_lost and type(result) is Settlement:  # another worker may own the row
            result = Settlement(result.claim, RowOutcome.RELEASED)
        return FinishedRow(claimed, result, duration)

    def _begin(self, claimed: ClaimedRow) -> RowContext | None:
        """Mark the row as running on the beat page. Returns None if it may not begin."""
        now = self._clock.monotonic()
        self.activity.heartbeat.beat()  # a slot that rested for long must not count as stalled
        context = self.context = RowContext(
            claimed, self.activity, self._no_deadline, started_at=now
        )
        if not self._gate.may_begin(self._clock.boottime()):
            self.context = None
            return None
        self.activity.begin(claimed.claim.seq, now)
        self.last_begin_at = now
        return context

    def _run(self, context: RowContext) -> RowResult:
        """Call the runner, and wait for an asynchronous result."""
        try:
            result = self._runner(context.claimed, context)
            if result is None or type(result) is Settlement or type(result) is AlreadySettled:
                return result
            return as_pending(result).resolve(self._coroutine_runner, context)
        except BaseException as error:  # noqa: BLE001 - user code may raise any error or exit; the row fails
            return self._settle_error(context, error)

    def _settle_error(self, context: RowContext, error: BaseException) -> Settlement | None:
        """Decide how a row whose code raised is settled, and emit its failure. Returns None if the
        code has already settled it.
        """
        settlement = settlement_for(context, error, self._retry)
        if context.span is not None and settlement.outcome is not RowOutcome.RELEASED:
            context.span.record_error(error)
        if isinstance(error, Release):
            self._emit_released(context, settlement, error)
        elif settlement.outcome is not RowOutcome.RELEASED or settlement.delay:
            self._emit_failed(context, settlement)
        return None if context.settled else settlement

    def _emit_failed(self, context: RowContext, settlement: Settlement) -> None:
        self._events.emit(
            WorkFailed(
                engine=self._engine,
                message_id=context.claimed.message_id,
                computation=context.claimed.computation,
                attempt=context.attempt,
                error=settlement.error or "",
                retry_in=None if settlement.outcome is RowOutcome.DEAD else settlement.delay,
                traceback=settlement.traceback or "",
            )
        )

    def _emit_released(self, context: RowContext, settlement: Settlement, error: Release) -> None:
        self._events.emit(
            WorkReleased(
                engine=self._engine,
                message_id=context.claimed.message_id,
                computation=context.claimed.computation,
                attempt=context.attempt,
                delay=settlement.delay,
                reason=error_text(error) if error.reason else "",
            )
        )

    def _end(self, context: RowContext) -> float:
        """Remove the row from the beat page. Returns how many seconds it ran."""
        duration = self._clock.monotonic() - context.started_at
        context.close()
        self.activity.end()
        self.context = None
        return duration


def released(claimed: ClaimedRow) -> FinishedRow:
    """Return a row that is released without having begun."""
    return FinishedRow(claimed, Settlement(claimed.claim, RowOutcome.RELEASED), None)


def _no_work(_: ClaimedRow) -> None:
    """Describe no span, for a runner without spans."""
