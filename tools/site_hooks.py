"""Hooks of mkdocs: the index of the docs is the navigation, files outside docs become pages.

The same Markdown works in the repository and on the site: a link such as `../CHANGELOG.md` leads to
a page that is made of that file, and a link to a directory to a list of its files.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "README.md"
OUTSIDE = "repository"
"""The folder of the site with the pages that are made of files outside docs."""

_FENCED = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_INFO = re.compile(r"^( *```+\w+) [^\n`]+$", re.MULTILINE)
_LINK = re.compile(r"(?<!\\)(\]\(<?)([^)\s>#]+)((?:#[^)\s>]*)?>?(?: +\"[^\"]*\")?\))")
_SCHEME = re.compile(r"[a-z][a-z+.-]*:")
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\)", re.MULTILINE)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the navigation of the sections of the index: `## How-to: workflows` is the part
    `Workflows` of the section `How-to`.
    """
    sections: dict[str, list[Any]] = {}
    for heading, entries in index_sections(INDEX.read_text(encoding="utf-8")):
        section, _, part = heading.partition(": ")
        pages = [{title: _site_path(_target(INDEX, link) or INDEX)} for title, link in entries]
        sections.setdefault(section, []).extend(
            [{part[:1].upper() + part[1:]: pages}] if part else pages
        )
    config.nav = [{section: pages} for section, pages in sections.items()]
    return config


def index_sections(text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The headings of the index, each with the titles and links of its pages."""
    _, *parts = re.split(r"^## ", text, flags=re.MULTILINE)
    return [(part.partition("\n")[0].strip(), _ENTRY.findall(part)) for part in parts]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs to which a page leads."""
    waiting = sorted(DOCS.rglob("*.md"))
    seen: set[Path] = set()
    while waiting:
        for target in sorted(set(_outside_links(waiting.pop())) - seen):
            seen.add(target)
            waiting.append(target)
            files.append(
                File.generated(
                    config,
                    _site_path(target),
                    content=_page_text(target),
                    inclusion=InclusionLevel.NOT_IN_NAV,
                )
            )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files outside docs lead to their pages on the site."""
    del config, files
    here = page.file.src_uri
    source = DOCS / here
    if here.startswith(OUTSIDE):
        source = ROOT / posixpath.relpath(here, OUTSIDE)

    def rewrite(link: re.Match[str]) -> str:
        target = _target(source, link[2])
        if target is None:
            return link[0]
        return link[1] + posixpath.relpath(_site_path(target), posixpath.dirname(here)) + link[3]

    return _INFO.sub(r"\1", _replace_links(markdown, rewrite))


def _site_path(path: Path) -> str:
    """Where a file of the repository is on the site, as the path of its Markdown."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{OUTSIDE}/{name}/index.md"
    return f"{OUTSIDE}/{name}" if path.suffix == ".md" else f"{OUTSIDE}/{name}.md"


def _target(source: Path, link: str) -> Path | None:
    """The file or directory of the repository to which a link leads; None if it leads elsewhere."""
    if _SCHEME.match(link):
        return None
    path = (source.parent / link).resolve()
    return path if path.is_relative_to(ROOT) and path.exists() else None


def _outside_links(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from _entries(path)
    elif path.suffix == ".md":
        for link in _LINK.finditer(_FENCED.sub("", path.read_text(encoding="utf-8"))):
            target = _target(path, link[2])
            if target is not None and not target.is_relative_to(DOCS):
                yield target


def _entries(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith((".", "__")))


def _page_text(path: Path) -> str:
    """The Markdown of the page: that of the file, the file as a block of code, or the list of a
    directory.
    """
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        links = "\n".join(f"- [{entry.name}]({entry.name})" for entry in _entries(path))
        return f"# {name}\n\n{links}\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    language = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}
    return f"# {name}\n\n````{language.get(path.suffix, 'text')}\n{text}````\n"


def _replace_links(markdown: str, rewrite: Callable[[re.Match[str]], str]) -> str:
    """Rewrite the links outside fenced blocks."""
    pieces, end = [], 0
    for block in _FENCED.finditer(markdown):
        pieces += [_LINK.sub(rewrite, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*pieces, _LINK.sub(rewrite, markdown[end:])])
