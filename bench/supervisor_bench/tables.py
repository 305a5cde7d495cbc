"""Readings as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from supervisor_bench.endurance import Footprint
from supervisor_bench.race import FEW, MANY, Readings

Figure = Callable[[Readings], float]

_MEMORY: dict[str, Figure] = {
    f"{kind.upper()} with {programs} programs, MiB": (
        lambda readings, programs=programs, kind=kind: readings.memory_with(programs, kind)  # type: ignore[misc]
    )
    for kind in ("rss", "pss")
    for programs in (0, FEW, MANY)
}
FIGURES: dict[str, Figure] = {
    **_MEMORY,
    f"start of {MANY}, s": lambda readings: readings.median_of("starts"),
    f"stop of {MANY}, s": lambda readings: readings.median_of("stops"),
    "restart after kill -9, ms": lambda readings: readings.median_of("restarts") * 1000,
    f"status of {MANY}, ms": lambda readings: readings.median_of("statuses") * 1000,
    f"idle with {MANY}, % of a core": lambda readings: readings.median_of("cpu") * 100,
    f"idle with {MANY}, wake-ups/s": lambda readings: readings.median_of("wakeups"),
}


def race_table(results: Mapping[str, Readings]) -> str:
    """A row for each figure, a column for each contender, and our ratio to the first of the
    others.
    """
    ours, *others = results
    title = [f"{ours} : {others[0]}"] if others else []
    rows = [
        _row(figure, [read(readings) for readings in results.values()])
        for figure, read in FIGURES.items()
    ]
    columns = [*results, *title]
    return "\n".join([f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}", *rows])


def failures(results: Mapping[str, Readings]) -> list[str]:
    return [
        f"{name}: {failure}" for name, readings in results.items() for failure in readings.failures
    ]


def endurance_table(footprints: Sequence[Footprint]) -> str:
    rows = [
        f"| {each.restarts:,} | {each.memory.pss:.1f} | {each.memory.rss:.1f} | "
        f"{each.descriptors} | {each.rate:.0f} |"
        for each in footprints
    ]
    return "\n".join(
        [
            "| restarts | PSS MiB | RSS MiB | descriptors | restarts/s |",
            "|---:|---:|---:|---:|---:|",
            *rows,
        ]
    )


def _row(figure: str, values: Sequence[float]) -> str:
    ratio = [f"{values[0] / values[1]:.2f}" if values[1] else "–"] if len(values) > 1 else []
    cells = [_number(value) for value in values]
    return f"| {figure} | {' | '.join([*cells, *ratio])} |"


def _number(value: float) -> str:
    return (
        "–" if math.isnan(value) else f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
    )
