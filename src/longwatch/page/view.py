"""What views and actions get and return. Both run in the pool, so they may block for a while."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from longwatch.page.data import PageData

_PARAMETER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """A request for a page. `parameters` are those of the path, `query` and `form` are flat: of a
    repeated name the last value counts. Zero bytes are left out.
    """

    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str, default: int = 1, *, most: int = 1_000_000) -> int:
        """A positive number of the query; the default if it is missing or something else."""
        text = self.query.get(name, "")
        found = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0  # noqa: PLR2004 - digits of a sane number
        return min(found, most) if found > 0 else default


@dataclass(frozen=True, slots=True)
class View:
    """A page: its title, its template, and the facts that the template shows."""

    title: str
    template: str
    facts: Mapping[str, object] = field(default_factory=dict)
    status: int = HTTPStatus.OK


@dataclass(frozen=True, slots=True)
class ActionDone:
    """The result of an action: where to go next, and what to say there."""

    back: str
    message: str
    ok: bool = True


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What the confirmation page of an action says. `subject` and `program` name for the log what
    it acts on.
    """

    title: str
    text: str
    button: str
    back: str
    subject: str
    program: str = ""
    danger: bool = True


ViewFunction = Callable[["PageData", ViewRequest], View]


class NotFoundError(Exception):
    """A view raises it for something that does not exist; the page answers with 404."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path and its view. `{name}` in the path matches one segment. `navigation` is the name in
    the navigation; empty for pages that are reached by links.
    """

    pattern: str
    view: ViewFunction
    navigation: str = ""

    def match(self, path: str) -> dict[str, str] | None:
        return match_path(self.pattern, path)


@dataclass(frozen=True, slots=True)
class Action:
    """A path that is posted to. `confirm` describes what will happen, `run` does it, `name` is its
    name in the event.
    """

    pattern: str
    name: str
    confirm: Callable[[PageData, ViewRequest], Confirmation]
    run: Callable[[PageData, ViewRequest], ActionDone]

    def match(self, path: str) -> dict[str, str] | None:
        return match_path(self.pattern, path)


def match_path(pattern: str, path: str) -> dict[str, str] | None:
    """The parameters of an encoded path that fits the pattern; None if it does not."""
    wanted, found = pattern.split("/"), path.split("/")
    if len(wanted) != len(found):
        return None
    parameters: dict[str, str] = {}
    for expected, segment in zip(wanted, found, strict=True):
        text = unquote(segment, errors="replace")
        if named := _PARAMETER.fullmatch(expected):
            if not text or "\0" in text:  # nothing has such a name, and PostgreSQL refuses it
                return None
            parameters[named[1]] = text
        elif expected != text:
            return None
    return parameters


def path_to(*segments: str) -> str:
    """The path of these segments, encoded: `/programs/a%2Fb`."""
    return "/" + "/".join(quote(segment, safe="", errors="replace") for segment in segments)
