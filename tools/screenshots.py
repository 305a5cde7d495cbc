"""Take the screenshots of the documentation: run the demo, let something fail, and photograph the
status page in Chromium. `make screenshots` replaces the pictures in docs/images.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from playwright.sync_api import Page, sync_playwright

from longwatch import open_mailbox

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SIZE = {"width": 1200, "height": 780}
TIMEOUT = 120.0
REFUNDS = [{"order": order, "cents": None} for order in (17, 23, 42)]
T = TypeVar("T")

sys.path.insert(0, str(ROOT / "examples" / "demo"))
from stage import STORE, Stage  # noqa: E402 - it is beside the demo


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="longwatch-demo-") as place:
        stage = Stage(Path(place))
        stage.prepare()
        stage.start()
        try:
            link = _wait_for(lambda: stage.command("page", "--link"))
            _reject_refunds(stage)
            take_all(stage, link)
        finally:
            stage.stop()


def _reject_refunds(stage: Stage) -> None:
    """Fill a mailbox with dead letters."""
    with open_mailbox(f"sqlite:///{stage.place / STORE}", "refunds") as refunds:
        refunds.send_many(REFUNDS)
        for message in refunds.receive(max_messages=len(REFUNDS)):
            message.reject("a refund without an amount")


def take_all(stage: Stage, link: str) -> None:
    with opened_page(link, scheme="light") as page:
        _wait_for(lambda: _has_event(stage, "worker_stalled"))
        page.goto(page.url)
        _take(page, "page-overview")
        page.goto(_address(link, "/workers"))
        _take(page, "page-workers")
        page.goto(_address(link, "/restarts"))
        _take(page, "page-restarts")
    with opened_page(link, scheme="dark") as page:
        started = stage.totals().reports
        _wait_for(lambda: stage.totals().reports > started)
        page.goto(_address(link, "/flows"))
        page.locator("#executions th a").first.click()
        _take(page, "page-execution")
        page.goto(_address(link, "/runner"))
        _take(page, "page-runner")
        page.goto(_address(link, "/mailboxes"))
        page.get_by_role("link", name="refunds", exact=True).click()
        _take(page, "page-mailbox")


@contextmanager
def opened_page(link: str, *, scheme: str) -> Iterator[Page]:
    """The status page in a browser of its own, in a light or dark colour scheme."""
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        context = browser.new_context(
            viewport=SIZE,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page = context.new_page()
        page.goto(link)
        yield page
        browser.close()


def _take(page: Page, name: str) -> None:
    page.wait_for_timeout(1000)
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"docs/images/{name}.png", flush=True)


def _address(link: str, path: str) -> str:
    return link.partition("/?")[0] + path


def _has_event(stage: Stage, name: str) -> bool:
    log = stage.state / "logs" / "watchdog.log"
    return f'"event":"{name}"' in log.read_text(encoding="utf-8")


def _wait_for(read: Callable[[], T]) -> T:
    deadline = time.monotonic() + TIMEOUT
    while not (found := read()):
        if time.monotonic() > deadline:
            sys.exit("the demo did not come to that state in time")
        time.sleep(0.5)
    return found


if __name__ == "__main__":
    main()
