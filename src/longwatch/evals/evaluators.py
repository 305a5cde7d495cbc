"""How good an output is: a score, and the evaluators that give it.

An evaluator is anything that takes an output and what was expected, and returns a Score.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from longwatch.errors import UsageError


class Score(msgspec.Struct, frozen=True):
    """A value from 0 to 1, whether that is good enough, and why it is what it is."""

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
        )  # other libraries have floats that cannot be sent


def _is_fraction(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


_MAX_REPR_LENGTH = 200

Evaluator = Callable[[Any, Any], Score]


def exact_match(output: Any, expected: Any) -> Score:
    """1 if both are equal."""
    same = bool(output == expected)
    return Score(
        float(same),
        same,
        "" if same else f"expected {_short_repr(expected)}, got {_short_repr(output)}",
    )


def contains(output: Any, expected: Any) -> Score:
    """1 if what is expected is in the output: a part of a text, an element of a list, a key of
    an object.
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
    """Passed when all of them are; the value is the mean of theirs, the reasons are those of the
    ones that are not.
    """
    _validate_evaluators("all_of", evaluators)

    def judge(output: Any, expected: Any) -> Score:
        scores = [evaluate(each, output, expected) for each in evaluators]
        passed = all(score.passed for score in scores)
        mean = sum(score.value for score in scores) / len(scores)
        return Score(mean, passed, "" if passed else _reasons(scores))

    return judge


def any_of(*evaluators: Evaluator) -> Evaluator:
    """Passed when one of them is; the value is the best of theirs, the reasons are those of all
    if none is.
    """
    _validate_evaluators("any_of", evaluators)

    def judge(output: Any, expected: Any) -> Score:
        scores = [evaluate(each, output, expected) for each in evaluators]
        passed = any(score.passed for score in scores)
        best = max(score.value for score in scores)
        return Score(best, passed, "" if passed else _reasons(scores))

    return judge


def validate_evaluator(evaluator: object) -> None:
    """UsageError for what cannot be called with an output and what was expected, or returns no
    Score for sure.
    """
    if not callable(evaluator):
        raise UsageError(
            f"an evaluator is a function of (output, expected) that returns a Score, not "
            f"{evaluator!r}"
        )
    if inspect.iscoroutinefunction(evaluator):
        raise UsageError(
            f"evaluator {_evaluator_name(evaluator)} is async, and nobody would await it; "
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
        pass  # written in C, and does not say what it takes


def evaluate(evaluator: Evaluator, output: Any, expected: Any) -> Score:
    """What an evaluator says; UsageError if that is no Score."""
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
