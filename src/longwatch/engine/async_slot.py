"""The life of a claimed row whose code is `async def`: in a slot that has no thread of its own.

claimed ──start──► on the loop ──the coroutine ends──► conclude ──► finished, with its settlement
   └──may not begin, raised at once, or is not async──────────────► finished

`start` and `conclude` run in threads of the slot pool (`async_slot_pool.py`), usually in different
ones. Between them the coroutine is a task on the engine's loop thread, and no thread waits for it.
The rules and invariants of `row_life.py` hold here too.

Invariants
    1. One thread at a time works on a slot: the one that took it from the free slots, then the one
       that got the end of its coroutine.
    2. The steps of a row run in a `contextvars.Context` of its own. So its span is the current one
       in its code and in its reply, and no other row sees it. Two threads cannot enter one context
       at the same time, so the coroutine runs in a copy.
    3. The beat page names the row until it is concluded. So the row is also to blame if the process
       dies between the end of its coroutine and its reply.
    4. The end of a coroutine counts as a heartbeat, because a row that waits for a thread has not
       stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from contextvars import Context, copy_context
from functools import partial
from typing import Any, NamedTuple

from longwatch.core.tracing import active as active_tracer
from longwatch.engine.claim_source import ClaimedRow, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import AlreadySettled, PendingResult, RowResult, as_pending
from longwatch.engine.error_policy import NotStartedError
from longwatch.engine.row_life import FinishedRow, Slot, released
from longwatch.engine.row_span import describe_result


class StartedRow(NamedTuple):
    """A row whose coroutine is on the loop. `variables`: the context variables of the row.
    `span_block`: closes its span.
    """

    context: RowContext
    pending: PendingResult
    variables: Context
    span_block: ExitStack


OnEnd = Callable[["AsyncSlot", StartedRow, Future[Any]], object]
"""Called when the coroutine of a row has ended, on the loop thread. It must not block."""


class AsyncSlot(Slot):
    """One place where a coroutine runs, one row at a time."""

    def start(self, claimed: ClaimedRow, on_end: OnEnd) -> FinishedRow | None:
        """Begin a row. Returns None if its coroutine runs on the loop: after the call of `on_end`,
        `conclude` finishes the row. Otherwise returns the finished row.
        """
        context = self._begin(claimed)
        if context is None:
            return released(claimed)
        variables, span_block = copy_context(), ExitStack()
        result = variables.run(self._call, context, span_block)
        if isinstance(result, PendingResult):
            try:
                self._spawn(StartedRow(context, result, variables, span_block), on_end)
            except NotStartedError as error:
                result = variables.run(self._settle_error, context, error)
            else:
                return None
        return variables.run(self._close_row, context, result, span_block)

    def conclude(self, row: StartedRow, future: Future[Any]) -> FinishedRow:
        """Finish a row whose coroutine has ended. May block on a store, to send a reply."""
        return row.variables.run(self._conclude, row, future)

    # --- inside the context variables of the row ---

    def _call(self, context: RowContext, span_block: ExitStack) -> RowResult | PendingResult:
        """Open the span of the row, and call its runner."""
        tracer = active_tracer()
        if tracer is not None and (work := self._describe_work(context.claimed)) is not None:
            context.span = span_block.enter_context(tracer.span(work))
        try:
            result = self._runner(context.claimed, context)
            is_final = result is None or isinstance(result, Settlement | AlreadySettled)
            return result if is_final else as_pending(result)  # type: ignore[return-value] # is_final narrows it
        except BaseException as error:  # noqa: BLE001 - user code may raise any error or exit; the row fails
            return self._settle_error(context, error)

    def _conclude(self, row: StartedRow, future: Future[Any]) -> FinishedRow:
        try:
            result = row.pending.conclude(future, row.context)
        except BaseException as error:  # noqa: BLE001 - as above
            result = self._settle_error(row.context, error)
        return self._close_row(row.context, result, row.span_block)

    def _close_row(
        self, context: RowContext, result: RowResult, span_block: ExitStack
    ) -> FinishedRow:
        with span_block:
            finished = self._finish(context.claimed, context, result)
            if context.span is not None:
                describe_result(context.span, finished.result, lease_lost=context.lease_lost)
        return finished

    # --- between threads ---

    def _spawn(self, row: StartedRow, on_end: OnEnd) -> None:
        """Start the coroutine. It may have ended, and the row be concluded, before this returns."""
        start = partial(row.pending.start, self._coroutine_runner, row.context)
        future = row.variables.copy().run(start)
        future.add_done_callback(partial(self._ended, row, on_end))

    def _ended(self, row: StartedRow, on_end: OnEnd, future: Future[Any]) -> None:
        self.activity.heartbeat.beat()
        on_end(self, row, future)
