"""The Markdown of this repository, in the pieces that the tests of the documentation look at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<info>.*)$")
_HEADING = re.compile(r"^(#+) +(.*?) *#* *$")
_LINK = re.compile(r"(?<!\\)\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it starts, what stands behind the fence, and its text."""

    path: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def location(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True)
class Page:
    """A Markdown file split into its fenced blocks and the prose around them."""

    path: Path
    blocks: tuple[Block, ...]
    prose: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Page:
        blocks, prose = [], []
        lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))
        for number, line in lines:
            if fence := _FENCE.match(line):
                blocks.append(
                    Block(path, number, tuple(fence["info"].split()), _block_text(fence, lines))
                )
            else:
                prose.append(line)
        return cls(path, tuple(blocks), tuple(prose))

    def headings(self) -> list[tuple[int, str]]:
        """Level and text of every heading."""
        return [(len(found[1]), found[2]) for line in self.prose if (found := _HEADING.match(line))]

    def anchors(self) -> set[str]:
        """What `#...` may point to: headings in lower case, without punctuation, spaces as
        dashes, repeats numbered.
        """
        seen: dict[str, int] = {}
        return {_number_repeats(_slug(text), seen) for _, text in self.headings()}

    def links(self) -> list[str]:
        text = re.sub(r"(`+)[^`].*?\1", "", "\n".join(self.prose))
        return _LINK.findall(text)


def pages(*patterns: str) -> list[Page]:
    """Every page that matches, in a fixed order."""
    return [
        Page.read(path)
        for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)})
    ]


def section(page: Page, title: str) -> str | None:
    """The text, blocks too, below the heading that is exactly this title (backticks aside), up
    to the next of its level.
    """
    level = next((level for level, text in page.headings() if text.replace("`", "") == title), None)
    if level is None:
        return None
    start = rf"^#{{{level}}} +`?{re.escape(title)}`? *$"
    body = re.split(start, page.path.read_text(encoding="utf-8"), maxsplit=1, flags=re.MULTILINE)[1]
    return re.split(rf"^#{{1,{level}}} ", body, maxsplit=1, flags=re.MULTILINE)[0]


def _block_text(fence: re.Match[str], lines: Iterator[tuple[int, str]]) -> str:
    """The lines up to the closing fence, without the indentation of the opening one."""
    taken = []
    for _, line in lines:
        if line.strip() == fence["ticks"]:
            break
        taken.append(line.removeprefix(fence["indent"]))
    return "\n".join(taken) + "\n"


def _slug(heading: str) -> str:
    plain = re.sub(r"\]\([^)]*\)", "]", heading.lower())
    return re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")


def _number_repeats(slug: str, seen: dict[str, int]) -> str:
    count = seen[slug] = seen.get(slug, -1) + 1
    return f"{slug}-{count}" if count else slug
