"""Searches: finding and removing executions among a million.

Every execution has five values and one attempt. A search reads the first 50. Retention removes
all of them while another connection starts executions; the longest write includes its wait for the
locks of retention.

In the environment: BENCH_STORES=sqlite,postgresql which stores, BENCH_EXECUTIONS=1000000,
BENCH_PARTS=search,retention.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from queue_bench.parts import env_list, run_parts  # noqa: E402 - after the path

STORES = "sqlite,postgresql"
READING = (
    "`batch` rises with the number of the execution: a range that only old executions meet is "
    "read from the newest one on, and no index helps. Medians of 7, of 3 for counts."
)


def execution_count() -> int:
    return int(os.environ.get("BENCH_EXECUTIONS") or 1_000_000)


def search(place: Path) -> None:
    from flow_bench import many_executions as many  # noqa: PLC0415 - its packages are there only now
    from queue_bench import stores  # noqa: PLC0415

    times, versions = {}, []
    for kind in env_list("BENCH_STORES", STORES):
        print(f"{kind}, search", file=sys.stderr, flush=True)
        with (
            stores.opened_store(kind, place / f"search-{kind}") as store,
            many.filled(store.fresh(), execution_count()) as flow,
        ):
            versions.append(many.database_version(flow))
            times[kind] = many.search_times(flow)
    print(f"\n| the first 50 of {execution_count():,} | {' | '.join(f'{k}, ms' for k in times)} |")
    print(f"|---|{'---:|' * len(times)}")
    for name in next(iter(times.values())):
        print(f"| {name} | {' | '.join(f'{found[name]:.1f}' for found in times.values())} |")
    print(f"\n{', '.join(versions)}. `country`, `age`, `email` and `batch` are indexed. {READING}")


def retention(place: Path) -> None:
    from flow_bench import many_executions as many  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        "\n| store | executions removed | seconds | longest transaction, ms | longest write "
        "beside it, ms |\n|---|---:|---:|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", STORES):
        print(f"{kind}, retention", file=sys.stderr, flush=True)
        with stores.opened_store(kind, place / f"retention-{kind}") as store:
            url = store.fresh()
            with many.filled(url, execution_count()) as flow:
                seconds, removed, longest, write = many.retention(flow, url)
        print(f"| {kind} | {removed:,} | {seconds:.0f} | {longest:.0f} | {write:.0f} |", flush=True)


PARTS = {"search": search, "retention": retention}


def main() -> None:
    run_parts(__file__, PARTS, with_peers="none")


if __name__ == "__main__":
    main()
