"""Idle workers on PostgreSQL, and messages that one of them gets."""

from __future__ import annotations

import statistics
import time

from fleet_bench import postgres
from fleet_bench.figure import AS_BEFORE, Figure, percentile, slope
from fleet_bench.fleet import (
    PER_HOST,
    Fleet,
    mailbox_member,
    many_mailboxes_member,
    migrate,
    send_steadily,
)
from fleet_bench.postgres import Load, NotifyCounter
from fleet_bench.site import Site
from queue_bench.parts import env_list

EXTRAPOLATED = 400
SIZES = tuple(int(size) for size in env_list("BENCH_SIZES", "40,100"))
FLOW_WORKERS = 40
MAILBOXES = 10
LEASED = 100_000
RATE = 20.0
_WITH_MESSAGES = max(SIZES)
_FEW = (1, 2, 8)
_SETTLE_SECONDS = 2.0
_STATISTICS_SECONDS = 11.0
"""A backend of PostgreSQL reports the last transactions of a burst, such as those of a start, up to
10 seconds late.
"""
_POLL_SECONDS = 10.0
"""An idle engine polls once in this time. A window must not be shorter."""
_WARM_UP_MESSAGES = 200
"""An engine learns from each message how many hints to answer."""
_LEASE_ROWS = """
    INSERT INTO longwatch_messages (queue, id, body, enqueued_at, owner, lease_until, term,
                                    deliveries, lease_state)
    SELECT queue, 'leased' || n, '\\x30', 0, 1, 1e12, 1, 1, 2
    FROM longwatch_mailboxes, generate_series(1, %s) AS n"""
_OWNER = """
    INSERT INTO longwatch_owners (owner, incarnation, boot, table_name, registered_at)
    VALUES (1, 'another-host', 'another-boot', 'longwatch_messages', extract(epoch FROM now()))"""


def measure_workers(site: Site) -> list[Figure]:
    """Grow a fleet of idle workers; measure it idle, and with messages of another process."""
    migrate(site.url)
    loads: dict[int, Load] = {}
    messages: list[Figure] = []
    notifies: list[tuple[int, int]] = []
    counter = NotifyCounter(site.url)
    with Fleet(mailbox_member(site.url), site.path) as fleet:
        for size in sorted(SIZES):
            fleet.grow(size)
            notifies.append((size, counter.take()))
            if size in SIZES:
                loads[size] = _idle_load(site)
            if size == _WITH_MESSAGES:
                messages += _with_messages(site, fleet, size)
            counter.take()
        counter.close()
    return [
        *_idle_figures(loads),
        *_start_figures(notifies),
        *messages,
    ]


def measure_latency(site: Site) -> list[Figure]:
    """Messages that one of a few idle workers gets."""
    migrate(site.url)
    found = []
    with Fleet(mailbox_member(site.url), site.path) as fleet:
        for size in _FEW:
            fleet.grow(size)
            found += _with_messages(site, fleet, size)
    return found


def measure_flow_workers(site: Site) -> list[Figure]:
    """Idle flow workers, and the NOTIFYs of executions."""
    from fleet_bench.flows import flow_member, prepare, run_executions  # noqa: PLC0415 - slow

    prepare(site.url)
    with Fleet(flow_member(site.url), site.path) as fleet:
        fleet.grow(2)
        time.sleep(_SETTLE_SECONDS)
        counter, executions = NotifyCounter(site.url), 20
        run_executions(site.url, executions)
        per_execution = counter.take() / executions
        counter.close()
        fleet.grow(FLOW_WORKERS)
        load = _idle_load(site)
    return [
        Figure(f"transactions a second, {FLOW_WORKERS} idle flow workers", load.transactions, 1),
        Figure(
            "transactions a second for each idle flow worker",
            load.transactions / FLOW_WORKERS,
            2,
            "0.5",
        ),
        Figure(f"cores of the server, {FLOW_WORKERS} idle flow workers", load.cores, 3),
        Figure("NOTIFYs for an execution of three steps", per_execution, 1),
    ]


def measure_mailboxes(site: Site) -> list[Figure]:
    """Idle worker processes of one host, with a loop over each of several mailboxes."""
    migrate(site.url)
    with Fleet(many_mailboxes_member(site.url, MAILBOXES), site.path) as fleet:
        fleet.grow(PER_HOST)
        load = _idle_load(site)
    what = f"{PER_HOST} idle processes with {MAILBOXES} loops each"
    return [
        Figure(f"transactions a second, {what}", load.transactions, 1),
        Figure("transactions a second for each loop", load.transactions / PER_HOST / MAILBOXES, 2),
        Figure(f"cores of the server, {what}", load.cores, 3),
    ]


def measure_sweeps(site: Site) -> list[Figure]:
    """Idle workers beside 100,000 messages that another worker has leased."""
    import psycopg  # noqa: PLC0415 - beside the tree's own imports

    migrate(site.url)
    with psycopg.connect(site.url, autocommit=True) as connection:
        connection.execute(_OWNER)
        connection.execute(_LEASE_ROWS, (LEASED,))
        connection.execute("VACUUM ANALYZE longwatch_messages")
    found = []
    with Fleet(mailbox_member(site.url), site.path) as fleet:
        for size in SIZES:
            fleet.grow(size)
            time.sleep(_SETTLE_SECONDS)
            load = postgres.load_of(site, site.seconds)
            found += [
                Figure(f"cores of the server, {size} workers", load.cores, 3, "0.1"),
                Figure(f"% of the machine idle meanwhile, {size}", load.machine_idle, 0),
            ]
    return found


def _idle_load(site: Site) -> Load:
    time.sleep(_STATISTICS_SECONDS)
    return postgres.load_of(site, max(site.seconds, _POLL_SECONDS))


def _with_messages(site: Site, fleet: Fleet, size: int) -> list[Figure]:
    warm_up = _WARM_UP_MESSAGES if size > 8 else 10
    send_steadily(site.url, RATE, warm_up)
    fleet.read_marks(warm_up)
    count, claims, wal = round(RATE * site.seconds), fleet.claims(), postgres.position(site)
    send_steadily(site.url, RATE, count)
    delays = fleet.read_marks(count)
    claims, wal = fleet.claims() - claims, postgres.position(site) - wal
    what = f"{size} worker{'s' if size > 1 else ''}"
    is_large = size > 8
    p50 = statistics.median(delays) * 1e3 if delays else None
    p99 = percentile(delays, 0.99)
    found = [
        Figure(f"claims for a message, {what}", claims / count, 1, "5" if is_large else AS_BEFORE),
        Figure(f"send to handler, {what}, p50 ms", p50, 1, "20" if is_large else AS_BEFORE),
        Figure(
            f"send to handler, {what}, p99 ms",
            None if p99 is None else p99 * 1e3,
            1,
            "100" if is_large else AS_BEFORE,
        ),
        Figure(f"bytes of WAL a message, {what}", wal / count, 0),
    ]
    if len(delays) < count:
        found.append(Figure(f"messages that did not come in 10 s, {what}", count - len(delays), 0))
    return found


def _idle_figures(loads: dict[int, Load]) -> list[Figure]:
    found = [
        Figure(f"transactions a second, {size} idle workers", load.transactions, 1)
        for size, load in loads.items()
    ]
    each = slope((size, load.transactions) for size, load in loads.items())
    wal = slope((size, load.wal) for size, load in loads.items())
    last = max(loads)
    return [
        *found,
        Figure("transactions a second for one more idle worker", each, 2, "0.5"),
        Figure(f"transactions a second, {EXTRAPOLATED} (extrapolated)", each * EXTRAPOLATED, 0),
        Figure("bytes of WAL a second for one more idle worker", wal, 0),
        Figure(f"cores of the server, {last} idle workers", loads[last].cores, 3),
        Figure("% of the machine idle meanwhile", loads[last].machine_idle, 0),
    ]


def _start_figures(notifies: list[tuple[int, int]]) -> list[Figure]:
    """NOTIFYs until so many had started, one group after the other."""
    total, found = 0, []
    for size, count in notifies:
        total += count
        if size in SIZES:
            found.append(
                Figure(f"NOTIFYs until {size} workers had started", total, 0, f"{2 * size}")
            )
    return found
