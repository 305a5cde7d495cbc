"""Places the nodes of a graph in columns, from left to right.

    layer     A node stands right of all nodes before it (longest path). A node without any before
              it stands just left of the first node after it.
    bend      An arrow over several layers gets a bend in each layer between, which takes its place
              there like a small node. So no arrow crosses a node.
    order     In each layer by the mean place of the neighbours (barycenter), forth and back. The
              order with the fewest crossings wins.
    height    As close to the mean height of the neighbours as the order and the gaps allow.

Arrows that lead back, such as those of nodes that write others, do not count for any of this.
Pure; it takes time in proportion to the nodes, bends and arrows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

ROW_GAP = 16.0
LAYER_GAP = 64.0
BEND_HEIGHT = 6.0
MARGIN = 16.0
_ORDER_SWEEPS = 8
_HEIGHT_SWEEPS = 6
_MAX_BENDS = 5000
"""Arrows of a graph with more bends are straight lines."""


class Size(NamedTuple):
    width: float
    height: float


class Box(NamedTuple):
    """The place of a node: its left upper corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


class Point(NamedTuple):
    x: float
    y: float


Arrow = tuple[str, str]


class Layout(NamedTuple):
    """The boxes of all nodes, and the points of each arrow from its start to its end."""

    width: float
    height: float
    boxes: Mapping[str, Box]
    routes: Mapping[Arrow, tuple[Point, ...]]


@dataclass(slots=True)
class _Vertices:
    """Nodes and bends by number, in layers. Neighbours are in the layers beside."""

    heights: list[float] = field(default_factory=list)
    layers: list[list[int]] = field(default_factory=list)
    before: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    after: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, layer: int, height: float) -> int:
        number = len(self.heights)
        self.heights.append(height)
        while len(self.layers) <= layer:
            self.layers.append([])
        self.layers[layer].append(number)
        return number

    def connect(self, start: int, end: int) -> None:
        self.after[start].append(end)
        self.before[end].append(start)


def lay_out(sizes: Mapping[str, Size], arrows: Iterable[Arrow]) -> Layout:
    """Place these nodes. The arrows are between them, and make no cycle."""
    unique = [each for each in dict.fromkeys(arrows) if each[0] != each[1]]
    layer_of = _layers(list(sizes), unique)
    vertices = _Vertices()
    numbers = {name: vertices.add(layer_of[name], sizes[name].height) for name in sizes}
    bends = _add_bends(vertices, unique, layer_of, numbers)
    _order(vertices)
    tops = _tops(vertices)
    lefts, widths = _columns(sizes, layer_of, len(vertices.layers))
    boxes = {
        name: Box(lefts[layer_of[name]], tops[number], *sizes[name])
        for name, number in numbers.items()
    }
    routes = {
        (start, end): (
            Point(boxes[start].x + boxes[start].width, boxes[start].middle),
            *_bend_points(bends[start, end], layer_of[start] + 1, tops, lefts, widths),
            Point(boxes[end].x, boxes[end].middle),
        )
        for start, end in unique
    }
    width = max((left + wide for left, wide in zip(lefts, widths, strict=True)), default=0.0)
    height = max((box.y + box.height for box in boxes.values()), default=0.0)
    lowest = max((top + BEND_HEIGHT for top in tops), default=0.0)
    return Layout(width + MARGIN, max(height, lowest) + MARGIN, boxes, routes)


# --- layers ---


def _layers(names: Sequence[str], arrows: Sequence[Arrow]) -> dict[str, int]:
    before, after = defaultdict(list), defaultdict(list)
    for start, end in arrows:
        before[end].append(start)
        after[start].append(end)
    layer_of: dict[str, int] = {}
    for name in _topological(names, before, after):
        layer_of[name] = 1 + max((layer_of[each] for each in before[name]), default=-1)
    for name in names:
        if not before[name] and after[name]:
            layer_of[name] = min(layer_of[each] for each in after[name]) - 1
    return layer_of


def _topological(
    names: Sequence[str], before: Mapping[str, list[str]], after: Mapping[str, list[str]]
) -> list[str]:
    missing = {name: len(before[name]) for name in names}
    found = [name for name in names if not missing[name]]
    for name in found:
        for each in after[name]:
            missing[each] -= 1
            if not missing[each]:
                found.append(each)
    return found


def _add_bends(
    vertices: _Vertices,
    arrows: Sequence[Arrow],
    layer_of: Mapping[str, int],
    numbers: Mapping[str, int],
) -> dict[Arrow, list[int]]:
    """Connect the vertices of all arrows; returns the bends of each."""
    spans = {arrow: range(layer_of[arrow[0]] + 1, layer_of[arrow[1]]) for arrow in arrows}
    has_bends = sum(map(len, spans.values())) <= _MAX_BENDS
    bends: dict[Arrow, list[int]] = {}
    for arrow in arrows:
        chain = [vertices.add(layer, BEND_HEIGHT) for layer in spans[arrow] if has_bends]
        bends[arrow] = chain
        if chain or not spans[arrow]:
            for start, end in pairwise([numbers[arrow[0]], *chain, numbers[arrow[1]]]):
                vertices.connect(start, end)
    return bends


# --- order in layers ---


def _order(vertices: _Vertices) -> None:
    best, best_crossings = [list(layer) for layer in vertices.layers], _crossings(vertices)
    for sweep in range(_ORDER_SWEEPS):
        if not best_crossings:
            break
        is_forth = sweep % 2 == 0
        _sweep_order(vertices, is_forth=is_forth)
        crossings = _crossings(vertices)
        if crossings < best_crossings:
            best, best_crossings = [list(layer) for layer in vertices.layers], crossings
    vertices.layers = best


def _sweep_order(vertices: _Vertices, *, is_forth: bool) -> None:
    """Sort each layer by the mean place of the neighbours in the layer before it, or after it."""
    neighbours = vertices.before if is_forth else vertices.after
    place: dict[int, float] = {}
    for layer in vertices.layers if is_forth else reversed(vertices.layers):
        own = {vertex: float(number) for number, vertex in enumerate(layer)}
        keys = {
            vertex: _mean([place[each] for each in neighbours[vertex]], own[vertex])
            for vertex in layer
        }
        layer.sort(key=keys.__getitem__)
        place |= {vertex: float(number) for number, vertex in enumerate(layer)}


def _crossings(vertices: _Vertices) -> int:
    """How many pairs of arrows between adjacent layers cross."""
    count = 0
    for layer, following in pairwise(vertices.layers):
        place = {vertex: number for number, vertex in enumerate(following)}
        seen: list[int] = []
        for vertex in layer:
            ends = sorted(place[each] for each in vertices.after[vertex])
            count += sum(len(seen) - bisect_left(seen, end + 1) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _mean(values: Sequence[float], default: float) -> float:
    return sum(values) / len(values) if values else default


# --- coordinates ---


def _tops(vertices: _Vertices) -> list[float]:
    """The upper edge of every vertex: those of a layer keep their order and gaps."""
    middles = [0.0] * len(vertices.heights)
    for layer in vertices.layers:
        for vertex, middle in zip(layer, _spread(layer, vertices, lambda _: 0.0), strict=True):
            middles[vertex] = middle
    for sweep in range(_HEIGHT_SWEEPS):
        is_forth = sweep % 2 == 0
        neighbours = vertices.before if is_forth else vertices.after
        for layer in vertices.layers if is_forth else reversed(vertices.layers):

            def wanted(vertex: int, near: Mapping[int, list[int]] = neighbours) -> float:
                return _mean([middles[each] for each in near[vertex]], middles[vertex])

            for vertex, middle in zip(layer, _spread(layer, vertices, wanted), strict=True):
                middles[vertex] = middle
    tops = [middle - height / 2 for middle, height in zip(middles, vertices.heights, strict=True)]
    shift = MARGIN - min(tops, default=0.0)
    return [top + shift for top in tops]


def _spread(
    layer: Sequence[int], vertices: _Vertices, wanted: Callable[[int], float]
) -> list[float]:
    """The middles of the vertices of a layer: in order, with gaps, and with the least squares of
    their distances to the wanted middles (pool adjacent violators).
    """
    offsets = [0.0]
    for above, below in pairwise(layer):
        heights = vertices.heights[above] + vertices.heights[below]
        offsets.append(offsets[-1] + heights / 2 + ROW_GAP)
    blocks: list[tuple[float, int]] = []
    for vertex, offset in zip(layer, offsets, strict=False):
        mean, count = wanted(vertex) - offset, 1
        while blocks and blocks[-1][0] >= mean:
            other, others = blocks.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=False)]


def _columns(
    sizes: Mapping[str, Size], layer_of: Mapping[str, int], count: int
) -> tuple[list[float], list[float]]:
    """The left edges and the widths of the layers."""
    widths = [0.0] * count
    for name, size in sizes.items():
        widths[layer_of[name]] = max(widths[layer_of[name]], size.width)
    lefts, left = [], MARGIN
    for width in widths:
        lefts.append(left)
        left += width + LAYER_GAP
    return lefts, widths


def _bend_points(
    bends: Sequence[int],
    layer: int,
    tops: Sequence[float],
    lefts: Sequence[float],
    widths: Sequence[float],
) -> list[Point]:
    """Each bend passes its column in a straight line."""
    points = []
    for number, bend in enumerate(bends, layer):
        y = tops[bend] + BEND_HEIGHT / 2
        points += [Point(lefts[number], y), Point(lefts[number] + widths[number], y)]
    return points
