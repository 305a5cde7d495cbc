"""What became of one sample."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Any

import msgspec

from longwatch.evals.scoring import Score
from longwatch.runtime.messages import MainLoopResult


class Ended(StrEnum):
    """How the work on a sample ended."""

    SCORED = auto()
    ERROR = auto()  # the loop or the evaluator raised, at every try
    CRASHED = auto()  # the process died in it, or hung and was killed, at every try


class EvalResult(msgspec.Struct, frozen=True):
    """One sample's result; without a score there is an error."""

    sample_id: str
    ended: Ended
    score: Score | None = None
    error: str | None = None
    output: Any = None
    seconds: float | None = None
    """How long the loop took, the evaluator not included."""
    attempt: int = 1

    @property
    def passed(self) -> bool:
        return self.score is not None and self.score.passed


def read_result(body: Any) -> EvalResult | None:
    """The result in the body of an answer; None for one that is no answer of an EvalLoop.

    An answer with an error has no sample in it but for its request id, which is that of the sample.
    """
    try:
        answer: MainLoopResult[EvalResult] = msgspec.convert(body, MainLoopResult[EvalResult])
    except (msgspec.ValidationError, ValueError):
        return None
    if answer.output is not None:
        return answer.output
    return EvalResult(
        answer.request_id, Ended.ERROR, error=answer.error or "no output", attempt=answer.attempt
    )
