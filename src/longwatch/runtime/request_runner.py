"""The life of one message in a loop: decode → reject if its deadline has passed → handle →
reply and settle.

A reply that cannot be sent
    of a result         is a failure of the message: its work is done again after the backoff. The
                        last failure dead-letters the message as `unanswered`.
    of a final failure  changes nothing: the message is dead-lettered without its error reply.
    So each run spends one failure at least, and no reply can make a message run without end.
    A result that no mailbox can hold (`_UNSENDABLE_ERRORS`) is a permanent error at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from longwatch.core.backoff import BackoffPolicy
from longwatch.core.clock import Clock
from longwatch.core.deadline import Deadline
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import ReplyFailed
from longwatch.core.traceback_text import describe_traceback
from longwatch.core.tracing import Work
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult, RowResult
from longwatch.engine.error_policy import failure_settlement, settlement_for
from longwatch.errors import (
    InvalidParameterError,
    PermanentError,
    Release,
    SerializationError,
    UnsupportedError,
)
from longwatch.mailbox.limits import UNANSWERED
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import require_no_generator
from longwatch.mailbox.reply import reply_and_settle
from longwatch.mailbox.spans import message_work
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.request import MainLoopRequest, MainLoopResult, OutputCheck, RequestDecoder

DEADLINE_EXCEEDED = "deadline_exceeded: the deadline passed before the work began"
_UNSENDABLE_ERRORS = (SerializationError, InvalidParameterError, UnsupportedError)

HandleFunction = Callable[[Any, MainLoopContext], Any]


class RequestRunner:
    """Runs the messages of one loop on the slots of the engine. `runs_coroutines`: `handle` returns
    coroutines.
    """

    def __init__(  # noqa: PLR0913 - a loop's parts, each by name
        self,
        handle: HandleFunction,
        decoder: RequestDecoder[Any],
        output_check: OutputCheck,
        *,
        requests: Mailbox[Any],
        responses: Mailbox[Any] | None,
        retry: BackoffPolicy,
        name: str,
        clock: Clock,
        events: Events,
        runs_coroutines: bool = False,
    ) -> None:
        self.runs_coroutines = runs_coroutines
        self._handle = handle
        self._decoder = decoder
        self._output_check = output_check
        self._requests = requests
        self._responses = responses
        self._retry = retry
        self._name = name
        self._clock = clock
        self._no_deadline = Deadline.never(clock)
        self._events = events

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> PendingResult | RowResult:
        if claimed.failures_left is None:
            claimed = context.claimed = self._with_failures_left(claimed)
        try:
            request = self._decoder.decode(self._requests.decode(claimed.item), claimed.item)
        except SerializationError as error:
            return Settlement(
                claimed.claim, RowOutcome.DEAD, reason="undecodable", error=str(error)
            )
        loop_context = MainLoopContext(
            context, request, loop=self._name, deadline=self._deadline(request)
        )
        if loop_context.deadline.expired:
            return self._reject_expired(request, context)
        return self._run(request, loop_context, context)

    def describe_work(self, claimed: ClaimedRow) -> Work:
        """Describe the span of a message."""
        return message_work(self._requests.name, claimed.item)

    def _run(
        self, request: MainLoopRequest[Any], context: MainLoopContext, work: RowContext
    ) -> PendingResult | RowResult:
        try:
            output = self._handle(request.request, context)
        except BaseException as error:
            self._failed(request, work, error)
            raise
        if output is not None and inspect.isawaitable(output):
            return PendingResult(
                output,
                partial(self._succeeded, request, work),
                on_error=partial(self._failed, request, work),
                may_block=self._has_reply_target(work),
            )
        return self._succeeded(request, work, output)

    def _deadline(self, request: MainLoopRequest[Any]) -> Deadline:
        if request.deadline is None:
            return self._no_deadline
        now = datetime.fromtimestamp(self._clock.wall(), UTC)
        return Deadline.after(request.deadline.timestamp() - now.timestamp(), self._clock)

    # --- how it ended ---

    def _succeeded(self, request: MainLoopRequest[Any], work: RowContext, output: Any) -> RowResult:
        try:
            if output is not None:
                require_no_generator(output)
            target, done = self._reply_target(work), Settlement(work.claimed.claim, RowOutcome.DONE)
            return (
                done
                if target is None
                else self._reply_with_output(output, target, request, done, work)
            )
        except BaseException as error:
            self._failed(request, work, error)
            raise

    def _reply_with_output(
        self,
        output: Any,
        target: Mailbox[Any],
        request: MainLoopRequest[Any],
        done: Settlement,
        work: RowContext,
    ) -> RowResult:
        try:
            self._output_check.check(output)
            return self._reply(target, _result(request, work, output=output), done, work)
        except _UNSENDABLE_ERRORS as error:
            raise PermanentError(
                f"the output of {self._name}, of type {type(output).__name__}, cannot be "
                f"sent: {error}"
            ) from error

    def _reject_expired(self, request: MainLoopRequest[Any], work: RowContext) -> RowResult:
        """Reply to a request whose deadline has passed, without handling it. Without a reply
        mailbox the message is dead-lettered.
        """
        target = self._reply_target(work)
        if target is None:
            return Settlement(
                work.claimed.claim, RowOutcome.DEAD, reason="expired", error=DEADLINE_EXCEEDED
            )
        done = Settlement(work.claimed.claim, RowOutcome.DONE)
        return self._reply(target, _result(request, work, error=DEADLINE_EXCEEDED), done, work)

    def _failed(
        self, request: MainLoopRequest[Any], work: RowContext, error: BaseException
    ) -> None:
        """Send the error reply if the handler raised in its last attempt. Where both are in one
        store, that also settles the message.
        """
        target = self._reply_target(work)
        if target is None or work.lease_lost or isinstance(error, Release):
            return
        settlement = settlement_for(work, error, self._retry)
        if settlement.outcome is not RowOutcome.DEAD:
            return
        result = _result(request, work, error=describe_error(error))
        try:
            reply_and_settle(self._requests, target, result, settlement, work)
            work.forced_settlement = settlement
        except Exception as trouble:  # noqa: BLE001 - a mailbox may be user code; the message is dead-lettered in any case
            self._emit_reply_failed(result, work, trouble, settlement)

    def _with_failures_left(self, claimed: ClaimedRow) -> ClaimedRow:
        """The row with its remaining failures, for backends that do not compute them."""
        max_failures = self._requests.backend.limits.max_failures
        return claimed._replace(failures_left=max_failures - claimed.failures)

    # --- replies ---

    def _has_reply_target(self, work: RowContext) -> bool:
        return self._responses is not None or work.claimed.item.reply_to is not None

    def _reply_target(self, work: RowContext) -> Mailbox[Any] | None:
        name = work.claimed.item.reply_to
        return self._responses if name is None else self._requests.reply_mailbox(name)

    def _reply(
        self, target: Mailbox[Any], result: MainLoopResult[Any], done: Settlement, work: RowContext
    ) -> RowResult:
        """Send the reply and settle the message. If the reply cannot be sent, the message fails."""
        if work.lease_lost:
            return Settlement(done.claim, RowOutcome.RELEASED)
        try:
            return reply_and_settle(self._requests, target, result, done, work)
        except _UNSENDABLE_ERRORS:
            raise
        except Exception as error:  # noqa: BLE001 - a mailbox may be user code; every exception is a failure
            settlement = failure_settlement(
                work,
                self._retry,
                reason=UNANSWERED,
                error=f"the reply could not be sent: {describe_error(error)}",
                traceback=describe_traceback(error),
            )
            self._emit_reply_failed(result, work, error, settlement)
            return settlement

    def _emit_reply_failed(
        self,
        result: MainLoopResult[Any],
        work: RowContext,
        error: Exception,
        settlement: Settlement,
    ) -> None:
        self._events.emit(
            ReplyFailed(
                loop=self._name,
                request_id=result.request_id,
                message_id=work.claimed.message_id,
                error=describe_error(error),
                retry_in=None if settlement.outcome is RowOutcome.DEAD else settlement.delay,
            )
        )


def _result(
    request: MainLoopRequest[Any],
    work: RowContext,
    *,
    output: Any = None,
    error: str | None = None,
) -> MainLoopResult[Any]:
    return MainLoopResult(
        request.request_id, output, error, attempt=work.attempt, trace=request.trace
    )
