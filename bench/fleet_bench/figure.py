"""What a part measured: a label, a number, and the target of the design."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

AS_BEFORE = "as before"
"""The target of figures that must not be worse than those of the earlier commit."""
_NAN = "–"


@dataclass(frozen=True)
class Figure:
    """One row of a table. Two trees that measure the same give it the same label."""

    label: str
    value: float | None
    digits: int = 1
    target: str = ""

    def shown(self) -> str:
        return _NAN if self.value is None else f"{self.value:,.{self.digits}f}"


def dumps(figures: Iterable[Figure]) -> str:
    return json.dumps([asdict(figure) for figure in figures])


def loads(text: str) -> list[Figure]:
    return [Figure(**each) for each in json.loads(text)]


def slope(points: Iterable[tuple[float, float]]) -> float:
    """The least-squares slope of y over x."""
    pairs = list(points)
    mean_x, mean_y = (sum(pair[axis] for pair in pairs) / len(pairs) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in pairs)
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0


def medians(rounds: Iterable[Sequence[Figure]]) -> list[Figure]:
    """The median of each figure over several rounds."""
    by_label: dict[str, list[Figure]] = {}
    for figures in rounds:
        for figure in figures:
            by_label.setdefault(figure.label, []).append(figure)
    return [_median(figures) for figures in by_label.values()]


def _median(figures: Sequence[Figure]) -> Figure:
    values = [each.value for each in figures if each.value is not None]
    return replace(figures[0], value=statistics.median(values) if values else None)


def percentile(values: Iterable[float], fraction: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)] if ordered else None
