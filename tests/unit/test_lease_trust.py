from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from longwatch.core.lease import LeasePolicy
from longwatch.engine.lease_trust import LeaseTrust
from longwatch.host.beatpage import BeatPage, ChildBeatPage, read_page
from longwatch.testing import FakeClock

POLICY = LeasePolicy(15.0)
TRUST = 12.0
START = 1000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(monotonic=START)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[BeatPage]:
    made = BeatPage(tmp_path / "page", 1)
    yield made
    made.close()


@pytest.fixture
def parent(page: BeatPage) -> Iterator[ChildBeatPage]:
    opened = ChildBeatPage(str(page.path))
    yield opened
    opened.close()


@pytest.fixture
def self_renewed(clock: FakeClock, page: BeatPage) -> LeaseTrust:
    return LeaseTrust(7, POLICY, clock=clock, page=page)


@pytest.fixture
def parent_renewed(clock: FakeClock, page: BeatPage) -> LeaseTrust:
    return LeaseTrust(7, POLICY, clock=clock, page=page, is_renewed_by_parent=True)


def shown(page: BeatPage) -> float:
    reading = read_page(str(page.path))
    assert reading is not None
    return reading.trusted_until


# --- alone ---


def test_nothing_is_trusted_before_the_first_grant(self_renewed: LeaseTrust) -> None:
    assert (False, False) == (self_renewed.is_trusted(START), self_renewed.is_lapsed)


def test_a_grant_is_trusted_for_its_share_of_the_lease_and_the_page_says_so(
    self_renewed: LeaseTrust, page: BeatPage
) -> None:
    self_renewed.record_grant(START)
    assert (True, False) == (
        self_renewed.is_trusted(START + TRUST - 0.01),
        self_renewed.is_trusted(START + TRUST),
    )
    assert START + TRUST == self_renewed.trusted_until == shown(page)


def test_a_late_answer_to_an_older_renewal_shortens_nothing(
    self_renewed: LeaseTrust, clock: FakeClock
) -> None:
    clock.advance(5.0)
    self_renewed.record_grant(START + 5.0)
    self_renewed.record_grant(START + 2.0)
    assert START + 5.0 + TRUST == self_renewed.trusted_until


def test_a_grant_whose_trust_is_over_when_it_is_heard_of_mends_nothing(
    self_renewed: LeaseTrust, clock: FakeClock
) -> None:
    self_renewed.mark_lapsed()
    clock.advance(TRUST)
    self_renewed.record_grant(START)
    assert (True, False) == (self_renewed.is_lapsed, self_renewed.is_trusted(START + TRUST))


def test_its_end_is_noticed_once_shown_and_mended_by_the_next_grant(
    self_renewed: LeaseTrust, clock: FakeClock, page: BeatPage
) -> None:
    self_renewed.record_grant(START)
    clock.advance(TRUST)
    assert self_renewed.is_expired(clock.monotonic())
    self_renewed.mark_lapsed()
    assert (False, True, -inf) == (
        self_renewed.is_expired(clock.monotonic()),
        self_renewed.is_lapsed,
        shown(page),
    )
    self_renewed.record_grant(clock.monotonic())
    assert (False, True) == (self_renewed.is_lapsed, self_renewed.is_trusted(clock.monotonic()))


def test_alone_nobody_elses_word_on_the_page_counts(
    self_renewed: LeaseTrust, clock: FakeClock, parent: ChildBeatPage
) -> None:
    self_renewed.record_grant(START)
    parent.trust_until(START + 100.0)
    self_renewed.refresh()
    assert (START + TRUST, False) == (
        self_renewed.trusted_until,
        self_renewed.is_trusted(START + TRUST),
    )


# --- kept by a parent ---


def test_what_a_parent_has_renewed_is_trusted_at_once_whatever_holds_up_our_threads(
    parent_renewed: LeaseTrust, parent: ChildBeatPage
) -> None:
    parent_renewed.record_grant(START)
    parent.trust_until(START + 5.0 + TRUST)
    assert (True, False) == (
        parent_renewed.is_trusted(START + TRUST + 4.9),
        parent_renewed.is_trusted(START + TRUST + 5.0),
    )


def test_refreshing_takes_over_the_moment_at_which_the_parent_asked(
    parent_renewed: LeaseTrust, parent: ChildBeatPage, clock: FakeClock
) -> None:
    parent_renewed.record_grant(START)
    clock.advance(6.0)
    parent.trust_until(START + 5.0 + TRUST)
    parent_renewed.refresh()
    assert (START + 5.0, START + 5.0 + TRUST) == (
        parent_renewed.lease.granted_at,
        parent_renewed.trusted_until,
    )


def test_a_renewal_by_the_parent_mends_what_was_broken(
    parent_renewed: LeaseTrust, parent: ChildBeatPage, clock: FakeClock
) -> None:
    parent_renewed.record_grant(START)
    clock.advance(TRUST)
    parent_renewed.refresh()
    parent_renewed.mark_lapsed()
    assert (True, False) == (parent_renewed.is_lapsed, parent_renewed.is_trusted(clock.monotonic()))
    parent.trust_until(clock.monotonic() + TRUST)
    parent_renewed.refresh()
    assert (False, True) == (parent_renewed.is_lapsed, parent_renewed.is_trusted(clock.monotonic()))


def test_its_own_grant_never_takes_back_what_the_parent_has_written(
    parent_renewed: LeaseTrust, parent: ChildBeatPage, page: BeatPage
) -> None:
    parent.trust_until(START + 50.0)
    parent_renewed.record_grant(START)
    assert START + 50.0 == shown(page)
    parent_renewed.mark_lapsed()
    assert START + 50.0 == shown(page)


def test_its_own_grant_is_shown_when_it_is_the_later_one(
    parent_renewed: LeaseTrust, parent: ChildBeatPage, page: BeatPage
) -> None:
    parent.trust_until(START + 1.0)
    parent_renewed.record_grant(START)
    assert START + TRUST == shown(page)
