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

from queueing.parts import run_parts, several  # noqa: E402 - after the path


def run_race(place: Path) -> None:
    from looping.contenders import STORES, contenders  # noqa: PLC0415 - its packages are there only now
    from queueing import race, stores, tables  # noqa: PLC0415

    rounds = int(os.environ.get("BENCH_ROUNDS") or 3)
    for kind in several("BENCH_STORES", ",".join(STORES)):
        with stores.opened(kind, place / kind) as store:
            results = race.run(store, rounds, (), contenders(kind))
        print(f"\n### {kind}\n\n{tables.race(results, race.yardstick(kind))}", flush=True)
    print(f"\nMedians of {rounds} interleaved rounds on {os.cpu_count()} cores.")


def run_figures(place: Path) -> None:
    from looping import small_figures  # noqa: PLC0415

    print("\n### Small figures\n\n| what | figure |\n|---|---:|")
    print(f"| `Heartbeat.beat()` | {small_figures.beat():.0f} ns |")
    print(f"| a beat on the page | {small_figures.page_beat(place):.0f} ns |")
    print(
        f"| renewing 1,000 leases, one statement, SQLite | {small_figures.renewal(place):.1f} ms |"
    )


def run_health(_: Path) -> None:
    from looping import health  # noqa: PLC0415

    found = health.measured()
    print("\n### Health port, `wrk -t1 -c16`\n")
    if found is None:
        print("Not measured: wrk is not installed.")
        return
    print("| asked | requests/s | p99 ms |\n|---|---:|---:|")
    for what, load in found.items():
        print(f"| {what} | {load.rate:,.0f} | {load.p99:.1f} |")


def run_endings(place: Path) -> None:
    from looping import endings  # noqa: PLC0415

    there = endings.Place(place)
    print("\n### Ends, on SQLite\n\n| what | seconds |\n|---|---:|")
    print(f"| SIGTERM to exit, idle | {endings.stopping(there, 0.0):.2f} |")
    print(
        f"| SIGTERM to exit, busy, beyond the handler's {endings.BUSY:g} s | "
        f"{endings.stopping(there, endings.BUSY):.2f} |"
    )
    print(
        f"| kill -9 of a child to its message running elsewhere | "
        f"{endings.child_killed(there):.2f} |",
        flush=True,
    )
    print(
        f"| kill -9 of parent and child to the same, under another parent | "
        f"{endings.everything_killed(there):.2f} |"
    )


PARTS = {"race": run_race, "figures": run_figures, "health": run_health, "endings": run_endings}


def main() -> None:
    run_parts(__file__, PARTS, with_peers="race")


if __name__ == "__main__":
    main()
