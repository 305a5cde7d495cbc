"""Where one server ends: messages sent one by one and handled by other processes; and drains, also
through PgBouncer.
"""

from __future__ import annotations

import os
import threading
import time

from fleet_bench import postgres
from fleet_bench.figure import AS_BEFORE, Figure
from fleet_bench.fleet import (
    MAILBOX,
    Fleet,
    StartMember,
    fork,
    mailbox_member,
    migrate,
    run_in_fork,
)
from fleet_bench.pooler import pgbouncer, through
from fleet_bench.site import Site
from longwatch.mailbox import open_mailbox

SENDERS, THREADS, WORKERS = 2, 12, 4
DRAINED = 12_000
_MANY = 10**9
TIMEOUT = 60.0


def measure_capacity(site: Site) -> list[Figure]:
    """Processes that send as fast as they can, one message in each commit, from several threads,
    and workers with four slots that handle them.
    """
    migrate(site.url)
    before, wal = _transactions(site), 0.0
    with Fleet(mailbox_member(site.url, concurrency=4), site.path) as fleet:
        fleet.grow(WORKERS)
        before, wal = _transactions(site), postgres.position(site)
        handled, cores = _flood(site, fleet)
        wal = postgres.position(site) - wal
        time.sleep(1.5)  # the counts of a backend are a second late
        transactions = _transactions(site) - before
    return [
        *_capacity_figures(site, handled, cores),
        Figure("transactions a message", transactions / max(handled, 1), 2),
        Figure("bytes of WAL a message, sent one by one", wal / max(handled, 1), 0),
    ]


def measure_redis_capacity(site: Site) -> list[Figure]:
    with Fleet(mailbox_member(site.url, concurrency=4), site.path) as fleet:
        fleet.grow(WORKERS)
        return _capacity_figures(site, *_flood(site, fleet))


def _capacity_figures(site: Site, handled: int, cores: float) -> list[Figure]:
    return [
        Figure(
            f"messages a second, {SENDERS} senders with {THREADS} threads and {WORKERS} workers",
            handled / site.seconds,
            0,
        ),
        Figure("cores of the server meanwhile", cores, 2),
        Figure("CPU of the server a message, ms", cores * site.seconds / max(handled, 1) * 1e3, 2),
    ]


def _flood(site: Site, fleet: Fleet) -> tuple[int, float]:
    """How many messages were handled while senders sent, and the cores of the server."""
    began, cpu = time.monotonic(), postgres.server_cpu(site.server_pid)
    pids = [fork(lambda: _send_for(site.url, site.seconds)) for _ in range(SENDERS)]
    handled = len(fleet.read_marks(_MANY, within=site.seconds))
    cores = (postgres.server_cpu(site.server_pid) - cpu) / (time.monotonic() - began)
    for pid in pids:
        os.waitpid(pid, 0)
    return handled, cores


def _send_for(url: str, seconds: float) -> None:
    mailbox, until = open_mailbox(url, MAILBOX, float), time.monotonic() + seconds

    def send() -> None:
        while time.monotonic() < until:
            mailbox.send(time.monotonic())

    threads = [threading.Thread(target=send) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _transactions(site: Site) -> float:
    name = site.url.rpartition("/")[2]
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
    return float(postgres.ask(site.admin, query, (name,)))


def measure_pooled(site: Site) -> list[Figure]:
    """The same messages through one worker with 8 slots, directly and through PgBouncer."""
    migrate(site.url)
    direct = _drain(site, site.url)
    with pgbouncer(site.path, site.url) as port:
        pooled = None if port is None else _drain(site, through(site.url, port))
    return [
        Figure("messages a second, direct", direct, 0),
        Figure("messages a second, through PgBouncer", pooled, 0),
        Figure("ratio", None if pooled is None else pooled / direct, 2),
    ]


def measure_drain(site: Site) -> list[Figure]:
    """Messages through one worker with 8 slots, on PostgreSQL and on SQLite."""
    migrate(site.url)
    sqlite = f"sqlite:///{site.path}/drain.db"
    return [
        Figure("messages a second, PostgreSQL", _drain(site, site.url), 0, AS_BEFORE),
        Figure("messages a second, SQLite", _drain(site, sqlite, filled=sqlite), 0, AS_BEFORE),
    ]


def measure_redis_drain(site: Site) -> list[Figure]:
    return [Figure("messages a second, Redis", _drain(site, site.url), 0, AS_BEFORE)]


def _drain(site: Site, url: str, *, filled: str = "") -> float:
    filled = filled or site.url
    run_in_fork(lambda: _fill(filled))
    member: StartMember = mailbox_member(url, concurrency=8)
    first = DRAINED // 10
    with Fleet(member, site.path) as fleet:
        fleet.grow(1)
        fleet.read_marks(first, within=TIMEOUT)
        began = time.monotonic()
        handled = len(fleet.read_marks(DRAINED - first, within=TIMEOUT))
        took = time.monotonic() - began
        run_in_fork(lambda: _await_empty(filled))
    return handled / took


def _fill(url: str) -> None:
    mailbox = open_mailbox(url, MAILBOX, float)
    for _ in range(DRAINED // 1000):
        mailbox.send_many([time.monotonic()] * 1000)


def _await_empty(url: str) -> None:
    mailbox, until = open_mailbox(url, MAILBOX, float), time.monotonic() + TIMEOUT
    while any(mailbox.stats()[:3]) and time.monotonic() < until:
        time.sleep(0.05)
