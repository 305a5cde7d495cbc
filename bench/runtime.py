"""Runtime: loops with heartbeats, leases, watchdog, health and metrics on, beside the queues they
are compared to.

The race is that of bench/queues: no-op jobs through one worker process with 8 slots. Idle CPU and
RSS are of that process.

In the environment: BENCH_STORES=sqlite,redis,postgresql which stores, BENCH_ROUNDS=3,
BENCH_PARTS=race,figures,health,endings.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))  # for the marks, which stand beside the apps

from queue_bench.parts import env_list, run_parts  # noqa: E402 - after the path


def run_race(place: Path) -> None:
    from queue_bench import race, stores, tables  # noqa: PLC0415
    from runtime_bench.contenders import STORES, contenders  # noqa: PLC0415 - its packages are there only now

    rounds = int(os.environ.get("BENCH_ROUNDS") or 3)
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / kind) as store:
            results = race.run_race(store, rounds, (), contenders(kind))
        print(f"\n### {kind}\n\n{tables.race_table(results, race.baseline(kind))}", flush=True)
    print(f"\nMedians of {rounds} interleaved rounds on {os.cpu_count()} cores.")


def run_figures(place: Path) -> None:
    from runtime_bench import small_figures  # noqa: PLC0415

    print("\n### Small figures\n\n| what | figure |\n|---|---:|")
    print(f"| `Heartbeat.beat()` | {small_figures.beat():.0f} ns |")
    print(f"| a beat on the page | {small_figures.page_beat(place):.0f} ns |")
    print(
        f"| renewing 1,000 leases, one statement, SQLite | {small_figures.renewal(place):.1f} ms |"
    )


def run_health(_: Path) -> None:
    from runtime_bench import health  # noqa: PLC0415

    found = health.measure()
    print("\n### Health port, `wrk -t1 -c16`\n")
    if found is None:
        print("Not measured: wrk is not installed.")
        return
    print("| asked | requests/s | p99 ms |\n|---|---:|---:|")
    for what, load in found.items():
        print(f"| {what} | {load.rate:,.0f} | {load.p99:.1f} |")


def run_endings(place: Path) -> None:
    from runtime_bench import shutdown_times  # noqa: PLC0415

    there = shutdown_times.BenchApp(place)
    print("\n### Ends, on SQLite\n\n| what | seconds |\n|---|---:|")
    print(f"| SIGTERM to exit, idle | {shutdown_times.stop_time(there, 0.0):.2f} |")
    print(
        f"| SIGTERM to exit, busy, beyond the handler's {shutdown_times.BUSY:g} s | "
        f"{shutdown_times.stop_time(there, shutdown_times.BUSY):.2f} |"
    )
    print(
        f"| kill -9 of a child to its message running elsewhere | "
        f"{shutdown_times.child_takeover_time(there):.2f} |",
        flush=True,
    )
    print(
        f"| kill -9 of parent and child to the same, under another parent | "
        f"{shutdown_times.host_takeover_time(there):.2f} |"
    )


PARTS = {"race": run_race, "figures": run_figures, "health": run_health, "endings": run_endings}


def main() -> None:
    run_parts(__file__, PARTS, with_peers="race")


if __name__ == "__main__":
    main()
