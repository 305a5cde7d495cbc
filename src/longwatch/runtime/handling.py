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
from longwatch.core.events import Events, ReplyFailed
from longwatch.errors import (
    InvalidParameterError,
    MailboxError,
    PermanentError,
    SerializationError,
    UnsupportedError,
)
from longwatch.mailbox.answering import answer_and_settle
from longwatch.mailbox.mailbox import Mailbox
from longwatch.mailbox.runner import require_no_generator
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.messages import MainLoopRequest, MainLoopResult, RequestDecoder
from longwatch.work.context import WorkContext
from longwatch.work.judging import described, judged
from longwatch.work.pending import Answer, Pending
from longwatch.work.source import Leased, Outcome, Settlement

EXPIRED = "deadline_exceeded: it had passed before the work began"
_UNSENDABLE = (SerializationError, InvalidParameterError, UnsupportedError)

Handle = Callable[[Any, MainLoopContext], Any]


class Handling:
    """Runs the messages of one loop; a Runner of the engine."""

    def __init__(  # noqa: PLR0913 - a loop's parts, each by name
        self,
        handle: Handle,
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

    def __call__(self, leased: Leased, context: WorkContext) -> Pending | Answer:
        try:
            request = self._decoder.decode(self._requests.decode(leased.item), leased.item)
        except SerializationError as error:
            return Settlement(leased.claim, Outcome.DEAD, reason="undecodable", error=str(error))
        told = MainLoopContext(context, request, loop=self._name, clock=self._clock)
        if told.deadline.expired:
            return self._refuse(request, context)
        return self._run(request, told, context)

    def _run(
        self, request: MainLoopRequest[Any], context: MainLoopContext, work: WorkContext
    ) -> Pending | Answer:
        with self._telling(request, work):
            output = self._handle(request.request, context)
        if inspect.isawaitable(output):
            return Pending(
                output,
                partial(self._succeeded, request, work),
                failed=partial(self._failed, request, work),
            )
        return self._succeeded(request, work, output)

    # --- how it ended ---

    def _succeeded(self, request: MainLoopRequest[Any], work: WorkContext, output: Any) -> Answer:
        with self._telling(request, work):
            require_no_generator(output)
            target, done = self._target(work), Settlement(work.leased.claim, Outcome.DONE)
            return (
                done if target is None else self._answer_with(output, target, request, done, work)
            )

    def _answer_with(
        self,
        output: Any,
        target: Mailbox[Any],
        request: MainLoopRequest[Any],
        done: Settlement,
        work: WorkContext,
    ) -> Answer:
        try:
            return self._answer(target, _result(request, work, output=output), done, work)
        except _UNSENDABLE as error:
            raise PermanentError(
                f"the output of {self._name}, of type {type(output).__name__}, cannot be "
                f"sent: {error}"
            ) from error

    def _refuse(self, request: MainLoopRequest[Any], work: WorkContext) -> Answer:
        """Its deadline has passed: answered without being worked on; with nobody to answer, kept
        as a dead letter.
        """
        target = self._target(work)
        if target is None:
            return Settlement(work.leased.claim, Outcome.DEAD, reason="expired", error=EXPIRED)
        done = Settlement(work.leased.claim, Outcome.DONE)
        return self._answer(target, _result(request, work, error=EXPIRED), done, work)

    @contextmanager
    def _telling(self, request: MainLoopRequest[Any], work: WorkContext) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._failed(request, work, error)
            raise

    def _failed(
        self, request: MainLoopRequest[Any], work: WorkContext, error: BaseException
    ) -> None:
        """It raised, which the engine judges. Whoever waits for an answer is told when that was the
        last try, and then it is settled here, with the answer.
        """
        settlement, target = judged(work, error, self._retry), self._target(work)
        if target is None or work.lease_lost or not self._is_final(work, settlement):
            return
        try:
            answer_and_settle(
                self._requests,
                target,
                _result(request, work, error=described(error)),
                settlement,
                work,
            )
        except MailboxError as trouble:
            self._events.emit(
                ReplyFailed(
                    loop=self._name, request_id=request.request_id, error=described(trouble)
                )
            )

    def _is_final(self, work: WorkContext, settlement: Settlement) -> bool:
        is_last = work.leased.failures + 1 >= self._requests.backend.limits.max_failures
        return settlement.outcome is Outcome.DEAD or (
            settlement.outcome is Outcome.FAILED and is_last
        )

    # --- answers ---

    def _target(self, work: WorkContext) -> Mailbox[Any] | None:
        name = work.leased.item.reply_to
        return self._responses if name is None else self._requests.route(name)

    def _answer(
        self, target: Mailbox[Any], result: MainLoopResult[Any], done: Settlement, work: WorkContext
    ) -> Answer:
        """Send the answer and settle. If it cannot be sent, the message comes back after a
        while: that is nobody's fault.
        """
        if work.lease_lost:
            return Settlement(done.claim, Outcome.BACK)
        try:
            return answer_and_settle(self._requests, target, result, done, work)
        except _UNSENDABLE:
            raise
        except MailboxError as error:
            self._events.emit(
                ReplyFailed(loop=self._name, request_id=result.request_id, error=described(error))
            )
            return Settlement(
                done.claim, Outcome.BACK, delay=self._retry.delay(1, spread=random_spread())
            )


def _result(
    request: MainLoopRequest[Any],
    work: WorkContext,
    *,
    output: Any = None,
    error: str | None = None,
) -> MainLoopResult[Any]:
    return MainLoopResult(
        request.request_id, output, error, attempt=work.attempt, trace=request.trace
    )
