"""Threads that send single messages, and claims from a mailbox of a million messages."""

from __future__ import annotations

from fleet_bench.figure import Figure
from fleet_bench.fleet import migrate
from fleet_bench.site import Site
from queue_bench import figures


def measure_senders(site: Site) -> list[Figure]:
    migrate(site.url)
    return [
        *_senders("PostgreSQL", site.url),
        *_senders("SQLite", f"sqlite:///{site.path}/senders.db"),
    ]


def measure_queued(site: Site) -> list[Figure]:
    migrate(site.url)
    return [
        *_queued("PostgreSQL", site.url),
        *_queued("SQLite", f"sqlite:///{site.path}/queued.db"),
    ]


def measure_redis_queued(site: Site) -> list[Figure]:
    return _queued("Redis", site.url)


def _senders(store: str, url: str) -> list[Figure]:
    one, eight = figures.single_sends(url)
    return [
        Figure(f"sends a second, 1 thread, {store}", one, 0),
        Figure(f"sends a second, 8 threads, {store}", eight, 0),
        Figure(f"ratio, {store}", eight / one, 1, "3"),
    ]


def _queued(store: str, url: str) -> list[Figure]:
    small, large = figures.claims_by_size(url)
    return [
        Figure(f"100 of 3,000 claimed and settled, ms, {store}", small * 1e3, 2),
        Figure(f"100 of 1,000,000, ms, {store}", large * 1e3, 2),
        Figure(f"ratio, {store}", large / small, 2, "1.5"),
    ]
