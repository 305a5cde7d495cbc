"""The time of a claim while another session keeps an old snapshot, so that nothing can be
vacuumed.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from fleet_bench.figure import Figure
from fleet_bench.fleet import migrate
from fleet_bench.site import Site
from longwatch.engine.claim_source import RowOutcome, Settlement
from longwatch.host.incarnation import Incarnation
from longwatch.mailbox import open_mailbox

MESSAGES = 60_000
_BATCH = 500
_TIMED = 60
_PAUSE = 0.05
_LEASE = 300.0


def measure_snapshot(site: Site) -> list[Figure]:
    import psycopg  # noqa: PLC0415 - beside the tree's own imports

    migrate(site.url)
    mailbox = open_mailbox(site.url, "snapshot")
    owner = mailbox.backend.register_owner(Incarnation.current())
    _pass_messages(mailbox, owner, 2 * _BATCH)
    before = _claim_time(mailbox, owner)
    with psycopg.connect(site.url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM longwatch_messages")
        _pass_messages(mailbox, owner, MESSAGES)
        _claim_time(mailbox, owner)  # some seconds of light load, as after a burst
        behind = _claim_time(mailbox, owner)
    return [
        Figure("claim of a message, ms", before * 1e3, 2),
        Figure(f"the same behind an old snapshot, after {MESSAGES:,} messages", behind * 1e3, 2),
        Figure("ratio", behind / before, 1, "about 1"),
    ]


def _pass_messages(mailbox: Any, owner: int, count: int) -> None:
    """Send, claim and settle so many messages."""
    done: list[Settlement] = []
    for _ in range(count // _BATCH):
        mailbox.send_many([0] * _BATCH)
        done = _exchange(mailbox, owner, done, _BATCH)
    _exchange(mailbox, owner, done, 0)


def _claim_time(mailbox: Any, owner: int) -> float:
    """Seconds to claim the only message that is ready, the median of 60 at 20 a second."""
    times = []
    for _ in range(_TIMED):
        time.sleep(_PAUSE)
        mailbox.send(0)
        began = time.perf_counter()
        done = _exchange(mailbox, owner, [], 1)
        times.append(time.perf_counter() - began)
        assert len(done) == 1
        _exchange(mailbox, owner, done, 0)
    return statistics.median(times)


def _exchange(
    mailbox: Any, owner: int, settlements: list[Settlement], limit: int
) -> list[Settlement]:
    result = mailbox.backend.exchange(settlements, owner=owner, limit=limit, lease_seconds=_LEASE)
    return [Settlement(row.claim, RowOutcome.DONE) for row in result.claimed]
