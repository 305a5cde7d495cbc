"""Sends a page to the mailbox each second, and starts a report every 20 seconds.

Each number is recorded before it is sent and again after the commit. A number that was recorded
only once may be in the mailbox or not: this process was killed in between.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from pages import pages, record
from reports import flow

SHOPS = ["Basel", "Bern", "Chur", "Geneva", "Lugano", "Olten", "Thun", "Zurich"]
SECONDS_A_PAGE = 1.0
PAGES_A_REPORT = 20


def next_number() -> int:
    """The number after the last one that was recorded, so that a restart repeats none."""
    asked = Path("pages-asked.txt")
    lines = asked.read_text(encoding="utf-8").split() if asked.exists() else []
    return int(lines[-1]) + 1 if lines else 1


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    number = next_number()
    while True:
        record("pages-asked.txt", number)
        pages.send({"page": number})
        record("pages-sent.txt", number)
        if number % PAGES_A_REPORT == 1:
            execution = flow.start("report", shops=SHOPS)
            record("reports-started.txt", execution.id)
        number += 1
        time.sleep(SECONDS_A_PAGE)


if __name__ == "__main__":
    main()
