"""Readings as Markdown."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from queue_bench.trial import Reading, TrialError

RaceResults = Mapping[str, Sequence[Reading] | TrialError]
"""By the contender's name: its rounds, or why it has none."""

HEAD = ("jobs/s", "ratio", "sends/s", "p50 ms", "p99 ms", "RSS MiB", "idle CPU %")


def race_table(results: RaceResults, baseline: str | None) -> str:
    """One store's table; the ratio is to the yardstick's jobs a second."""
    title = "ratio" if baseline is None else f"× {baseline}"
    head = [title if column == "ratio" else column for column in HEAD]
    base = _rate(results.get(baseline)) if baseline is not None else math.nan
    rows = [_row(name, result, base) for name, result in results.items()]
    return "\n".join([f"| queue | {' | '.join(head)} |", f"|---|{'---:|' * len(head)}", *rows])


def closer_table(title: str, columns: Mapping[str, Mapping[str, str]]) -> str:
    """A table of the closer looks: a column for each store, a dash where a line is not about it."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    rows = [
        f"| {name} | {' | '.join(column.get(name, '–') for column in columns.values())} |"
        for name in names
    ]
    return "\n".join(
        [f"| {title} | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}", *rows]
    )


def _row(name: str, result: Sequence[Reading] | TrialError, base: float) -> str:
    if isinstance(result, TrialError):
        return f"| {name} | {str(result).replace('|', '/')} |{' |' * (len(HEAD) - 1)}"
    cells = [
        _number(_rate(result), ",.0f"),
        _number(_rate(result) / base, ".1f"),
        _number(_median(result, "sent"), ",.0f"),
        *(_number(_median(result, field), ",.1f") for field in ("p50", "p99", "rss", "idle")),
    ]
    return f"| {name} | {' | '.join(cells)} |"


def _rate(result: Sequence[Reading] | TrialError | None) -> float:
    return (
        math.nan if result is None or isinstance(result, TrialError) else _median(result, "drained")
    )


def _median(readings: Sequence[Reading], field: str) -> float:
    return float(statistics.median(getattr(reading, field) for reading in readings))


def _number(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)
