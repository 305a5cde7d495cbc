from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.engine.prefetch import MAX_PREFETCH, PREFETCH_SECONDS, Prefetch

durations = st.lists(st.floats(0.0, 2.0), min_size=20, max_size=200)


def after(slots: int, *ran: float) -> Prefetch:
    ahead = Prefetch(slots)
    for duration in ran:
        ahead.record(duration)
    return ahead


def test_nothing_is_leased_ahead_before_anything_is_known() -> None:
    assert 0 == Prefetch(8).limit
    assert 0 == after(8, *[0.001] * 19).limit


@pytest.mark.parametrize(
    ("duration", "expected"),
    [(0.25, 8), (0.1, 20), (0.01, 200), (0.001, MAX_PREFETCH), (0.0, MAX_PREFETCH)],
)
def test_what_the_slots_can_begin_within_a_quarter_of_a_second_is_leased_ahead(
    duration: float, expected: int
) -> None:
    assert expected == after(8, *[duration] * 20).limit


def test_nothing_is_leased_ahead_of_long_work() -> None:
    assert 0 == after(8, *[0.2501] * 20).limit


def test_one_long_row_shows_at_once_when_little_is_known() -> None:
    assert 0 == after(8, 0.001, 30.0).limit


def test_a_rare_long_row_does_not_end_leasing_ahead() -> None:
    assert after(8, *[0.01] * 150, 30.0, *[0.01] * 19).limit > 0


def test_long_work_shows_after_a_twentieth_of_what_is_remembered() -> None:
    assert 0 == after(8, *[0.001] * 200, *[1.0] * 10).limit


@given(slots=st.integers(1, 64), ran=durations)
def test_what_waits_could_begin_in_time_at_the_95th_percentile(
    slots: int, ran: list[float]
) -> None:
    ahead = after(slots, *ran[: len(ran) // 20 * 20]).limit
    counted = sorted(ran[: len(ran) // 20 * 20])
    p95 = counted[int(len(counted) * 0.95)]
    assert 0 <= ahead <= MAX_PREFETCH
    assert ahead * p95 <= slots * PREFETCH_SECONDS * (1 + 1e-9)


def test_what_was_learned_from_short_work_is_forgotten_when_rows_get_stuck() -> None:
    ahead = after(8, *[0.001] * 200)
    ahead.reset()
    assert 0 == ahead.limit
    ahead.record(0.001)
    assert 0 == ahead.limit


@given(slots=st.integers(1, 16), ran=durations, held=st.integers(0, 3000))
def test_a_surplus_is_what_is_held_beyond_the_slots_and_the_lead_and_only_if_that_was_halved(
    slots: int, ran: list[float], held: int
) -> None:
    ahead = after(slots, *ran)
    surplus = ahead.surplus(held)
    assert (held > slots + 2 * ahead.limit) == (surplus > 0)
    assert surplus in {0, held - slots - ahead.limit}
