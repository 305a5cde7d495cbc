"""A map over 1,000 pages: each page is an attempt of its own, which fails and is retried alone.

`python thousand_pages.py` shows which pages were fetched, in a few seconds. The site is a fake in
this file, and no network is used.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

from longwatch.errors import ComputationFailedError
from longwatch.flow import Flow, FlowContext, Graph

PAGES = [f"https://example.org/{number}" for number in range(1000)]
BROKEN = "https://example.org/404"
SLOW = "https://example.org/13"
REPAIRED = Path("repaired")
FETCHES = Path("fetches.log")

graph = Graph("thousand-pages", version="1")
graph.input("pages")


@graph.map(over="pages", max_in_flight=100, max_attempts=2)
def lengths(page: str, context: FlowContext) -> int:
    """Fetch one page. At most 100 pages have an open attempt at the same time."""
    return len(fetch(page, context.attempt))


@graph.compute(after=["lengths"])
def total(lengths: list[int]) -> int:
    return sum(lengths)


flow = Flow("sqlite:///thousand_pages.db", graphs=[graph])


# --- a site ---


def fetch(page: str, attempt: int) -> str:
    log(page)
    time.sleep(0.002)
    if page == BROKEN and not REPAIRED.exists():
        raise FileNotFoundError(f"{page}: 404")
    if page == SLOW and attempt == 1:
        raise TimeoutError(f"{page}: no answer")
    return f"the text of {page}"


def log(page: str) -> None:
    """Append a line in one write, so that lines of several processes stay whole."""
    file = os.open(FETCHES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{page}\n".encode())
    os.close(file)


# --- what was fetched ---


@contextmanager
def crawling() -> Iterator[Flow]:
    """A new store in the present directory, with a worker in a thread."""
    with Flow("sqlite:///pages.db", graphs=[graph]) as crawl, crawl.worker(concurrency=16):
        yield crawl


def show(title: str, before: Counter[str]) -> Counter[str]:
    now = Counter(FETCHES.read_text(encoding="utf-8").split())
    new = now - before
    names = ", ".join(sorted(page.rpartition("/")[2] for page in new)) if len(new) < 10 else ""
    print(f"{title}: {new.total()} fetches of {len(new)} pages {names}".rstrip())
    return now


def main() -> None:
    logging.getLogger("longwatch").setLevel(logging.CRITICAL)  # the failures are printed below
    with tempfile.TemporaryDirectory() as folder, chdir(folder), crawling() as crawl:
        execution = crawl.start("thousand-pages", pages=PAGES)
        try:
            execution.get("total", timeout=60)
        except ComputationFailedError as error:
            print(error)
        seen = show("first run", Counter())

        REPAIRED.touch()
        execution.retry("lengths")
        print(f"total: {execution.get('total', timeout=60)} characters")
        seen = show("retry", seen)

        execution.set(pages=["https://example.org/new", *PAGES[1:], "https://example.org/newer"])
        print(f"total: {execution.get('total', timeout=60)} characters")
        show("two pages added, one removed", seen)


if __name__ == "__main__":
    main()
