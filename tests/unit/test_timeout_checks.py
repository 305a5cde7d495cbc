from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longwatch.errors import UsageError
from longwatch.runtime.timeout_checks import Timeouts

DEFAULTS = Timeouts(
    threshold=720, interval=60, wait=30, visibility=1800, shutdown=30, processing=600
)
SECONDS = st.integers(min_value=1, max_value=5000)


def settings(timeouts: Timeouts) -> list[str]:
    return [doubt.setting for doubt in timeouts.problems()]


@pytest.mark.parametrize(
    "timeouts",
    [
        DEFAULTS,
        replace(DEFAULTS, threshold=180, interval=30, visibility=300.5, processing=120),
        replace(DEFAULTS, threshold=2100, interval=120, visibility=3900.5, processing=1800),
    ],
    ids=["defaults", "2-minute work", "30-minute batch"],
)
def test_the_defaults_and_the_recipes_of_the_manual_raise_no_doubt(timeouts: Timeouts) -> None:
    timeouts.validate()
    assert [] == list(timeouts.problems())


@pytest.mark.parametrize(
    ("changed", "setting", "told"),
    [
        (
            {"interval": 240},
            "watchdog_interval",
            "240 s is not less than a third of watchdog_threshold: set it below 240",
        ),
        (
            {"wait": 120},
            "watchdog_threshold",
            "720 s is not more than wait_time_seconds + max_processing_seconds: set it above 720",
        ),
        (
            {"visibility": 1320},
            "visibility_timeout",
            (
                "1320 s is not more than watchdog_threshold + max_processing_seconds: set it "
                "above 1320"
            ),
        ),
        (
            {"threshold": None, "shutdown": 1200},
            "visibility_timeout",
            "1800 s is not more than shutdown_timeout + max_processing_seconds: set it above 1800",
        ),
    ],
)
def test_each_doubt_names_the_setting_and_the_number_that_would_do(
    changed: dict[str, Any], setting: str, told: str
) -> None:
    assert [(setting, told)] == list(replace(DEFAULTS, **changed).problems())


@pytest.mark.parametrize(
    "changed",
    [
        {"interval": 239.9},
        {"wait": 119.9},
        {"visibility": 1320.1},
        {"threshold": None, "shutdown": 1199.9},
    ],
)
def test_a_little_on_the_right_side_is_enough(changed: dict[str, Any]) -> None:
    assert [] == list(replace(DEFAULTS, **changed).problems())


def test_without_a_watchdog_only_the_shutdown_is_compared() -> None:
    unwatched = replace(DEFAULTS, threshold=None, interval=5000, wait=5000)
    unwatched.validate()
    assert [] == list(unwatched.problems())
    assert ["visibility_timeout"] == settings(replace(unwatched, visibility=630))


def test_where_a_parent_keeps_the_leases_the_visibility_timeout_raises_no_doubt() -> None:
    short = replace(DEFAULTS, visibility=15, interval=240)
    assert ["watchdog_interval"] == [doubt.setting for doubt in short.problems(parent_renews=True)]


@given(
    st.builds(
        Timeouts,
        threshold=SECONDS,
        interval=SECONDS,
        wait=SECONDS,
        visibility=SECONDS,
        shutdown=SECONDS,
        processing=SECONDS,
    )
)
def test_whoever_follows_the_advice_is_left_alone(timeouts: Timeouts) -> None:
    fields = {
        "watchdog_interval": "interval",
        "watchdog_threshold": "threshold",
        "visibility_timeout": "visibility",
    }
    for _ in range(10):
        doubts = list(timeouts.problems())
        if not doubts:
            break
        number = float(doubts[0].problem.rsplit(" ", 1)[1])
        step = -number / 1000 if doubts[0].setting == "watchdog_interval" else number / 1000
        timeouts = replace(timeouts, **{fields[doubts[0].setting]: number + step})
    assert [] == list(timeouts.problems())


@pytest.mark.parametrize("wait", [720, 720.1, inf])
def test_a_threshold_that_is_not_more_than_the_wait_is_an_error(wait: float) -> None:
    with pytest.raises(
        UsageError, match=r"watchdog_threshold \(720 s\) must be more than wait_time_seconds"
    ):
        replace(DEFAULTS, wait=wait).validate()
    replace(DEFAULTS, wait=719.9).validate()
    replace(DEFAULTS, threshold=None, wait=wait).validate()


@pytest.mark.parametrize("value", [0, -1, nan, inf])
@pytest.mark.parametrize(
    ("field", "spelled"),
    [
        ("interval", "watchdog_interval"),
        ("visibility", "visibility_timeout"),
        ("processing", "max_processing_seconds"),
    ],
)
def test_what_is_no_time_to_work_with_is_an_error(field: str, spelled: str, value: float) -> None:
    with pytest.raises(UsageError, match=f"{spelled} must be a number of seconds above 0"):
        replace(DEFAULTS, **{field: value}).validate()


@pytest.mark.parametrize("value", [-0.1, nan, inf])
def test_a_shutdown_may_take_no_time_but_not_less_and_not_for_ever(value: float) -> None:
    replace(DEFAULTS, shutdown=0).validate()
    with pytest.raises(UsageError, match="shutdown_timeout must be a number of seconds"):
        replace(DEFAULTS, shutdown=value).validate()


@pytest.mark.parametrize("threshold", [nan, -1, 0])
def test_a_threshold_that_is_no_number_of_seconds_is_an_error(threshold: float) -> None:
    with pytest.raises(UsageError, match="watchdog_threshold"):
        replace(DEFAULTS, threshold=threshold).validate()
