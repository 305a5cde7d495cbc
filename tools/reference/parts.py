"""The generated parts of a page: find, replace, add and remove them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = ROOT / "docs" / "reference"

_PART = re.compile(
    r"<!-- generated (?P<name>[^\n]+?) -->\n.*?<!-- end of generated -->\n\n?", re.DOTALL
)

_OPTIONS = re.compile(r"^\| option \|.*\n(?:\|.*\n)+", re.MULTILINE)
_FIRST_PARAGRAPH = re.compile(r"\n*(?:```console\n.*?```\n\n)?(?:[^\n]+\n)+", re.DOTALL)


@dataclass(frozen=True)
class Part:
    """One generated part, and the section that a page gets if it has no place for it."""

    text: str
    heading: str = ""
    """The heading of a section of its own, with its hashes."""
    intro: str = ""
    """The prose of that section; written once, then kept as if written by hand."""


@dataclass(frozen=True)
class ReferencePage:
    """A page, and the function that generates its parts by name."""

    file: str
    parts: Callable[[], Mapping[str, Part]]

    @property
    def path(self) -> Path:
        return PAGES / self.file

    def render(self) -> str:
        """The page as the code says it has to be."""
        return fill(self.path.read_text(encoding="utf-8"), self.parts())


def fill(page: str, parts: Mapping[str, Part]) -> str:
    """The page with these parts, in place of those that it has."""
    found = {match["name"] for match in _PART.finditer(page)}

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return _marked(name, parts[name]) + "\n" if name in parts else ""

    filled = _PART.sub(replaced, page).rstrip("\n") + "\n"
    for name, part in parts.items():
        if name not in found:
            filled = _with_part(filled, name, part)
    return filled.rstrip("\n") + "\n"


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of Markdown; an empty cell is one space."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join(("| " + " | ".join(line) + " |").replace("  ", " ") for line in lines)


def _marked(name: str, part: Part) -> str:
    return f"<!-- generated {name} -->\n{part.text.strip()}\n<!-- end of generated -->\n"


def _with_part(page: str, name: str, part: Part) -> str:
    """The page with a part that it has no place for: in the section that has its heading, at
    whatever level, else in a section of its own at the end.
    """
    title = re.escape(part.heading.lstrip("# "))
    section = re.search(rf"^#+ {title}\n(?P<body>.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    marked = _marked(name, part)
    if section is None:
        pieces = [part.heading, part.intro, marked.rstrip("\n")]
        return page + "\n" + "\n\n".join(piece for piece in pieces if piece) + "\n"
    start, end = section.span("body")
    return page[:start] + _inserted(section["body"], marked) + page[end:]


def _inserted(body: str, marked: str) -> str:
    """The body of a section with a part: in place of a table of options that was written by
    hand, else behind the first paragraph.
    """
    by_hand = _OPTIONS.search(body)
    if by_hand:
        return body[: by_hand.start()] + marked + body[by_hand.end() :]
    first = _FIRST_PARAGRAPH.match(body)
    at = first.end() if first else 0
    return body[:at].rstrip("\n") + "\n\n" + marked + "\n" + body[at:].lstrip("\n")
