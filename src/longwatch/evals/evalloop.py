"""A loop that runs another loop on samples and has its outputs scored."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from longwatch.errors import PermanentError, SerializationError, UsageError
from longwatch.evals.dataset import Sample
from longwatch.evals.results import Ended, EvalResult
from longwatch.evals.scoring import Evaluator, require_evaluator, scored
from longwatch.mailbox.mailbox import Mailbox
from longwatch.runtime.context import MainLoopContext
from longwatch.runtime.mainloop import MainLoop


class EvalLoop(MainLoop[Sample, EvalResult]):
    """Gives each sample's input to the `handle` of `loop`, and what that returns to the evaluator.

    It is a loop like any other: own mailbox, leases and heartbeat, beside others in one group. The
    loop under test is called, not run: its own mailboxes are not touched. What it raises is a
    failure of the sample, tried again as often as the mailbox allows. An input that it does not
    take, an evaluator that raises or returns no Score: that never gets better, and is an error at
    once.
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
        require_evaluator(evaluator)
        self.loop = loop
        self.evaluator = evaluator
        super().__init__(requests=requests, **settings)

    def handle(self, request: Sample, context: MainLoopContext) -> Any:
        began = self.clock.monotonic()
        output = self.loop.handle(self._given(request), context)
        if inspect.isawaitable(output):
            return self._awaited(request, output, context, began)
        return self._result(request, output, context, began)

    def _given(self, sample: Sample) -> Any:
        try:
            return self.loop.read_request(sample.input)
        except SerializationError as error:
            raise PermanentError(
                f"the input is none that {type(self.loop).__name__} takes: {error}"
            ) from None

    async def _awaited(
        self, sample: Sample, output: Awaitable[Any], context: MainLoopContext, began: float
    ) -> EvalResult:
        return self._result(sample, await output, context, began)

    def _result(
        self, sample: Sample, output: Any, context: MainLoopContext, began: float
    ) -> EvalResult:
        seconds = self.clock.monotonic() - began
        context.beat()
        try:
            score = scored(self.evaluator, output, sample.expected)
        except Exception as error:
            raise PermanentError(
                f"the evaluator failed: {type(error).__name__}: {error}"
            ) from error
        return EvalResult(
            sample.id,
            Ended.SCORED,
            score=score,
            output=output,
            seconds=seconds,
            attempt=context.attempt,
        )
