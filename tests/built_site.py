"""The documentation as a built site: its pages, and where their links lead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_files import ROOT

BUILD_LIMIT = 120
_LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""The tags that a browser loads by itself, with the attribute that has the address."""


@dataclass
class SitePage(HTMLParser):
    """A built page: its anchors, its links, and the files that a browser loads for it."""

    path: Path
    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if address := values.get(_LOADED.get(tag, "")):
            self.loaded.append(address)


@cache
def read_page(path: Path) -> SitePage:
    return SitePage(path)


def build_site(directory: Path) -> None:
    """Build the site as `make docs` does; a warning of mkdocs fails the build."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", directory],
        check=False,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT,
    )
    assert 0 == done.returncode, done.stdout + done.stderr


def site_pages(site: Path) -> list[SitePage]:
    return [read_page(path) for path in sorted(site.rglob("*.html"))]


def is_external(address: str) -> bool:
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in {"", "data"}


def broken_links(site: Path, page: SitePage) -> list[str]:
    """The links and loaded files of a page that lead to no file or no anchor of the site."""
    own = [each for each in (*page.links, *page.loaded) if not is_external(each)]
    return [each for each in own if not each.startswith("data:") and _is_broken(site, page, each)]


def _is_broken(site: Path, page: SitePage, address: str) -> bool:
    parts = urlsplit(address)
    start = site if parts.path.startswith("/") else page.path.parent
    below = unquote(parts.path).lstrip("/")
    target = (start / below).resolve() if parts.path else page.path
    if target.is_dir():
        target /= "index.html"
    if not target.is_relative_to(site) or not target.is_file():
        return True
    if not parts.fragment or parts.fragment.startswith("__"):
        return False
    return target.suffix == ".html" and unquote(parts.fragment) not in read_page(target).anchors
