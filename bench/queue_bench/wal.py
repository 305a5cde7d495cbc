"""What PostgreSQL did for our messages: commits, bytes of its log, and updates that touched no
index (HOT).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
_POSITION = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
_UPDATES = "SELECT sum(n_tup_upd), sum(n_tup_hot_upd) FROM pg_stat_user_tables"


class WalTraffic(NamedTuple):
    """Counters at one moment; the difference of two is what happened between them."""

    commits: float
    wal: float

    def since(self, before: WalTraffic, messages: int) -> str:
        return (
            f"{(self.commits - before.commits) / messages:.3f} commits, "
            f"{(self.wal - before.wal) / messages:,.0f} B of WAL"
        )


def traffic(admin: str, url: str) -> WalTraffic:
    """Seen from another database, so that looking does not count. The backends that worked have
    ended, or it is too early.
    """
    database = url.rpartition("/")[2]
    commits = _stable_row(admin, _COMMITS, (database,))
    return WalTraffic(float(commits[0]), float(_row(admin, _POSITION)[0]))


def updates(url: str) -> tuple[int, int]:
    """Rows updated in this database so far, and how many of them HOT."""
    total, hot = _stable_row(url, _UPDATES)
    return int(total or 0), int(hot or 0)


def _stable_row(url: str, statement: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """A statistic once it stands still: backends hand theirs in when they end, a moment after we
    see that.
    """
    seen: tuple[Any, ...] | None = None
    for _ in range(15):
        time.sleep(1)
        before, seen = seen, _row(url, statement, parameters)
        if seen == before:
            return seen
    raise RuntimeError(f"PostgreSQL does not come to rest: {statement}")


def _row(url: str, statement: str, parameters: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    import psycopg  # noqa: PLC0415 - only who races on PostgreSQL needs it

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode(), parameters).fetchone()
        assert row is not None
        return tuple(row)
