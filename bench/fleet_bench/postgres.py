"""What a PostgreSQL server did, seen from another database of it, on connections that last for one
query.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psutil
import psycopg

from fleet_bench.site import Site
from longwatch.store.postgres.transaction import NOTIFY_CHANNEL

_TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
_POSITION = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"

_QUIET_TIMEOUT = 30.0
"""Seconds after which a counter does not wait for silence any more."""


@dataclass(frozen=True)
class Load:
    """What the server did in one window, each second: transactions in the database of the part,
    bytes of WAL, and cores of the whole server; and how much of the machine was idle, in percent.
    """

    transactions: float
    wal: float
    cores: float
    machine_idle: float


def ask(url: str, query: str, parameters: tuple[Any, ...] = ()) -> Any:
    """The first column of the first row."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return row[0]


def load_of(site: Site, seconds: float) -> Load:
    """What happens in the next seconds."""
    psutil.cpu_times_percent()
    began, before = time.monotonic(), _counters(site)
    time.sleep(seconds)
    after, took = _counters(site), time.monotonic() - began
    transactions, wal, cores = ((new - old) / took for new, old in zip(after, before, strict=True))
    return Load(transactions, wal, cores, psutil.cpu_times_percent().idle)


def position(site: Site) -> float:
    """Bytes of WAL so far."""
    return float(ask(site.admin, _POSITION))


def _counters(site: Site) -> tuple[float, float, float]:
    transactions = float(ask(site.admin, _TRANSACTIONS, (_name(site.url),)))
    return transactions, position(site), server_cpu(site.server_pid)


def server_cpu(pid: int) -> float:
    """CPU seconds of a server: its processes, and those that have ended."""
    server = psutil.Process(pid)
    own = server.cpu_times()
    total = own.user + own.system + own.children_user + own.children_system
    for child in server.children():
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return float(total)


class NotifyCounter:
    """Counts the NOTIFYs of a database from its entrance on, on a connection that listens."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(f"LISTEN {NOTIFY_CHANNEL}".encode())

    def take(self) -> int:
        """How many have come since the last call, once none has come for a second."""
        total, until = 0, time.monotonic() + _QUIET_TIMEOUT
        while count := sum(1 for _ in self._connection.notifies(timeout=1.0)):
            total += count
            if time.monotonic() > until:
                break
        return total

    def close(self) -> None:
        self._connection.close()


def _name(url: str) -> str:
    return url.rpartition("/")[2].partition("?")[0]
