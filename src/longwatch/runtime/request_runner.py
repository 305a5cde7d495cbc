"""The life of one message in a loop: decoded → refused if its deadline has passed → handled →
answered and settled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from longwatch.core.backoff import BackoffPolicy, random_spread
from longwatch.core.clock import Clock
from longwatch.core.error_text import describe_error
from longwatch.core.events.base import Events
from longwatch.core.events.runtime import ReplyFailed
from longwatch.engine.claim_source import ClaimedRow, RowOutcome, Settlement
from longwatch.engine.context import RowContext
from longwatch.engine.coroutines import PendingResult, RowResult
from longwatch.engine.error_policy import settlement_for
from longwatch.errors import (
    InvalidParameterError,
    MailboxError,
    PermanentError,
    SerializationError,
    UnsupportedError,
)
from longwatch.mailbox.limits import give_up_reason
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.message_runner import require_no_generator
from longwatch.mailbox.reply import reply_and_settle
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.request import MainLoopRequest, MainLoopResult, RequestDecoder

DEADLINE_EXCEEDED = "deadline_exceeded: it had passed before the work began"
_UNSENDABLE_ERRORS = (SerializationError, InvalidParameterError, UnsupportedError)

HandleFunction = Callable[[Any, MainLoopContext], Any]


class RequestRunner:
    """Runs the messages of one loop; a Runner of the engine."""

    def __init__(  # noqa: PLR0913 - a loop's parts, each by name
        self,
        handle: HandleFunction,
        decoder: RequestDecoder[Any],
        *,
        requests: Mailbox[Any],
        responses: Mailbox[Any] | None,
        retry: BackoffPolicy,
        name: str,
        clock: Clock,
        events: Events,
    ) -> None:
        self._handle = handle
        self._decoder = decoder
        self._requests = requests
        self._responses = responses
        self._retry = retry
        self._name = name
        self._clock = clock
        self._events = events

    def __call__(self, claimed: ClaimedRow, context: RowContext) -> PendingResult | RowResult:
        try:
            request = self._decoder.decode(self._requests.decode(claimed.item), claimed.item)
        except SerializationError as error:
            return Settlement(
                claimed.claim, RowOutcome.DEAD, reason="undecodable", error=str(error)
            )
        loop_context = MainLoopContext(context, request, loop=self._name, clock=self._clock)
        if loop_context.deadline.expired:
            return self._reject_expired(request, context)
        return self._run(request, loop_context, context)

    def _run(
        self, request: MainLoopRequest[Any], context: MainLoopContext, work: RowContext
    ) -> PendingResult | RowResult:
        with self._reply_on_failure(request, work):
            output = self._handle(request.request, context)
        if inspect.isawaitable(output):
            return PendingResult(
                output,
                partial(self._succeeded, request, work),
                on_error=partial(self._failed, request, work),
            )
        return self._succeeded(request, work, output)

    # --- how it ended ---

    def _succeeded(self, request: MainLoopRequest[Any], work: RowContext, output: Any) -> RowResult:
        with self._reply_on_failure(request, work):
            require_no_generator(output)
            target, done = self._reply_target(work), Settlement(work.claimed.claim, RowOutcome.DONE)
            return (
                done
                if target is None
                else self._reply_with_output(output, target, request, done, work)
            )

    def _reply_with_output(
        self,
        output: Any,
        target: Mailbox[Any],
        request: MainLoopRequest[Any],
        done: Settlement,
        work: RowContext,
    ) -> RowResult:
        try:
            return self._reply(target, _result(request, work, output=output), done, work)
        except _UNSENDABLE_ERRORS as error:
            raise PermanentError(
                f"the output of {self._name}, of type {type(output).__name__}, cannot be "
                f"sent: {error}"
            ) from error

    def _reject_expired(self, request: MainLoopRequest[Any], work: RowContext) -> RowResult:
        """Its deadline has passed: answered without being worked on; with nobody to answer, kept
        as a dead letter.
        """
        target = self._reply_target(work)
        if target is None:
            return Settlement(
                work.claimed.claim, RowOutcome.DEAD, reason="expired", error=DEADLINE_EXCEEDED
            )
        done = Settlement(work.claimed.claim, RowOutcome.DONE)
        return self._reply(target, _result(request, work, error=DEADLINE_EXCEEDED), done, work)

    @contextmanager
    def _reply_on_failure(self, request: MainLoopRequest[Any], work: RowContext) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failed(request, work, error)
            raise

    def _failed(
        self, request: MainLoopRequest[Any], work: RowContext, error: BaseException
    ) -> None:
        """It raised, which the engine judges. Whoever waits for an answer is told when that was the
        last try, and then it is settled here, with the answer.
        """
        settlement, target = settlement_for(work, error, self._retry), self._reply_target(work)
        if target is None or work.lease_lost or not self._is_final(work, settlement):
            return
        try:
            reply_and_settle(
                self._requests,
                target,
                _result(request, work, error=describe_error(error)),
                settlement,
                work,
            )
        except MailboxError as trouble:
            self._events.emit(
                ReplyFailed(
                    loop=self._name, request_id=request.request_id, error=describe_error(trouble)
                )
            )

    def _is_final(self, work: RowContext, settlement: Settlement) -> bool:
        """Whether the message will not be claimed again after this settlement."""
        limits, failures = self._requests.backend.limits, work.claimed.failures + 1
        return settlement.outcome is RowOutcome.DEAD or (
            settlement.outcome is RowOutcome.FAILED
            and give_up_reason(limits, crashes=0, failures=failures, is_expired=False) is not None
        )

    # --- answers ---

    def _reply_target(self, work: RowContext) -> Mailbox[Any] | None:
        name = work.claimed.item.reply_to
        return self._responses if name is None else self._requests.reply_mailbox(name)

    def _reply(
        self, target: Mailbox[Any], result: MainLoopResult[Any], done: Settlement, work: RowContext
    ) -> RowResult:
        """Send the answer and settle. If it cannot be sent, the message comes back after a
        while: that is nobody's fault.
        """
        if work.lease_lost:
            return Settlement(done.claim, RowOutcome.RELEASED)
        try:
            return reply_and_settle(self._requests, target, result, done, work)
        except _UNSENDABLE_ERRORS:
            raise
        except MailboxError as error:
            self._events.emit(
                ReplyFailed(
                    loop=self._name, request_id=result.request_id, error=describe_error(error)
                )
            )
            return Settlement(
                done.claim, RowOutcome.RELEASED, delay=self._retry.delay(1, spread=random_spread())
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
