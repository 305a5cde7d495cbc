"""The documentation as a site: it builds without a network, its links lead somewhere, and a browser
finds pages in it.
"""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import built_site
from markdown_files import ROOT, pages
from requires import require_tool

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Request, ViewportSize
    from playwright.sync_api import Page as BrowserPage

BROWSER_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE: ViewportSize = {"width": 390, "height": 800}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
WIDE_PAGES = (
    "index",
    "reference/cli",
    "reference/settings",
    "discussions/architecture",
    "repository/bench/RESULTS",
)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    built_site.build_site(directory)
    return directory


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(QuietHandler, directory=str(site))
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    require_tool("chromium")
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - half a second

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=BROWSER_FLAGS
        )
        yield opened
        opened.close()


def watch(page: BrowserPage, address: str) -> list[str]:
    """The errors of the page from now on, and its requests to other addresses than the site's."""
    problems: list[str] = []

    def note_error(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    def note_request(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            problems.append(request.url)

    page.on("console", note_error)
    page.on("pageerror", lambda error: problems.append(f"{error}"))
    page.on("request", note_request)
    return problems


def test_every_link_and_every_anchor_of_the_site_exists(site: Path) -> None:
    faults = {
        page.path.relative_to(site).as_posix(): built_site.broken_links(site, page)
        for page in built_site.site_pages(site)
    }
    assert {} == {path: links for path, links in faults.items() if links}


def test_the_site_has_every_page_of_the_docs(site: Path) -> None:
    sources = [page.path.relative_to(ROOT / "docs") for page in pages("docs/**/*.md")]
    names = [
        source.with_name("index.html") if source.name == "README.md" else source
        for source in sources
    ]
    assert [] == [name for name in names if not (site / name).with_suffix(".html").is_file()]


def test_no_page_and_no_style_loads_anything_from_elsewhere(site: Path) -> None:
    loaded = [
        (page.path.name, address)
        for page in built_site.site_pages(site)
        for address in page.loaded
        if built_site.is_external(address)
    ]
    styles = [
        (path.name, address)
        for path in site.rglob("*.css")
        for address in re.findall(r"url\(\s*[\"']?((?:https?:)?//[^)]*)", path.read_text("utf-8"))
    ]
    assert [] == loaded + styles


def test_a_browser_finds_a_page_by_a_word_and_sees_no_error(browser: Browser, address: str) -> None:
    page = browser.new_page(viewport=DESKTOP)
    problems = watch(page, address)
    page.goto(f"{address}/index.html")
    page.locator("input.md-search__input").click()
    page.keyboard.type("fencing term")
    page.locator("a.md-search-result__link", has_text="Glossary").first.click()
    page.wait_for_url("**/reference/glossary.html*")
    assert "Glossary" == page.locator("h1").inner_text().removesuffix("¶").strip()
    page.close()
    assert [] == problems


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_wide_tables_and_code_scroll_in_place(
    size: ViewportSize, browser: Browser, address: str
) -> None:
    page = browser.new_page(viewport=size)
    problems = watch(page, address)
    widths = {}
    for name in WIDE_PAGES:
        page.goto(f"{address}/{name}.html")
        widths[name] = page.evaluate("document.documentElement.scrollWidth")
    page.close()
    assert ({}, []) == (
        {name: width for name, width in widths.items() if width > size["width"]},
        problems,
    )
