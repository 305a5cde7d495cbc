"""What a part measured: a label, a number, and the target of the design."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

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


def percentile(values: Iterable[float], fraction: float) -> float | None:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)] if ordered else None
