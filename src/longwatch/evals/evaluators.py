"""Scores, and the evaluators that compute them.

An evaluator is a callable that takes an output and the expected output, and returns a Score.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from longwatch.errors import UsageError


class Score(msgspec.Struct, frozen=True):
    """The score of one output: a value from 0 to 1, whether it passed, and the reason."""

    value: float
    passed: bool
    reason: str = ""

    def __post_init__(self) -> None:
        if not _is_fraction(self.value):
            raise ValueError(f"the value of a score is a number from 0 to 1, not {self.value!r}")
        if {type(self.passed), type(self.reason)} != {bool, str}:
            raise ValueError(
                f"a score has passed, True or False, and its reason is text; not "
                f"{self.passed!r} and {self.reason!r}"
            )
        msgspec.structs.force_setattr(
            self, "value", float(self.value)
        )  # floats of other libraries cannot be encoded


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_MAX_REPR_LENGTH = 200

Evaluator = Callable[[Any, Any], Score]


def exact_match(output: Any, expected: Any) -> Score:
    """Score 1 if output and expected output are equal, else 0."""
    same = bool(output == expected)
    return Score(
        float(same),
        same,
        "" if same else f"expected {_short_repr(expected)}, got {_short_repr(output)}",
    )


def contains(output: Any, expected: Any) -> Score:
    """Score 1 if the output contains the expected value, else 0: a substring, a list element, or an
    object key.
    """
    try:
        found = expected in output
    except TypeError:
        return Score(
            0.0,
            passed=False,
            reason=f"{_short_repr(expected)} cannot be in an output of type"
            f" {type(output).__name__}",
        )
    return Score(
        float(found),
        found,
        "" if found else f"{_short_repr(expected)} is not in {_short_repr(output)}",
    )


def all_of(*evaluators: Evaluator) -> Evaluator:
    """Combine evaluators: passed if all pass. The value is their mean, the reasons are those of the
    failed ones.
    """
    _validate_evaluators("all_of", evaluators)

    def judge(output: Any, expected: Any) -> Score:
        scores = [evaluate(each, output, expected) for each in evaluators]
        passed = all(score.passed for score in scores)
        mean = sum(score.value for score in scores) / len(scores)
        return Score(mean, passed, "" if passed else _reasons(scores))

    return judge


def any_of(*evaluators: Evaluator) -> Evaluator:
    """Combine evaluators: passed if one passes. The value is their maximum. If none passes, all
    reasons are kept.
    """
    _validate_evaluators("any_of", evaluators)

    def judge(output: Any, expected: Any) -> Score:
        scores = [evaluate(each, output, expected) for each in evaluators]
        passed = any(score.passed for score in scores)
        best = max(score.value for score in scores)
        return Score(best, passed, "" if passed else _reasons(scores))

    return judge


def validate_evaluator(evaluator: object) -> None:
    """Raise UsageError unless the evaluator can be called with (output, expected) and may return a
    Score.
    """
    if not callable(evaluator):
        raise UsageError(
            f"an evaluator is a function of (output, expected) that returns a Score, not "
            f"{evaluator!r}"
        )
    if inspect.iscoroutinefunction(evaluator):
        raise UsageError(
            f"evaluator {_evaluator_name(evaluator)} is async, and no caller awaits it; "
            f"write it with def"
        )
    try:
        inspect.signature(evaluator).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"evaluator {_evaluator_name(evaluator)} cannot be called with (output, "
            f"expected): {error}"
        ) from None
    except ValueError:
        pass  # written in C: it has no signature


def evaluate(evaluator: Evaluator, output: Any, expected: Any) -> Score:
    """Call an evaluator. Raises UsageError if it returns no Score."""
    score: object = evaluator(output, expected)
    if not isinstance(score, Score):
        returned = type(score).__name__
        raise UsageError(
            f"evaluator {_evaluator_name(evaluator)} returned {returned}, not a Score; write: "
            f"return "
            f"Score(value, passed, reason)"
        )
    return score


def _validate_evaluators(name: str, evaluators: tuple[Evaluator, ...]) -> None:
    if not evaluators:
        raise UsageError(f"{name}() needs at least one evaluator")
    for each in evaluators:
        validate_evaluator(each)


def _reasons(scores: list[Score]) -> str:
    return "; ".join(score.reason for score in scores if score.reason and not score.passed)


def _evaluator_name(evaluator: object) -> str:
    return str(getattr(evaluator, "__qualname__", None) or repr(evaluator))


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_REPR_LENGTH else f"{text[:_MAX_REPR_LENGTH]}…"
