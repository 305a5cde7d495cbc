"""Runs in the source tree that PYTHONPATH names: `measure.py PART SITE` prints the figures of one
part as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from fleet_bench.figure import Figure, dumps
from fleet_bench.site import Site, site_of_this_process

PARTS = {
    "workers": "fleet_bench.idle:measure_workers",
    "flow": "fleet_bench.idle:measure_flow_workers",
    "programs": "fleet_bench.programs:measure_programs",
    "mailboxes": "fleet_bench.idle:measure_mailboxes",
    "sweeps": "fleet_bench.idle:measure_sweeps",
    "redis": "fleet_bench.redis_fleet:measure_redis",
    "snapshot": "fleet_bench.snapshot:measure_snapshot",
    "commits": "fleet_bench.user_commits:measure_commits",
    "slow_commits": "fleet_bench.user_commits:measure_slow_commits",
    "threads": "fleet_bench.async_threads:measure_threads",
    "latency": "fleet_bench.idle:measure_latency",
    "senders": "fleet_bench.many_messages:measure_senders",
    "queued": "fleet_bench.many_messages:measure_queued",
    "redis_queued": "fleet_bench.many_messages:measure_redis_queued",
    "drain": "fleet_bench.throughput:measure_drain",
    "redis_drain": "fleet_bench.throughput:measure_redis_drain",
    "pooled": "fleet_bench.throughput:measure_pooled",
    "capacity": "fleet_bench.throughput:measure_capacity",
    "redis_capacity": "fleet_bench.throughput:measure_redis_capacity",
}


def main() -> None:
    module, _, name = PARTS[sys.argv[1]].partition(":")
    measure: Callable[[Site], list[Figure]] = getattr(import_module(module), name)
    print(dumps(measure(site_of_this_process())), flush=True)


if __name__ == "__main__":
    main()
