"""Which lapsed leases a sweeper reclaims at once, and which after one renewal interval."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from longwatch.store.lapse_guard import LapsedOwner, LapseGuard

RENEW = 10.0


def renewing(*ids: int, **facts: bool) -> list[LapsedOwner]:
    return [LapsedOwner(owner, RENEW, **facts) for owner in ids]


def look(guard: LapseGuard, lapsed: Iterable[LapsedOwner], *, holders: int, now: float) -> set[int]:
    return set(guard.reclaimable(lapsed, renewing_holders=holders, now=now))


def test_one_owner_of_three_that_has_lapsed_is_reclaimed_at_once() -> None:
    assert {1} == look(LapseGuard(), renewing(1), holders=3, now=0.0)


def test_owners_that_lapse_together_wait_for_one_renewal_interval() -> None:
    """All of them are gone: their rows come back after the interval, not before."""
    guard, gone = LapseGuard(), renewing(1, 2, 3)
    looks = {now: look(guard, gone, holders=3, now=now) for now in (5.0, 10.0, 14.9, 15.0)}
    assert {5.0: set(), 10.0: set(), 14.9: set(), 15.0: {1, 2, 3}} == looks


def test_half_of_the_owners_is_not_more_than_half() -> None:
    assert {1, 2} == look(LapseGuard(), renewing(1, 2), holders=4, now=0.0)
    assert set() == look(LapseGuard(), renewing(1, 2), holders=3, now=0.0)


def test_the_only_owner_of_a_store_is_reclaimed_at_once_unless_it_is_seen_alive() -> None:
    assert {1} == look(LapseGuard(), renewing(1), holders=1, now=0.0)
    guard = LapseGuard()
    assert set() == look(guard, renewing(1, is_alive=True), holders=1, now=0.0)
    assert {1} == look(guard, renewing(1, is_alive=True), holders=1, now=RENEW)


def test_an_owner_that_is_dead_or_does_not_renew_never_waits() -> None:
    dead, bare = LapsedOwner(1, RENEW, is_dead=True), LapsedOwner(2, is_alive=True)
    assert {1, 2} == look(LapseGuard(), [dead, bare, *renewing(3, 4)], holders=3, now=0.0)


def test_the_first_owner_to_renew_does_not_cost_the_others_their_leases() -> None:
    """After a step of the clock the workers renew one after the other."""
    guard = LapseGuard()
    assert set() == look(guard, renewing(1, 2, 3), holders=3, now=0.0)
    assert set() == look(guard, renewing(3), holders=3, now=6.0)
    assert set() == look(guard, [], holders=3, now=9.0)


def test_an_owner_that_has_renewed_and_lapses_again_waits_again() -> None:
    guard = LapseGuard()
    look(guard, renewing(1, 2), holders=2, now=0.0)
    look(guard, [], holders=2, now=5.0)
    assert set() == look(guard, renewing(1, 2), holders=2, now=100.0)
    assert {1, 2} == look(guard, renewing(1, 2), holders=2, now=100.0 + RENEW)


def test_a_look_at_the_first_second_after_boot_waits_like_any_other() -> None:
    guard = LapseGuard()
    assert set() == look(guard, renewing(1, 2), holders=2, now=0.0)
    assert set() == look(guard, renewing(1, 2), holders=2, now=1.0)


RENEW_SECONDS = {1: None, 2: 5.0, 3: 5.0, 4: 10.0, 5: 10.0}
OWNERS = st.builds(
    lambda owner, is_alive: LapsedOwner(owner, RENEW_SECONDS[owner], is_alive=is_alive),
    st.sampled_from(sorted(RENEW_SECONDS)),
    st.booleans(),
)
LOOKS = st.lists(
    st.tuples(st.lists(OWNERS, unique_by=lambda owner: owner.id), st.integers(0, 3)), max_size=20
)


@given(LOOKS)
def test_no_owner_waits_longer_than_its_interval_and_nothing_else_is_remembered(
    looks: list[tuple[list[LapsedOwner], int]],
) -> None:
    guard, now = LapseGuard(), 0.0
    lapsed_since: dict[int, float] = {}
    for lapsed, others in looks:
        now += 3.0
        lapsed_since = {owner.id: lapsed_since.get(owner.id, now) for owner in lapsed}
        ready = look(guard, lapsed, holders=len(lapsed) + others, now=now)
        assert ready <= {owner.id for owner in lapsed}
        assert len(guard) <= len(lapsed)
        for owner in lapsed:
            waited = now - lapsed_since[owner.id]
            assert owner.id in ready or waited < (owner.renew_seconds or 0.0)
