"""Idle workers on Redis."""

from __future__ import annotations

import time

import psutil

from fleet_bench.figure import Figure
from fleet_bench.fleet import PER_HOST, Fleet, mailbox_member
from fleet_bench.postgres import server_cpu
from fleet_bench.site import Site
from queue_bench.parts import env_list

SIZES = tuple(int(size) for size in env_list("BENCH_REDIS_SIZES", "100,400"))
_SETTLE_SECONDS = 3.0


def measure_redis(site: Site) -> list[Figure]:
    """Eight engines share a process; each has connections of its own."""
    import redis  # noqa: PLC0415 - beside the tree's own imports

    found = []
    with (
        redis.Redis.from_url(site.url) as client,
        Fleet(mailbox_member(site.url), site.path, per_process=PER_HOST) as fleet,
    ):
        for size in SIZES:
            fleet.grow(size)
            time.sleep(_SETTLE_SECONDS)
            psutil.cpu_times_percent()
            before, calls = server_cpu(site.server_pid), _calls(client)
            began = time.monotonic()
            time.sleep(site.seconds)
            took = time.monotonic() - began
            share = (server_cpu(site.server_pid) - before) / took * 100
            idle = psutil.cpu_times_percent().idle
            target = "5" if size == max(SIZES) else ""
            found += [
                Figure(f"% of a core of the server, {size} idle workers", share, 1, target),
                Figure(f"% of the machine idle meanwhile, {size}", idle, 0),
                Figure(
                    f"commands a second, {size} idle workers", (_calls(client) - calls) / took, 0
                ),
            ]
    return found


def _calls(client: object) -> int:
    return int(client.info("stats")["total_commands_processed"])  # type: ignore[attr-defined]
