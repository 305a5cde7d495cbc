from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from longwatch.core.lease import LeasePolicy
from longwatch.host.beatpage import BeatPage, ForeignPage, read_page
from longwatch.testing import FakeClock
from longwatch.work.tenure import Tenure

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
def parent(page: BeatPage) -> Iterator[ForeignPage]:
    opened = ForeignPage(str(page.path))
    yield opened
    opened.close()


@pytest.fixture
def alone(clock: FakeClock, page: BeatPage) -> Tenure:
    return Tenure(7, POLICY, clock=clock, page=page)


@pytest.fixture
def kept(clock: FakeClock, page: BeatPage) -> Tenure:
    return Tenure(7, POLICY, clock=clock, page=page, kept=True)


def shown(page: BeatPage) -> float:
    reading = read_page(str(page.path))
    assert reading is not None
    return reading.trusted_until


# --- alone ---


def test_nothing_is_trusted_before_the_first_grant(alone: Tenure) -> None:
    assert (False, False) == (alone.is_trusted(START), alone.broken)


def test_a_grant_is_trusted_for_its_share_of_the_lease_and_the_page_says_so(
    alone: Tenure, page: BeatPage
) -> None:
    alone.granted(START)
    assert (True, False) == (
        alone.is_trusted(START + TRUST - 0.01),
        alone.is_trusted(START + TRUST),
    )
    assert START + TRUST == alone.trusted_until == shown(page)


def test_a_late_answer_to_an_older_renewal_shortens_nothing(
    alone: Tenure, clock: FakeClock
) -> None:
    clock.advance(5.0)
    alone.granted(START + 5.0)
    alone.granted(START + 2.0)
    assert START + 5.0 + TRUST == alone.trusted_until


def test_a_grant_whose_trust_is_over_when_it_is_heard_of_mends_nothing(
    alone: Tenure, clock: FakeClock
) -> None:
    alone.end()
    clock.advance(TRUST)
    alone.granted(START)
    assert (True, False) == (alone.broken, alone.is_trusted(START + TRUST))


def test_its_end_is_noticed_once_shown_and_mended_by_the_next_grant(
    alone: Tenure, clock: FakeClock, page: BeatPage
) -> None:
    alone.granted(START)
    clock.advance(TRUST)
    assert alone.has_ended(clock.monotonic())
    alone.end()
    assert (False, True, -inf) == (alone.has_ended(clock.monotonic()), alone.broken, shown(page))
    alone.granted(clock.monotonic())
    assert (False, True) == (alone.broken, alone.is_trusted(clock.monotonic()))


def test_alone_nobody_elses_word_on_the_page_counts(
    alone: Tenure, clock: FakeClock, parent: ForeignPage
) -> None:
    alone.granted(START)
    parent.trust_until(START + 100.0)
    alone.refresh()
    assert (START + TRUST, False) == (alone.trusted_until, alone.is_trusted(START + TRUST))


# --- kept by a parent ---


def test_what_a_parent_has_renewed_is_trusted_at_once_whatever_holds_up_our_threads(
    kept: Tenure, parent: ForeignPage
) -> None:
    kept.granted(START)
    parent.trust_until(START + 5.0 + TRUST)
    assert (True, False) == (
        kept.is_trusted(START + TRUST + 4.9),
        kept.is_trusted(START + TRUST + 5.0),
    )


def test_refreshing_takes_over_the_moment_at_which_the_parent_asked(
    kept: Tenure, parent: ForeignPage, clock: FakeClock
) -> None:
    kept.granted(START)
    clock.advance(6.0)
    parent.trust_until(START + 5.0 + TRUST)
    kept.refresh()
    assert (START + 5.0, START + 5.0 + TRUST) == (kept.lease.granted_at, kept.trusted_until)


def test_a_renewal_by_the_parent_mends_what_was_broken(
    kept: Tenure, parent: ForeignPage, clock: FakeClock
) -> None:
    kept.granted(START)
    clock.advance(TRUST)
    kept.refresh()
    kept.end()
    assert (True, False) == (kept.broken, kept.is_trusted(clock.monotonic()))
    parent.trust_until(clock.monotonic() + TRUST)
    kept.refresh()
    assert (False, True) == (kept.broken, kept.is_trusted(clock.monotonic()))


def test_its_own_grant_never_takes_back_what_the_parent_has_written(
    kept: Tenure, parent: ForeignPage, page: BeatPage
) -> None:
    parent.trust_until(START + 50.0)
    kept.granted(START)
    assert START + 50.0 == shown(page)
    kept.end()
    assert START + 50.0 == shown(page)


def test_its_own_grant_is_shown_when_it_is_the_later_one(
    kept: Tenure, parent: ForeignPage, page: BeatPage
) -> None:
    parent.trust_until(START + 1.0)
    kept.granted(START)
    assert START + TRUST == shown(page)
