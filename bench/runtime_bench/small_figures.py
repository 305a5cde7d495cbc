"""What a beat, a renewal of many leases and an idle group cost."""

from __future__ import annotations

import statistics
import time
import timeit
from pathlib import Path

from longwatch.host.beatpage import BeatPage
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox
from longwatch.runtime import Heartbeat

BEATS = 200_000
HELD = 1_000


def beat() -> float:
    """Nanoseconds of `Heartbeat.beat()`."""
    heartbeat = Heartbeat()
    return min(timeit.repeat(heartbeat.beat, number=BEATS, repeat=5)) / BEATS * 1e9


def page_beat(folder: Path) -> float:
    """Nanoseconds of a beat on the page."""
    page = BeatPage(folder / "page", 8)
    try:
        return min(timeit.repeat(lambda: page.beat(0, 1.0), number=BEATS, repeat=5)) / BEATS * 1e9
    finally:
        page.close()


def renewal(folder: Path) -> float:
    """Milliseconds for renewing the leases of 1,000 messages on SQLite, in one statement; the
    median of five.
    """
    mailbox = open_mailbox(f"sqlite:///{folder / 'renewal.db'}", "held")
    mailbox.send_many([1.0] * HELD)
    owner = mailbox.backend.register_owner(Incarnation.current())
    while len(mailbox.backend.held(owner=owner)) < HELD:
        mailbox.backend.exchange((), owner=owner, limit=500, lease_seconds=600)
    return statistics.median(_renew_time(mailbox.backend, owner) for _ in range(5)) * 1e3


def _renew_time(backend: object, owner: int) -> float:
    began = time.perf_counter()
    held = backend.renew(owner=owner, lease_seconds=900)  # type: ignore[attr-defined] # a mailbox's backend
    assert held == HELD
    return time.perf_counter() - began
