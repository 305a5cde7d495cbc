"""Draws an execution as SVG: its nodes with their states, and the arrows between them.

The style sheet gives the colours by the classes `state-…`, for light and dark. Every node also
shows its state as a sign and as a word. All text of users is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from longwatch.core.sanitize import printable
from longwatch.page.graph_layout import Box, Point, Size, lay_out

MAX_NAME_CHARS = 26
NODE_HEIGHT = 44.0
_MIN_WIDTH = 92.0
_TEXT_LEFT = 34.0
_RIGHT_SPACE = 12.0
_NAME_WIDTH = 7.4
"""Pixels that a letter of a name takes; it is written in 13 px."""
_NOTE_WIDTH = 6.3
"""The same of the second line, in 11 px."""
_DIP = 34.0
"""Pixels by which an arrow that leads back passes below its nodes."""


class DrawnNode(NamedTuple):
    """A node in a drawing. `note` follows its state, as `12 of 1,000`."""

    name: str
    kind: str
    state: str
    note: str = ""

    @property
    def second_line(self) -> str:
        return f"{self.state} · {self.note or self.kind}"


class DrawnArrow(NamedTuple):
    """An arrow from a node to one that needs it. `is_dashed`: a condition that excludes it, or
    with `leads_back` a node that writes the other.
    """

    start: str
    end: str
    is_dashed: bool = False
    leads_back: bool = False


def draw_graph(
    nodes: Sequence[DrawnNode], arrows: Iterable[DrawnArrow], *, title: str, description: str
) -> str:
    """The SVG element, for a page that has the element ids `node-NAME`."""
    known = {node.name for node in nodes}
    shown = [each for each in arrows if each.start in known and each.end in known]
    sizes = {node.name: _size(node) for node in nodes}
    forward = [each for each in shown if not each.leads_back]
    layout = lay_out(sizes, [(each.start, each.end) for each in forward])
    back = [each for each in shown if each.leads_back]
    height = layout.height + (_DIP if back else 0.0)
    paths = [
        *(_arrow(each, _curve(layout.routes[each.start, each.end])) for each in _once(forward)),
        *(_arrow(each, _back_curve(each, layout.boxes)) for each in back),
    ]
    return "\n".join(
        [
            _opening(layout.width, height),
            f'<title id="graph-title">{_text(title)}</title>',
            f'<desc id="graph-description">{_text(description)}</desc>',
            _MARKER,
            *paths,
            *(_node(node, layout.boxes[node.name]) for node in nodes),
            "</svg>",
        ]
    )


def _opening(width: float, height: float) -> str:
    return (
        f'<svg class="graph" role="group" aria-labelledby="graph-title graph-description" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
    )


_MARKER = (
    '<defs><marker id="graph-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
    'markerHeight="7" orient="auto"><path d="M0,0.5 L7.5,4 L0,7.5 z"/></marker></defs>'
)


def _once(arrows: Iterable[DrawnArrow]) -> list[DrawnArrow]:
    """One arrow between two nodes; a solid one before a dashed one."""
    found: dict[tuple[str, str], DrawnArrow] = {}
    for each in arrows:
        place = each.start, each.end
        if each.start != each.end and (place not in found or found[place].is_dashed):
            found[place] = each
    return list(found.values())


# --- nodes ---


def _size(node: DrawnNode) -> Size:
    name, note = text_width(_short(node.name)), text_width(node.second_line)
    width = _TEXT_LEFT + max(name * _NAME_WIDTH, note * _NOTE_WIDTH) + _RIGHT_SPACE
    return Size(max(width, _MIN_WIDTH), NODE_HEIGHT)


def text_width(text: str) -> int:
    """The widths of letters that a text takes: some take two, or none."""
    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def _node(node: DrawnNode, box: Box) -> str:
    label = _text(f"{node.name}: {node.second_line}")
    state = node.state if node.state in SIGNS else "unknown"
    middle, round_by = box.height / 2, box.height / 2 if node.kind == "input" else 6
    return (
        f'<a class="node state-{state}" href="#node-{_text(node.name)}" tabindex="-1" '
        f'transform="translate({box.x:.1f},{box.y:.1f})"><title>{label}</title>'
        f'<rect width="{box.width:.1f}" height="{box.height:.1f}" rx="{round_by:.0f}"/>'
        f'<g class="sign" transform="translate(11,{middle - 8:.0f})">'
        f"{SIGNS.get(state, _HOLLOW)}</g>"
        f'<text class="name" x="{_TEXT_LEFT:.0f}" y="19">{_text(_short(node.name))}</text>'
        f'<text class="note" x="{_TEXT_LEFT:.0f}" y="34">{_text(node.second_line)}</text></a>'
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"


def _text(text: str) -> str:
    return escape(printable(text))


_CIRCLE = '<circle cx="8" cy="8" r="7"/>'
_HOLLOW = '<circle class="hollow" cx="8" cy="8" r="6.5"/>'
SIGNS: Mapping[str, str] = {
    "set": f'{_CIRCLE}<circle class="mark-filled" cx="8" cy="8" r="3"/>',
    "fresh": f'{_CIRCLE}<path class="mark" d="M4.5,8.5 L7,11 L11.5,5.5"/>',
    "stale": f'{_HOLLOW}<path d="M8,1.5 A6.5,6.5 0 0 1 8,14.5z"/>',
    "waiting": f'{_HOLLOW}<path class="line" d="M8,4 V8 L11,10"/>',
    "running": '<path d="M3.5,1.5 L14,8 L3.5,14.5 z"/>',
    "failed": (
        '<path d="M5,0.5 h6 l4.5,4.5 v6 l-4.5,4.5 h-6 l-4.5,-4.5 v-6 z"/>'
        '<path class="mark" d="M5.2,5.2 L10.8,10.8 M10.8,5.2 L5.2,10.8"/>'
    ),
    "blocked": '<rect x="1.5" y="6" width="13" height="4" rx="1"/>',
    "unset": '<circle class="hollow dashed" cx="8" cy="8" r="6.5"/>',
    "cancelled": f'{_HOLLOW}<path class="line" d="M3.5,12.5 L12.5,3.5"/>',
    "paused": '<path d="M3.5,2 h3 v12 h-3 z M9.5,2 h3 v12 h-3 z"/>',
    "ended": '<rect x="3" y="3" width="10" height="10" rx="1"/>',
    "archived": '<path d="M1.5,2 h13 v4 h-13 z M2.5,7 h11 v7 h-11 z"/>',
}
"""The sign of each state, drawn in a square of 16 by 16."""


# --- arrows ---


def _arrow(arrow: DrawnArrow, path: str) -> str:
    kinds = f"arrow{' dashed' * arrow.is_dashed}{' back' * arrow.leads_back}"
    return f'<path class="{kinds}" marker-end="url(#graph-arrow)" d="{path}"/>'


def _curve(points: Sequence[Point]) -> str:
    """Curves between columns; straight lines through them."""
    parts = [f"M{points[0].x:.1f},{points[0].y:.1f}"]
    for number, (start, end) in enumerate(pairwise(points)):
        if number % 2:
            parts.append(f"L{end.x:.1f},{end.y:.1f}")
        else:
            middle = (start.x + end.x) / 2
            parts.append(
                f"C{middle:.1f},{start.y:.1f} {middle:.1f},{end.y:.1f} {end.x:.1f},{end.y:.1f}"
            )
    return " ".join(parts)


def _back_curve(arrow: DrawnArrow, boxes: Mapping[str, Box]) -> str:
    """A curve below the nodes, from the lower edge of one to that of the other."""
    start, end = boxes[arrow.start], boxes[arrow.end]
    begin = Point(start.x + start.width / 2, start.y + start.height)
    finish = Point(end.x + end.width / 2, end.y + end.height)
    low = max(begin.y, finish.y) + _DIP
    return (
        f"M{begin.x:.1f},{begin.y:.1f} C{begin.x:.1f},{low:.1f} {finish.x:.1f},{low:.1f} "
        f"{finish.x:.1f},{finish.y:.1f}"
    )
