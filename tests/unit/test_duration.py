"""Durations as people write and read them."""

from __future__ import annotations

import pytest

from longwatch.core.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5", 1.5),
        ("1e3", 1000),
        ("+5", 5),
        (".5s", 0.5),
        ("5m", 300),
        ("2h", 7200),
        ("1.5h", 5400),
        ("1d", 86_400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1d2h3m4s", 93_784),
        ("250ms", 0.25),
        (" 5m ", 300),
        ("0", 0),
    ],
)
def test_a_duration_is_a_number_of_seconds_or_numbers_with_units(text: str, seconds: float) -> None:
    assert seconds == parse_duration(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5x",
        "-1",
        "-5m",
        "nan",
        "inf",
        "s",
        "m5",
        "5 m",
        "5M",
        "30m1h",
        "1h1h",
        "1,5",
        "5m!",
    ],
)
def test_any_other_text_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="300, 90s or 5m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.25, "0.25 s"),
        (5.0, "5 s"),
        (59.0, "59 s"),
        (59.9, "1 minute"),
        (60, "1 minute"),
        (90, "1 min 30 s"),
        (300, "5 minutes"),
        (3600, "1 hour"),
        (5400.0, "1 h 30 min"),
        (5401, "1 h 30 min"),
        (3601, "1 h"),
        (7200, "2 hours"),
        (86_400, "1 day"),
        (90_000, "1 d 1 h"),
        (31_536_000, "365 days"),
    ],
)
def test_a_duration_is_shown_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert text == format_duration(seconds)
