"""Renders views to HTML. Every value is escaped; templates mark the sections that are live.

The HTML of a live section is compared without the texts of ages, which change by themselves:
`static/page.js` keeps those current in the browser.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from longwatch.core.sanitize import printable, printable_lines
from longwatch.page.view import View, path_to

_AGE_TEXT = re.compile(r"(<time data-(?:age|until)[^>]*>)[^<]*")
_DIGEST_CHARS = 16
_UNITS = ("KiB", "MiB", "GiB", "TiB")
_FIRST_MOMENT = datetime(1, 1, 2, tzinfo=UTC).timestamp()
_LAST_MOMENT = datetime(9999, 12, 30, tzinfo=UTC).timestamp()
_STEPS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


@dataclass(frozen=True, slots=True)
class RenderedPage:
    """A page as HTML, and its live sections by id."""

    html: str
    sections: Mapping[str, RenderedSection]


@dataclass(frozen=True, slots=True)
class RenderedSection:
    """A live section with its own element. Equal digests mean the same content, apart from ages."""

    html: str
    digest: str


@dataclass(frozen=True, slots=True)
class NavigationEntry:
    """A link of the navigation."""

    path: str
    name: str


class PageRenderer:
    """Renders templates. Thread-safe. `action_token` returns the token of a form by its path."""

    def __init__(
        self, *, action_token: Callable[[str], str], navigation: Iterable[NavigationEntry] = ()
    ) -> None:
        self._navigation = tuple(navigation)
        self._environment = Environment(
            loader=PackageLoader("longwatch.page"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "age": age,
            "bytes": byte_size,
            "clock": clock_time,
            "duration": duration,
            "moment": moment,
            "printable": printable,
            "printable_lines": printable_lines,
            "until": until,
            "thousands": lambda number: f"{number:,}",
        }
        self._environment.globals |= {
            "action_token": action_token,
            "path_to": path_to,
            "with_query": with_query,
        }

    def render(self, view: View, *, path: str, notice: object = None) -> RenderedPage:
        """Render a view below the layout. `path` is the path of the request, without its query."""
        sections: dict[str, RenderedSection] = {}

        def live(
            name: str, *, caller: Callable[[], str], tag: str = "section", **attributes: str
        ) -> Markup:
            section = _live_section(name, str(caller()), tag, attributes)
            sections[name] = section
            return Markup(section.html)  # noqa: S704 - the caller's block is escaped already

        html = self._environment.get_template(view.template).render(
            {
                **view.facts,
                "title": view.title,
                "live": live,
                "here": path,
                "navigation": self._navigation,
                "notice": notice,
            }
        )
        return RenderedPage(html, sections)


def _live_section(name: str, body: str, tag: str, attributes: Mapping[str, str]) -> RenderedSection:
    content = _AGE_TEXT.sub(r"\1", body)
    digest = hashlib.sha256(content.encode(errors="replace")).hexdigest()[:_DIGEST_CHARS]
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
    )
    opened = f'<{tag} id="{escape(name)}" data-live="{digest}"{written}>'
    return RenderedSection(f"{opened}{body}</{tag}>", digest)


# --- filters ---


def duration(seconds: float | None) -> str:
    """A length of time: `4 s`, `3 min 20 s`, `2 d 4 h`; empty for None."""
    if seconds is None:
        return ""
    whole = int(min(max(0, seconds), _LAST_MOMENT))
    for size, unit, small_size, small_unit in _STEPS:
        if whole >= size:
            large, rest = divmod(whole, size)
            small = rest // small_size
            return f"{large} {unit} {small} {small_unit}" if small else f"{large} {unit}"
    return f"{seconds:.1f} s" if 0 < seconds < 1 else f"{whole} s"


def age(moment_then: float | None, suffix: str = "") -> Markup:
    """The time since a moment (wall time), which the browser keeps current. Empty for None."""
    if not moment_then:
        return Markup("")
    moment_then = _shown_moment(moment_then)
    text = duration(time.time() - moment_then)
    return Markup('<time data-age="{:.3f}" datetime="{}" title="{}">{}</time>{}').format(
        moment_then, _iso(moment_then), clock_time(moment_then), text, suffix
    )


def until(then: float | None) -> Markup:
    """The time until a moment, `in 4 s`, which the browser keeps current; `now` once it is over."""
    if not then:
        return Markup("")
    then = _shown_moment(then)
    left = then - time.time()
    return Markup('<time data-until="{:.3f}" datetime="{}" title="{}">{}</time>').format(
        then, _iso(then), clock_time(then), f"in {duration(left)}" if left > 0 else "now"
    )


def moment(then: float | None) -> Markup:
    """A moment (wall time) as date and time, which the browser shows in its own zone."""
    if not then:
        return Markup("")
    return Markup('<time data-moment datetime="{}">{}</time>').format(_iso(then), clock_time(then))


def clock_time(then: float) -> str:
    """A moment as date and time in UTC."""
    return f"{datetime.fromtimestamp(_shown_moment(then), UTC):%Y-%m-%d %H:%M:%S UTC}"


def byte_size(count: float | None) -> str:
    """A number of bytes: `512 B`, `3.4 MiB`; empty for None."""
    if count is None:
        return ""
    if count < 1024:  # noqa: PLR2004 - a kibibyte
        return f"{count:.0f} B"
    for unit in _UNITS:
        count /= 1024
        if count < 1000 or unit == _UNITS[-1]:  # noqa: PLR2004 - three digits before the unit
            break
    return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"  # noqa: PLR2004 - one digit more for small numbers


def with_query(path: str, query: Mapping[str, Any], **changes: object) -> str:
    """A path with the query of the request and some changes; None or "" removes a parameter."""
    merged = {**query, **{name: "" if value is None else value for name, value in changes.items()}}
    given = {name: value for name, value in merged.items() if value != ""}
    text = urlencode(given, errors="replace")
    return f"{path}?{text}" if text else path


def _iso(then: float) -> str:
    found = datetime.fromtimestamp(_shown_moment(then), UTC)
    return found.isoformat(timespec="seconds").replace("+00:00", "Z")


def _shown_moment(then: float) -> float:
    """The moment, or the nearest that has a date: files and stores may have others."""
    return min(max(_FIRST_MOMENT, then), _LAST_MOMENT)
