from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.lease import Lease, LeasePolicy, RenewalSchedule

UNDER_A_PARENT = LeasePolicy(15)


def lease(granted_at: float = 100.0, policy: LeasePolicy = UNDER_A_PARENT) -> Lease:
    return Lease(granted_at, policy)


@st.composite
def policies(draw: st.DrawFn) -> LeasePolicy:
    renew_at = draw(st.floats(0.01, 1 / 3))
    trust = draw(st.floats(2 * renew_at, 1, exclude_min=True, exclude_max=True))
    return LeasePolicy(draw(st.floats(0.1, 1e5)), renew_at=renew_at, trust=trust)


def test_a_lease_of_15_s_is_renewed_after_5_and_trusted_for_12() -> None:
    held, schedule = lease(100), RenewalSchedule(UNDER_A_PARENT)

    assert [105, 112, 115] == pytest.approx(
        [schedule.next_renewal(held), held.trusted_until, held.expires_at]
    )


@pytest.mark.parametrize(
    ("age", "stage"),
    [
        (0, "held"),
        (4.99, "held"),
        (5, "due"),
        (11.99, "due"),
        (12, "not trusted"),
        (1000, "not trusted"),
    ],
)
def test_a_lease_is_first_held_then_due_then_not_trusted(age: float, stage: str) -> None:
    schedule, held = RenewalSchedule(UNDER_A_PARENT), lease(0)
    stages = {(False, True): "held", (True, True): "due", (True, False): "not trusted"}
    assert stage == stages[schedule.is_due(held, age), held.is_trusted(age)]


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    assert lease(105) == lease(100).renewed(105)


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
    with pytest.raises(ValueError, match=r"^lease_seconds must be"):
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


# --- the schedule ---


@given(
    policy=policies(), early=st.floats(0, 0.9), jitter=st.floats(0, 1), granted_at=st.floats(0, 1e6)
)
def test_a_loop_that_wakes_up_as_planned_finds_the_renewal_due_and_trust_not_ended(
    policy: LeasePolicy, early: float, jitter: float, granted_at: float
) -> None:
    schedule, held = RenewalSchedule(policy, early=early), lease(granted_at, policy)
    moment = schedule.next_renewal(held, jitter)

    assert schedule.is_due(held, moment)
    assert held.is_trusted(moment)
    assert not schedule.is_due(held, granted_at + schedule.interval(0.0) * 0.99 - 1e-6)


def test_renewals_are_spread_over_the_early_part_of_the_interval() -> None:
    schedule = RenewalSchedule(UNDER_A_PARENT, early=0.2)

    assert [4.0, 4.5, 5.0] == pytest.approx([schedule.interval(each) for each in (0.0, 0.5, 1.0)])


def test_a_holder_whose_parent_renews_waits_longer_than_its_policy_says() -> None:
    schedule = RenewalSchedule(UNDER_A_PARENT, renew_seconds=10.8, early=0.2)

    assert not schedule.is_due(lease(0), 8.6)
    assert schedule.is_due(lease(0), 8.64)
    assert 10.8 == schedule.next_renewal(lease(0))


def test_a_failed_renewal_stays_due_and_is_retried_after_the_backoff() -> None:
    schedule, held = RenewalSchedule(UNDER_A_PARENT), lease(0)
    schedule.failed(5.0, retry_in=0.5)

    assert schedule.is_due(held, 5.2)
    assert [True, False] == [schedule.is_backing_off(now) for now in (5.49, 5.5)]
    assert 5.5 == schedule.next_renewal(held)
    schedule.succeeded()
    assert not schedule.is_backing_off(5.2)
    assert 15.0 == pytest.approx(schedule.next_renewal(held.renewed(10.0)))
