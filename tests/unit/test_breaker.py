from __future__ import annotations

import json
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.core.breaker import Breaker, BreakerPolicy, BreakerState

IN_A_ROW = BreakerPolicy(tolerated=4, window=inf)


def tripped(policy: BreakerPolicy | None = None, *, at: float = 0.0) -> Breaker:
    """A breaker that too many failures have just opened."""
    breaker = Breaker(policy or BreakerPolicy())
    while not breaker.failed(at):
        pass
    return breaker


def failures(policy: BreakerPolicy, *moments: float) -> list[bool]:
    breaker = Breaker(policy)
    return [breaker.failed(now) for now in moments]


def test_five_failures_in_a_minute_are_tolerated_and_the_sixth_trips() -> None:
    assert [False] * 5 + [True] == failures(BreakerPolicy(), 0, 1, 3, 7, 15, 31)


def test_a_failure_exactly_as_old_as_the_window_is_forgotten() -> None:
    assert [False] * 6 == failures(BreakerPolicy(), 0, 10, 20, 30, 40, 60)
    assert [False] * 5 + [True] == failures(BreakerPolicy(), 0, 10, 20, 30, 40, 59.9)


def test_slow_failures_never_trip_a_window() -> None:
    assert not any(failures(BreakerPolicy(), *range(0, 10_000, 12)))


def test_an_endless_window_counts_failures_in_a_row_however_slow() -> None:
    assert [False] * 4 + [True] == failures(IN_A_ROW, 0, 1e4, 2e4, 3e4, 4e4)


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(IN_A_ROW)
    for now in range(4):
        breaker.failed(now)
    breaker.succeeded()

    assert [False] * 4 + [True] == [breaker.failed(now) for now in range(5)]


def test_nothing_tolerated_trips_at_the_first_failure() -> None:
    assert [True] == failures(BreakerPolicy(tolerated=0), 0)


def test_a_closed_breaker_admits_everyone_and_has_nothing_to_tell() -> None:
    breaker = Breaker(BreakerPolicy())

    assert (True, True, BreakerState.CLOSED, 0.0, "", ()) == (
        breaker.allow_start(0),
        breaker.allow_start(0),
        breaker.state(0),
        breaker.cooldown_remaining(0),
        breaker.reason,
        breaker.failure_times,
    )


def test_an_open_breaker_admits_no_one_and_shows_its_cool_down() -> None:
    breaker = tripped()

    assert (BreakerState.OPEN, BreakerState.OPEN, False, 300, 1) == (
        breaker.state(0),
        breaker.state(299.9),
        breaker.allow_start(299),
        breaker.cooldown_remaining(0),
        breaker.cooldown_remaining(299),
    )


def test_the_reason_tells_how_many_failures_in_which_time() -> None:
    assert ("6 failures in 60 s", "5 failures in a row") == (
        tripped().reason,
        tripped(IN_A_ROW).reason,
    )


def test_after_the_cool_down_exactly_one_trial_is_admitted() -> None:
    breaker = tripped()

    assert [BreakerState.HALF_OPEN, True, False, False] == [
        breaker.state(300),
        breaker.allow_start(300),
        breaker.allow_start(300),
        breaker.allow_start(9e9),
    ]


def test_looking_at_a_half_open_breaker_does_not_spend_the_trial() -> None:
    breaker = tripped()
    breaker.state(300)
    breaker.cooldown_remaining(300)

    assert breaker.allow_start(300)


def test_a_failed_trial_opens_it_again_for_a_whole_cool_down() -> None:
    breaker = tripped()
    breaker.allow_start(400)

    assert breaker.failed(410)
    assert (BreakerState.OPEN, 300, "the trial failed") == (
        breaker.state(410),
        breaker.cooldown_remaining(410),
        breaker.reason,
    )
    assert breaker.allow_start(710)


def test_a_trial_that_succeeded_closes_it_and_forgets_everything() -> None:
    breaker = tripped()
    breaker.allow_start(300)
    breaker.succeeded()

    assert (BreakerState.CLOSED, (), "") == (
        breaker.state(300),
        breaker.failure_times,
        breaker.reason,
    )
    assert [False] * 5 + [True] == [breaker.failed(300) for _ in range(6)]


def test_a_trial_without_a_verdict_makes_room_for_another() -> None:
    breaker = tripped()
    breaker.allow_start(300)
    breaker.trial_aborted()

    assert [True, False] == [breaker.allow_start(300), breaker.allow_start(300)]


def test_a_failure_while_it_is_open_trips_nothing_and_does_not_prolong_the_cool_down() -> None:
    breaker = tripped()

    assert [False, False] == [breaker.failed(1), breaker.failed(100)]
    assert 200 == breaker.cooldown_remaining(100)


def test_a_run_that_outlived_the_trip_does_not_close_it() -> None:
    breaker = tripped()
    breaker.succeeded()

    assert BreakerState.OPEN == breaker.state(1)


def test_without_a_cool_down_only_a_reset_leads_out() -> None:
    breaker = tripped(BreakerPolicy(cooldown=None))

    assert (BreakerState.OPEN, None, False) == (
        breaker.state(9e9),
        breaker.cooldown_remaining(9e9),
        breaker.allow_start(9e9),
    )
    breaker.reset()
    assert (BreakerState.CLOSED, True) == (breaker.state(9e9), breaker.allow_start(9e9))


def test_tripped_by_hand_it_keeps_the_reason_and_the_cool_down() -> None:
    breaker = Breaker(BreakerPolicy())
    breaker.trip(10, "the manifest is missing")

    assert ("the manifest is missing", 300, True) == (
        breaker.reason,
        breaker.cooldown_remaining(10),
        breaker.allow_start(310),
    )


def test_tripped_without_a_trial_it_stays_open_until_the_reset() -> None:
    breaker = Breaker(BreakerPolicy())
    breaker.trip(10, "the probe's script is missing", trial=False)
    breaker.succeeded()

    assert (BreakerState.OPEN, None) == (breaker.state(9e9), breaker.cooldown_remaining(9e9))
    breaker.reset()
    assert (BreakerState.CLOSED, "") == (breaker.state(9e9), breaker.reason)


def test_a_trip_takes_a_running_trial_back() -> None:
    breaker = tripped()
    breaker.allow_start(300)
    breaker.trip(301, "again")
    breaker.succeeded()

    assert (BreakerState.OPEN, True) == (breaker.state(301), breaker.allow_start(601))


def test_the_events_are_those_inside_the_window() -> None:
    breaker = Breaker(BreakerPolicy())
    for now in (0, 30, 59):
        breaker.failed(now)
    seen = [breaker.failure_times]
    breaker.state(60)
    seen.append(breaker.failure_times)

    assert [(0, 30, 59), (30, 59)] == seen


def test_failures_that_go_on_while_it_is_open_take_no_more_room() -> None:
    breaker = Breaker(IN_A_ROW)
    for now in range(10_000):
        breaker.failed(now % 100)

    assert 5 == len(breaker.failure_times)


def test_a_clock_set_back_does_not_hold_it_open() -> None:
    breaker = tripped(at=1_000_000)

    assert (BreakerState.OPEN, 300) == (breaker.state(50), breaker.cooldown_remaining(50))
    assert (BreakerState.HALF_OPEN, True) == (breaker.state(350), breaker.allow_start(350))


def test_a_clock_set_back_does_not_keep_old_failures_in_the_window() -> None:
    breaker = Breaker(BreakerPolicy())
    for _ in range(5):
        breaker.failed(1_000_000)
    breaker.state(50)

    assert not breaker.failed(110)
    assert (110,) == breaker.failure_times


def test_a_restored_breaker_goes_on_where_it_stood() -> None:
    breaker = Breaker.from_dict(BreakerPolicy(), json.loads(json.dumps(tripped().to_dict())))

    assert (BreakerState.OPEN, 200, "6 failures in 60 s") == (
        breaker.state(100),
        breaker.cooldown_remaining(100),
        breaker.reason,
    )
    assert [True, False] == [breaker.allow_start(300), breaker.allow_start(300)]


def test_a_restored_breaker_grants_the_trial_again_since_no_one_will_report_the_old_one() -> None:
    before = tripped()
    before.allow_start(300)

    assert Breaker.from_dict(BreakerPolicy(), before.to_dict()).allow_start(300)


def test_a_restored_breaker_still_waits_for_a_person() -> None:
    before = Breaker(BreakerPolicy())
    before.trip(0, "no manifest", trial=False)

    assert not Breaker.from_dict(BreakerPolicy(), before.to_dict()).allow_start(9e9)


def test_a_stricter_policy_takes_over_an_older_state() -> None:
    before = Breaker(BreakerPolicy())
    for now in range(5):
        before.failed(now)

    after = Breaker.from_dict(BreakerPolicy(tolerated=1), before.to_dict())

    assert ((3, 4), True) == (after.failure_times, after.failed(5))


moves = st.lists(
    st.tuples(
        st.sampled_from(["failed", "succeeded", "allow_start", "trial_aborted", "trip", "reset"]),
        st.integers(-50, 400),
    ),
    max_size=40,
)


def play(breaker: Breaker, script: list[tuple[str, int]]) -> float:
    """Do every move, each after so many seconds (a clock set back if negative); returns the time
    at the end.
    """
    now = 1000.0
    for move, step in script:
        now += step
        match move:
            case "failed" | "allow_start":
                getattr(breaker, move)(now)
            case "trip":
                breaker.trip(now, "by hand")
            case _:
                getattr(breaker, move)()
    return now


@given(script=moves)
def test_whatever_happened_its_state_survives_json(script: list[tuple[str, int]]) -> None:
    breaker = Breaker(BreakerPolicy(tolerated=2))
    now = play(breaker, script)
    again = Breaker.from_dict(breaker.policy, json.loads(json.dumps(breaker.to_dict())))

    assert breaker.to_dict() == again.to_dict()
    assert breaker.state(now) == again.state(now)


@given(script=moves, later=st.integers(-2000, 2000))
def test_whatever_happened_it_admits_someone_within_one_cool_down(
    script: list[tuple[str, int]], later: int
) -> None:
    breaker = Breaker(BreakerPolicy(tolerated=2))
    now = play(breaker, script) + later
    breaker.trial_aborted()
    left = breaker.cooldown_remaining(now)

    assert left is not None
    assert 0 <= left <= 300
    assert breaker.allow_start(now + left + 1e-6)


@given(script=moves)
def test_it_has_a_reason_exactly_when_it_is_not_closed(script: list[tuple[str, int]]) -> None:
    breaker = Breaker(BreakerPolicy(tolerated=2))
    now = play(breaker, script)

    assert bool(breaker.reason) == (breaker.state(now) is not BreakerState.CLOSED)


@given(
    gaps=st.lists(st.floats(0, 100), max_size=60),
    tolerated=st.integers(0, 8),
    window=st.floats(1, 200),
)
def test_it_trips_exactly_when_one_more_than_tolerated_fall_into_a_window(
    gaps: list[float], tolerated: int, window: float
) -> None:
    breaker = Breaker(BreakerPolicy(tolerated=tolerated, window=window, cooldown=None))
    now, moments = 0.0, []
    for gap in gaps:
        now += gap
        moments.append(now)
        inside = sum(now - moment < window for moment in moments)
        assert (inside > tolerated) == breaker.failed(now)
        if inside > tolerated:
            break


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tolerated", -1),
        ("window", 0),
        ("window", -1),
        ("window", nan),
        ("cooldown", 0),
        ("cooldown", -5),
        ("cooldown", inf),
        ("cooldown", nan),
    ],
)
def test_a_number_that_makes_no_sense_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"^{field} must be .*, not {value}$"):
        BreakerPolicy(**{field: value})  # type: ignore[arg-type]
