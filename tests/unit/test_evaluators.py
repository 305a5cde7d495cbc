"""Scores and evaluators: what counts as good, how several are put together, and what is no
evaluator.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import UsageError
from longwatch.evals import Score, all_of, any_of, contains, exact_match
from longwatch.evals.evaluators import Evaluator, evaluate, validate_evaluator


class Share(float):
    """As libraries of numbers have them: a float that JSON does not know."""

    __slots__ = ()


def evaluator_returning(value: float, *, passed: bool, reason: str = "") -> Evaluator:
    """An evaluator with a mind of its own."""
    return lambda _output, _expected: Score(value, passed, reason)


GOOD, BAD, WORSE = (
    evaluator_returning(1.0, passed=True),
    evaluator_returning(0.5, passed=False, reason="bad"),
    evaluator_returning(0.0, passed=False, reason="worse"),
)


# --- scores ---


@given(st.floats(0, 1))
def test_a_score_is_a_share_that_survives_json(value: float) -> None:
    score = Score(value, passed=value > 0.5, reason="so")
    assert score == msgspec.json.decode(msgspec.json.encode(score), type=Score)


@pytest.mark.parametrize("value", [0, 1, Share(0.5)])
def test_any_number_becomes_a_plain_float(value: float) -> None:
    score = Score(value, passed=True)
    assert (float, float(value)) == (type(score.value), score.value)


@pytest.mark.parametrize("value", [-0.01, 1.01, 2, float("nan"), float("inf"), True, None, "0.5"])
def test_a_value_that_is_no_share_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^the value of a score is a number from 0 to 1, not "):
        Score(value, passed=True)


@pytest.mark.parametrize(
    ("passed", "reason"), [(1, ""), (None, ""), ("yes", ""), (True, None), (False, 3)]
)
def test_a_score_that_could_not_be_read_back_is_refused(passed: Any, reason: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^a score has passed, True or False, and its reason is text; not "
    ):
        Score(1.0, passed, reason)


# --- the evaluators that are there ---


@pytest.mark.parametrize(
    ("output", "expected"), [(1, 1), ("a", "a"), ({"a": [1]}, {"a": [1]}), (None, None), (1, 1.0)]
)
def test_equal_is_an_exact_match(output: Any, expected: Any) -> None:
    assert Score(1.0, passed=True) == exact_match(output, expected)


def test_what_is_different_is_told() -> None:
    assert Score(0.0, passed=False, reason="expected 'Paris', got 'paris'") == exact_match(
        "paris", "Paris"
    )


def test_a_long_output_is_told_by_its_beginning() -> None:
    reason = exact_match("x" * 10_000, 1).reason
    assert f"expected 1, got {repr('x' * 10_000)[:200]}…" == reason


@pytest.mark.parametrize(
    ("output", "expected"),
    [("It is Paris.", "Paris"), (["a", "b"], "b"), ({"key": 1}, "key"), ("anything", "")],
)
def test_a_part_is_contained(output: Any, expected: Any) -> None:
    assert Score(1.0, passed=True) == contains(output, expected)


@pytest.mark.parametrize(
    ("output", "expected", "reason"),
    [
        ("It is Rome.", "Paris", "'Paris' is not in 'It is Rome.'"),
        ([1, 2], 3, "3 is not in [1, 2]"),
        (5, 5, "5 cannot be in an output of type int"),
        ("5 apples", 5, "5 cannot be in an output of type str"),
        (None, "a", "'a' cannot be in an output of type NoneType"),
    ],
)
def test_what_is_not_contained_is_told(output: Any, expected: Any, reason: str) -> None:
    assert Score(0.0, passed=False, reason=reason) == contains(output, expected)


# --- several as one ---


def test_all_of_passes_when_all_do_with_the_mean_of_their_values() -> None:
    assert Score(0.75, passed=True) == all_of(GOOD, evaluator_returning(0.5, passed=True))(0, 0)


def test_all_of_tells_the_reasons_of_those_that_did_not_pass() -> None:
    fine = evaluator_returning(1.0, passed=True, reason="fine")
    assert Score(0.5, passed=False, reason="bad; worse") == all_of(fine, BAD, WORSE)(0, 0)


def test_any_of_passes_when_one_does_with_the_best_value() -> None:
    assert Score(1.0, passed=True) == any_of(BAD, GOOD)(0, 0)
    assert Score(0.9, passed=True) == any_of(
        evaluator_returning(0.9, passed=False), evaluator_returning(0.4, passed=True)
    )(0, 0)


def test_any_of_tells_the_reasons_of_all_when_none_passed() -> None:
    assert Score(0.5, passed=False, reason="worse; bad") == any_of(WORSE, BAD)(0, 0)


def test_combinations_can_be_combined() -> None:
    judge = all_of(contains, any_of(exact_match, all_of(GOOD)))
    assert Score(1.0, passed=True) == judge("ab", "a")
    assert not all_of(contains, any_of(exact_match, BAD))("ab", "a").passed


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=5))
def test_a_combination_is_between_its_parts(parts: list[tuple[float, bool]]) -> None:
    judges = [evaluator_returning(value, passed=passed) for value, passed in parts]
    both, either = all_of(*judges)(0, 0), any_of(*judges)(0, 0)
    assert (all(passed for _, passed in parts), any(passed for _, passed in parts)) == (
        both.passed,
        either.passed,
    )
    assert max(value for value, _ in parts) == either.value >= both.value - 1e-9


def test_the_parts_are_given_what_the_whole_is_given() -> None:
    given_to: list[tuple[Any, Any]] = []

    def spy(output: Any, expected: Any) -> Score:
        given_to.append((output, expected))
        return Score(1.0, passed=True)

    all_of(spy, any_of(spy))("out", "exp")
    assert [("out", "exp")] * 2 == given_to


# --- what is no evaluator ---


@pytest.mark.parametrize("combinator", [all_of, any_of])
def test_a_combination_of_nothing_is_refused(combinator: Any) -> None:
    with pytest.raises(
        UsageError, match=rf"^{combinator.__name__}\(\) needs at least one evaluator$"
    ):
        combinator()


def one_argument(output: Any) -> Score:
    raise AssertionError


def three_arguments(output: Any, expected: Any, more: Any) -> Score:
    raise AssertionError


async def awaited(output: Any, expected: Any) -> Score:
    raise AssertionError


@pytest.mark.parametrize(
    ("evaluator", "problem"),
    [
        (None, "an evaluator is a function of (output, expected) that returns a Score, not None"),
        (
            "exact_match",
            (
                "an evaluator is a function of (output, expected) that returns a Score, not "
                "'exact_match'"
            ),
        ),
        (
            GOOD(0, 0),
            "an evaluator is a function of (output, expected) that returns a Score, not Score(",
        ),
        (
            one_argument,
            (
                "evaluator one_argument cannot be called with (output, expected): too many "
                "positional arguments"
            ),
        ),
        (
            three_arguments,
            (
                "evaluator three_arguments cannot be called with (output, expected): missing a "
                "required argument: 'more'"
            ),
        ),
        (awaited, "evaluator awaited is async, and no caller awaits it; write it with def"),
    ],
)
def test_what_cannot_be_an_evaluator_is_told_before_it_is_called(
    evaluator: Any, problem: str
) -> None:
    for refusing in (validate_evaluator, all_of, any_of):
        with pytest.raises(UsageError) as refused:
            refusing(evaluator)
        assert problem == str(refused.value)[: len(problem)]


@pytest.mark.parametrize("evaluator", [exact_match, GOOD, all_of(GOOD), max])
def test_whatever_takes_two_things_may_be_one(evaluator: Any) -> None:
    validate_evaluator(evaluator)


@pytest.mark.parametrize(
    ("said", "kind"), [(1.0, "float"), (True, "bool"), (None, "NoneType"), ((1.0, True), "tuple")]
)
def test_an_evaluator_that_returns_no_score_is_named(said: Any, kind: str) -> None:
    def judge(_output: Any, _expected: Any) -> Any:
        return said

    for each in (judge, all_of(judge), any_of(GOOD, judge)):
        with pytest.raises(
            UsageError,
            match=rf"^evaluator \S+judge returned {kind}, not a Score; write: return Score\(",
        ):
            evaluate(each, 0, 0)
