from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.lease import Lease, LeaseAction, LeasePolicy

UNDER_A_PARENT = LeasePolicy(15)


def lease(granted_at: float = 100.0, policy: LeasePolicy = UNDER_A_PARENT) -> Lease:
    return Lease("incarnation-1", 7, granted_at, policy)


@st.composite
def policies(draw: st.DrawFn) -> LeasePolicy:
    renew_at = draw(st.floats(0.01, 1 / 3))
    trust = draw(st.floats(2 * renew_at, 1, exclude_min=True, exclude_max=True))
    return LeasePolicy(draw(st.floats(0.1, 1e5)), renew_at=renew_at, trust=trust)


def test_a_lease_of_15_s_is_renewed_after_5_and_trusted_for_12() -> None:
    held = lease(100)

    assert [105, 112, 115] == pytest.approx(
        [held.next_renewal(), held.trusted_until, held.expires_at]
    )


@pytest.mark.parametrize(
    ("age", "verdict"),
    [
        (0, LeaseAction.HOLD),
        (4.99, LeaseAction.HOLD),
        (5, LeaseAction.RENEW),
        (10, LeaseAction.RENEW),
        (11.99, LeaseAction.RENEW),
        (12, LeaseAction.STEP_DOWN),
        (15, LeaseAction.STEP_DOWN),
        (1000, LeaseAction.STEP_DOWN),
    ],
)
def test_the_verdict_goes_from_hold_over_renew_to_step_down(
    age: float, verdict: LeaseAction
) -> None:
    assert verdict == lease(0).action(age)


def test_a_renewal_keeps_owner_and_term_and_counts_from_before_it_was_sent() -> None:
    assert Lease("incarnation-1", 7, 105, UNDER_A_PARENT) == lease(100).renewed(105)


def test_a_late_answer_to_an_older_renewal_shortens_nothing() -> None:
    assert lease(110) == lease(100).renewed(110).renewed(105)


@given(policy=policies(), granted_at=st.floats(0, 1e6))
def test_two_renewals_come_due_before_trust_ends_and_trust_ends_before_the_lease(
    policy: LeasePolicy, granted_at: float
) -> None:
    held = lease(granted_at, policy)
    step = policy.lease_seconds * policy.renew_at

    assert granted_at + 2 * step <= held.trusted_until <= held.expires_at
    assert 3 * step <= policy.lease_seconds * (1 + 1e-12)


@given(policy=policies(), now=st.floats(-10, 1e6))
def test_the_verdict_agrees_with_what_it_is_made_of(policy: LeasePolicy, now: float) -> None:
    held = lease(0, policy)
    expected = {
        (True, False): LeaseAction.HOLD,
        (True, True): LeaseAction.RENEW,
        (False, True): LeaseAction.STEP_DOWN,
    }

    assert expected[held.is_trusted(now), held.is_renewal_due(now)] == held.action(now)


@given(policy=policies(), sent=st.floats(0, 100), on_the_way=st.floats(0, 100))
def test_the_holder_never_trusts_longer_than_the_store_keeps_it(
    policy: LeasePolicy, sent: float, on_the_way: float
) -> None:
    the_store_gives_it_away_at = (sent + on_the_way) + policy.lease_seconds

    assert not lease(sent, policy).is_trusted(the_store_gives_it_away_at)


@given(policy=policies(), moments=st.lists(st.floats(0, 1e6), max_size=10))
def test_a_renewal_never_brings_the_end_of_trust_closer(
    policy: LeasePolicy, moments: list[float]
) -> None:
    held = lease(0, policy)
    for moment in moments:
        before, held = held, held.renewed(moment)
        assert before.trusted_until <= held.trusted_until


@pytest.mark.parametrize("duration", [0, -1, nan, inf])
def test_a_lease_without_an_end_or_a_length_is_refused(duration: float) -> None:
    with pytest.raises(ValueError, match=r"^duration must be"):
        LeasePolicy(duration)


@pytest.mark.parametrize("renew_at", [0, -0.1, 0.34, 0.9, nan])
def test_renewing_later_than_at_a_third_is_refused(renew_at: float) -> None:
    with pytest.raises(ValueError, match=r"^renew_at must be"):
        LeasePolicy(15, renew_at=renew_at)


@pytest.mark.parametrize("trust", [0, 0.5, 2 / 3, 1, 1.1, nan])
def test_trust_that_leaves_no_room_for_two_renewals_or_outlasts_the_lease_is_refused(
    trust: float,
) -> None:
    with pytest.raises(ValueError, match=r"^trust must be"):
        LeasePolicy(15, trust=trust)
