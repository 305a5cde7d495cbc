"""One frame of `longwatch top` as lines of text: made from a snapshot and what the user chose.

Nothing here touches a terminal. Every line fits the width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from longwatch.cli.output import (
    GAP,
    age,
    cut,
    fitting_columns,
    pluralize,
    shorten_middle,
    text_width,
)
from longwatch.cli.status_table import status_lines
from longwatch.core.sanitize import printable

if TYPE_CHECKING:
    from longwatch.app.live_status import Snapshot

JsonObject = dict[str, Any]

KEYS_HELP = "q quit  ↑↓ scroll  s sort  / filter"
MIN_HEIGHT = 4
_BOLD, _RED, _YELLOW = "1", "31", "33"
_LOOP_HEADERS = ("worker", "loop", "beat", "longest", "holding", "ready")
_LOOP_NUMBERS = frozenset({"beat", "longest", "holding"})
_LOOP_DROPPED_FIRST = ("longest", "holding")
_MIN_NAME_WIDTH = 8
_MAX_SUPERVISORS = 3
_LINES_PER_WARNING = 8
"""A low screen has room for fewer warnings: one for each so many lines."""
_LATE_SECONDS = 3.0
"""Seconds after the interval from which on a supervisor that has not answered is late."""
_ALL_LINES = 1 << 30
_SCROLL_STEPS = {
    **dict.fromkeys(("up", "k"), (False, -1)),
    **dict.fromkeys(("down", "j"), (False, 1)),
    "page up": (True, -1),
    **dict.fromkeys(("page down", " "), (True, 1)),
    **dict.fromkeys(("home", "g"), (False, -_ALL_LINES)),
    **dict.fromkeys(("end", "G"), (False, _ALL_LINES)),
}
"""Whether a key scrolls by pages, and by how many; the frame limits the position."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_STATE_ORDER = ("broken", "ended", "waiting", "pending", "starting", "stopping", "up", "stopped")


def _state_key(program: JsonObject) -> tuple[int, bool]:
    state = program["state"]
    place = _STATE_ORDER.index(state) if state in _STATE_ORDER else 0
    return place, bool(program["ready"])


def _largest(key: str) -> Callable[[JsonObject], float]:
    return lambda program: -(program.get(key) or 0)


SORT_ORDERS: Mapping[str, Callable[[JsonObject], Any] | None] = {
    "start": None,
    "state": _state_key,
    "cpu": _largest("cpu_percent"),
    "memory": _largest("memory_bytes"),
    "restarts": _largest("total_restarts"),
    "name": lambda program: program["name"],
}
"""The orders that `s` goes through. `start` is the order in which programs start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """What the user chose: the first shown line, the order, and the filter. `typing` is True while
    the filter is typed.
    """

    scroll: int = 0
    order: str = "start"
    filter: str = ""
    typing: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """The lines of the screen, and the view with its scroll position inside the content."""

    lines: list[str]
    view: ViewState


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStyle:
    """The size of the screen in characters, and whether it has colours. A height of None: all."""

    width: int
    height: int | None = None
    colour: bool = False

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def fit(self, text: str) -> str:
        """The text, cut at the width."""
        return text if text_width(text) <= self.width else f"{cut(text, self.width - 1)}…"

    def fit_coloured(self, text: str) -> str:
        """A text that may have colours, cut at the width. A cut text keeps no colour."""
        bare = _COLOUR.sub("", text)
        return text if text_width(bare) <= self.width else self.fit(bare)


def make_frame(
    snapshot: Snapshot, view: ViewState, style: FrameStyle, *, now: float, interval: float
) -> Frame:
    """The frame of this moment. Header and footer stay; what is between them scrolls."""
    head = _head_lines(snapshot, style, now=now, interval=interval)
    body = _body_lines(snapshot, view, style, now=now)
    foot = _warning_lines(snapshot, style)
    if style.height is None:
        return Frame([*head, "", *body, *(["", *foot] if foot else ())], view)
    most = style.height // _LINES_PER_WARNING
    foot = [*foot[len(foot) - min(most, len(foot)) :], style.fit(_status_line(view))]
    room = style.height - len(head) - len(foot) - 1
    if room < 1:  # a tiny terminal: the table is what matters
        head, foot, room = head[:1], foot[-1:], max(style.height - 3, 1)
    scroll = max(0, min(view.scroll, len(body) - room))
    shown = body[scroll : scroll + room]
    shown += [""] * (room - len(shown))
    lines = [*head, _more_line(scroll, room, len(body), style), *shown, *foot]
    return Frame(lines[: style.height], replace(view, scroll=scroll))


def apply_key(view: ViewState, key: str, *, page: int) -> ViewState:
    """The view after a key, which is a character or the name of a special key."""
    if view.typing:
        return _typed(view, key)
    if key in _SCROLL_STEPS:
        by_page, step = _SCROLL_STEPS[key]
        return replace(view, scroll=max(view.scroll + step * (page if by_page else 1), 0))
    match key:
        case "s":
            orders = [*SORT_ORDERS]
            following = (orders.index(view.order) + 1) % len(orders)
            return replace(view, order=orders[following], scroll=0)
        case "/":
            return replace(view, typing=True)
        case "escape":
            return replace(view, filter="", scroll=0)
        case _:
            return view


def _typed(view: ViewState, key: str) -> ViewState:
    match key:
        case "enter":
            return replace(view, typing=False)
        case "escape":
            return replace(view, typing=False, filter="", scroll=0)
        case "backspace":
            return replace(view, filter=view.filter[:-1], scroll=0)
        case _ if len(key) == 1 and key.isprintable():
            return replace(view, filter=view.filter + key, scroll=0)
        case _:
            return view


def _head_lines(snapshot: Snapshot, style: FrameStyle, *, now: float, interval: float) -> list[str]:
    response = snapshot.response or {}
    supervisors = response.get("supervisors") or ([response] if "pid" in response else [])
    names = [
        f"longwatch {each.get('command') or 'supervisor'} {each['pid']}" for each in supervisors
    ]
    shown = ", ".join(names[:_MAX_SUPERVISORS])
    if len(names) > _MAX_SUPERVISORS:
        shown += f" and {len(names) - _MAX_SUPERVISORS} more"
    programs = response.get("programs", [])
    facts = [shown or "longwatch", _count_states(programs), f"every {interval:g} s"]
    lines = [style.paint(style.fit(printable("  ".join(filter(None, facts)))), _BOLD)]
    if problem := _answer_problem(snapshot, now=now, interval=interval):
        lines.append(style.paint(style.fit(printable(problem)), _RED))
    return lines


def _answer_problem(snapshot: Snapshot, *, now: float, interval: float) -> str:
    """Why the table is old; empty if it is not. A frozen supervisor is late before it counts as
    one that does not answer.
    """
    seconds = now - snapshot.answered_at if snapshot.answered_at else 0.0
    since = f" (the table is {age(seconds)} old)" if snapshot.answered_at else ""
    if snapshot.problem:
        return f"no answer{since}: {snapshot.problem}"
    return f"no answer yet{since}" if seconds > interval + _LATE_SECONDS else ""


def _count_states(programs: Sequence[JsonObject]) -> str:
    """`12 programs: 10 up, 2 broken`."""
    counts: dict[str, int] = {}
    for program in sorted(programs, key=_state_key):
        state = program["state"]
        state = "not ready" if state == "up" and not program["ready"] else state
        counts[state] = counts.get(state, 0) + 1
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    return f"{pluralize(len(programs), 'program')}: {states}" if states else ""


def _body_lines(snapshot: Snapshot, view: ViewState, style: FrameStyle, *, now: float) -> list[str]:
    if snapshot.response is None:
        return []
    wanted = view.filter.casefold()
    programs = [each for each in snapshot.response["programs"] if wanted in each["name"].casefold()]
    order = SORT_ORDERS[view.order]
    if order is not None:
        programs.sort(key=order)
    workers = [each for each in snapshot.workers if wanted in str(each["program"]).casefold()]
    table = (
        [f"no program matches {printable(view.filter)!r}"]
        if wanted and not programs
        else status_lines(
            _with_programs(snapshot.response, programs),
            now=now,
            width=style.width,
            colour=style.colour,
        )
    )
    loops = _loop_lines(workers, style)
    return [*map(style.fit_coloured, table), *(["", *loops] if loops else ())]


def _with_programs(response: JsonObject, programs: list[JsonObject]) -> JsonObject:
    """The response with only these programs, and the supervisors that have some of them."""
    owners = {program.get("supervisor") for program in programs}
    supervisors = [each for each in response.get("supervisors", ()) if each["pid"] in owners]
    return {**response, "programs": programs, "supervisors": supervisors}


def _loop_lines(workers: Iterable[JsonObject], style: FrameStyle) -> list[str]:
    """A row for each loop of each worker; empty without workers."""
    rows: list[tuple[str, ...]] = []
    colours: list[str] = []
    for worker in workers:
        for loop in worker.get("loops", ()):
            rows.append(_loop_row(worker, loop))
            colours.append(_loop_colour(worker, loop))
    if not rows:
        return []
    columns = zip(_LOOP_HEADERS, *rows, strict=True)
    widths = {column[0]: max(map(text_width, column)) for column in columns}
    least = {name: min(widths[name], _MIN_NAME_WIDTH) for name in ("worker", "loop")}
    shown = fitting_columns({**widths, **least}, style.width, drop=_LOOP_DROPPED_FIRST)
    widths = {name: widths[name] for name in shown}
    for name, smallest in least.items():
        spare = style.width - sum(widths.values()) - len(GAP) * (len(widths) - 1)
        widths[name] = min(widths[name], max(widths[name] + spare, smallest))
    lines = [_loop_line(_LOOP_HEADERS, widths, style)]
    for row, code in zip(rows, colours, strict=True):
        line = _loop_line(row, widths, style)
        lines.append(style.paint(line, code) if code else line)
    return lines


def _loop_row(worker: JsonObject, loop: JsonObject) -> tuple[str, ...]:
    ready = "yes" if worker.get("ready") else f"no: {worker.get('reason') or 'unknown'}"
    cells = (
        worker["program"],
        loop["name"],
        _seconds(loop.get("age")),
        _seconds(loop.get("max_age")),
        loop.get("holding"),
        "stalled" if worker.get("stalled") else ready,
    )
    return tuple("" if cell is None else printable(str(cell)) for cell in cells)


def _loop_colour(worker: JsonObject, loop: JsonObject) -> str:
    """Red for a stalled loop, yellow for one whose beat is older than half the threshold."""
    if worker.get("stalled"):
        return _RED
    threshold, seen = worker.get("threshold"), loop.get("age") or 0.0
    return _YELLOW if threshold and seen > threshold / 2 else ""


def _loop_line(row: Sequence[str], widths: Mapping[str, int], style: FrameStyle) -> str:
    cells = []
    texts = dict(zip(_LOOP_HEADERS, row, strict=True))
    for name, width in widths.items():
        shown = shorten_middle(texts[name], width)
        space = " " * (width - text_width(shown))
        cells.append(space + shown if name in _LOOP_NUMBERS else shown + space)
    return style.fit(GAP.join(cells).rstrip())


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f} s" if value < 100 else age(value)  # noqa: PLR2004 - tenths do not matter there


def _warning_lines(snapshot: Snapshot, style: FrameStyle) -> list[str]:
    from longwatch.observe.log_format import to_pretty  # noqa: PLC0415 - help must not wait for it

    return [
        style.paint(style.fit(to_pretty(record).split("\n", 1)[0]), _level_colour(record))
        for record in snapshot.warnings
    ]


def _level_colour(record: Mapping[str, object]) -> str:
    return _YELLOW if record.get("level") == "warning" else _RED


def _more_line(scroll: int, room: int, total: int, style: FrameStyle) -> str:
    """The line above the table: empty, or what part of it is shown."""
    if total <= room:
        return ""
    return style.fit(f"lines {scroll + 1} to {min(scroll + room, total)} of {total}")


def _status_line(view: ViewState) -> str:
    if view.typing:
        return f"filter: {printable(view.filter)}▏  Enter keeps it, Esc removes it"
    parts = [KEYS_HELP, f"order: {view.order}"]
    if view.filter:
        parts.append(f"filter: {printable(view.filter)} (Esc removes it)")
    return "  ".join(parts)
