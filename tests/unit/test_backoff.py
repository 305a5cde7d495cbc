from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.backoff import Backoff, BackoffPolicy, random_spread

policies = st.builds(
    BackoffPolicy,
    initial=st.just(0.0) | st.floats(0.001, 10),
    factor=st.floats(1, 10),
    cap=st.floats(10, 1000),
    jitter=st.floats(0, 1),
)
spreads = st.floats(-1, 1)


def waits(n: int, policy: BackoffPolicy | None = None) -> list[float]:
    backoff = Backoff(policy or BackoffPolicy())
    return [backoff.failed(lasted=0) for _ in range(n)]


def test_the_first_wait_is_the_initial_one_and_then_it_doubles_up_to_the_cap() -> None:
    assert [1, 2, 4, 8, 16, 30, 30] == waits(7)


def test_an_initial_wait_of_nothing_never_grows() -> None:
    policy = BackoffPolicy(initial=0, cap=0)

    assert [0, 0, 0] == [policy.delay(failures) for failures in (1, 2, 5000)]
    assert 0 == BackoffPolicy(initial=0).delay(5000)


def test_another_policy_gives_other_waits() -> None:
    assert [10, 30, 90, 100] == waits(4, BackoffPolicy(initial=10, factor=3, cap=100))


def test_a_stable_run_makes_the_next_failure_the_first() -> None:
    backoff = Backoff(BackoffPolicy())
    backoff.failed(lasted=0)
    backoff.failed(lasted=0)

    assert (1, 1) == (backoff.failed(lasted=60.1), backoff.failures)


def test_a_run_of_exactly_the_stable_time_is_not_stable_yet() -> None:
    backoff = Backoff(BackoffPolicy())
    backoff.failed(lasted=0)

    assert (2, 2) == (backoff.failed(lasted=60), backoff.failures)


def test_a_success_forgets_the_failures() -> None:
    backoff = Backoff(BackoffPolicy(), failures=4)
    backoff.succeeded()

    assert (0, 1) == (backoff.failures, backoff.failed(lasted=0))


def test_without_a_failure_there_is_no_wait() -> None:
    assert 0 == BackoffPolicy().delay(0)


@pytest.mark.parametrize(("spread", "wait"), [(-1, 3), (-0.5, 3.5), (0, 4), (1, 5)])
def test_the_jitter_is_a_fraction_of_the_wait(spread: float, wait: float) -> None:
    assert wait == BackoffPolicy(jitter=0.25).delay(3, spread=spread)


def test_at_the_cap_the_spread_still_goes_downwards_but_not_up() -> None:
    policy = BackoffPolicy(jitter=0.25, cap=60)

    assert [45, 60, 60] == [policy.delay(50, spread=spread) for spread in (-1, 0, 1)]


def test_the_jitter_comes_from_the_source_it_was_given_and_is_drawn_for_each_wait() -> None:
    drawn = iter([1.0, -1.0])
    backoff = Backoff(BackoffPolicy(jitter=0.5), spread=lambda: next(drawn))

    assert [1.5, 1.0] == [backoff.failed(lasted=0), backoff.failed(lasted=0)]


def test_a_policy_without_jitter_draws_nothing() -> None:
    backoff = Backoff(BackoffPolicy(), spread=lambda: pytest.fail("it was asked"))

    assert 1 == backoff.failed(lasted=0)


def test_a_policy_with_jitter_spreads_by_default() -> None:
    policy = BackoffPolicy(initial=10, jitter=0.5)
    drawn = {Backoff(policy).failed(lasted=0) for _ in range(50)}

    assert len(drawn) > 1
    assert all(5 <= wait <= 15 for wait in drawn)


def test_the_random_spread_falls_on_both_sides() -> None:
    drawn = [random_spread() for _ in range(200)]

    assert -1 <= min(drawn) < 0 < max(drawn) <= 1


@given(policy=policies, failures=st.integers(0, 100_000), spread=spreads)
def test_no_wait_ever_passes_the_cap_or_falls_below_zero(
    policy: BackoffPolicy, failures: int, spread: float
) -> None:
    assert 0 <= policy.delay(failures, spread=spread) <= policy.cap


@given(policy=policies, failures=st.integers(1, 10_000), spread=spreads)
def test_one_more_failure_never_shortens_the_wait(
    policy: BackoffPolicy, failures: int, spread: float
) -> None:
    assert policy.delay(failures, spread=spread) <= policy.delay(failures + 1, spread=spread)


@pytest.mark.parametrize("failures", [1025, 5000, 10**9])
def test_any_number_of_failures_has_a_wait(failures: int) -> None:
    assert [30, 30, 1] == [BackoffPolicy(factor=factor).delay(failures) for factor in (2, 10, 1)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("initial", bad) for bad in (-1, nan, inf)],
        *[("factor", bad) for bad in (0, 0.9, -2, nan, inf)],
        *[("cap", bad) for bad in (0, 0.5, -1, nan, inf)],
        *[("jitter", bad) for bad in (-0.1, 1.1, nan)],
        *[("stable_after", bad) for bad in (-1, nan)],
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_the_name_of_its_field(
    field: str, value: float
) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*, not {value}$"):
        BackoffPolicy(**{field: value})


@pytest.mark.parametrize("spread", [-1.01, 1.01, nan])
def test_a_spread_outside_the_jitter_is_refused(spread: float) -> None:
    with pytest.raises(ValueError, match=r"^spread must be"):
        BackoffPolicy(jitter=1).delay(1, spread=spread)
