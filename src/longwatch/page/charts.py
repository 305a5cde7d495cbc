"""Small bar charts of counts by hour, as geometry for inline SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HEIGHT = 64
BAR_WIDTH = 22
GAP = 2


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar, drawn from its upper left corner. `series` is the number of its row of values."""

    x: float
    y: float
    width: float
    height: float
    series: int
    hour: int
    value: int


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: its size, its bars, and the highest value."""

    width: int
    height: int
    bars: Sequence[Bar]
    highest: int


def bar_chart(
    hours: Sequence[int], rows: Sequence[Sequence[int]], *, height: int = HEIGHT
) -> Chart:
    """A chart with a group of bars for each hour, one bar for each row of values."""
    highest = max((value for row in rows for value in row), default=0)
    slot = BAR_WIDTH + GAP
    share = BAR_WIDTH / max(len(rows), 1)
    bars = [
        Bar(
            x=round(place * slot + series * share, 2),
            y=round(height - _bar_height(value, highest, height), 2),
            width=round(share - 1, 2),
            height=round(_bar_height(value, highest, height), 2),
            series=series,
            hour=hour,
            value=value,
        )
        for series, row in enumerate(rows)
        for place, (hour, value) in enumerate(zip(hours, row, strict=True))
        if value
    ]
    return Chart(slot * len(hours), height, bars, highest)


def _bar_height(value: int, highest: int, height: int) -> float:
    """At least two units, so that one event in a bad day is seen."""
    return max(height * value / highest, 2.0) if highest else 0.0
