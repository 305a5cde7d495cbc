"""A loop that runs another loop on samples and has its outputs scored."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from longwatch.core.error_text import describe_error
from longwatch.errors import PermanentError, SerializationError, UsageError
from longwatch.evals.dataset import Sample
from longwatch.evals.evaluators import Evaluator, evaluate, validate_evaluator
from longwatch.evals.results import EvalResult, SampleEnd
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.main_loop import MainLoop


class EvalLoop(MainLoop[Sample, EvalResult]):
    """Runs `handle` of another loop on each sample and scores the output with an evaluator.

    It is a loop like any other: it has its own mailbox, leases and heartbeat, and can share a group
    with other loops. It calls `handle` of the loop under test and never touches the mailboxes of
    that loop. An exception of `handle` is a failure of the sample, which is retried as often as the
    mailbox allows. An input that the loop cannot decode, an evaluator that raises, and an evaluator
    that returns no Score are permanent errors.
    """

    def __init__(
        self,
        *,
        loop: MainLoop[Any, Any],
        evaluator: Evaluator,
        requests: Mailbox[Any],
        **settings: Any,
    ) -> None:
        if not isinstance(loop, MainLoop):
            raise UsageError(f"EvalLoop needs a MainLoop to measure, not {loop!r}")
        validate_evaluator(evaluator)
        self.loop = loop
        self.evaluator = evaluator
        super().__init__(requests=requests, **settings)

    def handle(self, request: Sample, context: MainLoopContext) -> Any:
        started_at = self.clock.monotonic()
        output = self.loop.handle(self._decode_input(request), context)
        if inspect.isawaitable(output):
            return self._await_output(request, output, context, started_at)
        return self._scored_result(request, output, context, started_at)

    @property
    def is_async(self) -> bool:
        return self.loop.is_async

    def _decode_input(self, sample: Sample) -> Any:
        try:
            return self.loop.decode_request(sample.input)
        except SerializationError as error:
            raise PermanentError(
                f"{type(self.loop).__name__} cannot take the input: {error}"
            ) from None

    async def _await_output(
        self, sample: Sample, output: Awaitable[Any], context: MainLoopContext, started_at: float
    ) -> EvalResult:
        return self._scored_result(sample, await output, context, started_at)

    def _scored_result(
        self, sample: Sample, output: Any, context: MainLoopContext, started_at: float
    ) -> EvalResult:
        seconds = self.clock.monotonic() - started_at
        context.beat()
        try:
            score = evaluate(self.evaluator, output, sample.expected)
        except Exception as error:
            raise PermanentError(f"the evaluator failed: {describe_error(error)}") from error
        return EvalResult(
            sample.id,
            SampleEnd.SCORED,
            score=score,
            output=output,
            seconds=seconds,
            attempt=context.attempt,
        )
