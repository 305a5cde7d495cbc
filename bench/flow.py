"""Flow: three durable steps that do nothing, beside DBOS, and what graphs cost in a worker.

One worker process; one execution after the other, and with 50 in flight. DBOS runs its workflow in
the calling process; with 50 in flight the better of 50 threads of ours and its own counts. Commits
are what one execution asks of the disk.

In the environment: BENCH_STORES=sqlite,postgresql which stores, BENCH_ROUNDS=3,
BENCH_EXECUTIONS=400 in a round, after BENCH_WARMTH=2 seconds that do not count,
BENCH_PARTS=race,closer,rows,explain,ticks,maps.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

from queue_bench.parts import env_list, run_parts  # noqa: E402 - after the path

STORES = ("sqlite", "postgresql")
MODES = {"sequential": "one after the other", "in_flight": "50 in flight"}
Rounds = Sequence[dict[str, float]]


def rounds_of(kind: str, fresh: object) -> tuple[Rounds, Rounds]:
    from flow_bench import trials  # noqa: PLC0415 - its packages are there only now

    count = int(os.environ.get("BENCH_EXECUTIONS") or 400)
    ours: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for number in range(int(os.environ.get("BENCH_ROUNDS") or 3)):
        print(f"{kind}, round {number + 1}", file=sys.stderr, flush=True)
        ours.append(trials.longwatch(fresh(), count))  # type: ignore[operator] # a Store's
        theirs.append(trials.dbos(fresh(), count))  # type: ignore[operator]
    return ours, theirs


def race(place: Path) -> None:
    from queue_bench import stores  # noqa: PLC0415

    print("| store | | Longwatch/s | DBOS/s | ratio |\n|---|---|---:|---:|---:|")
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"race-{kind}") as store:
            ours, theirs = rounds_of(kind, store.fresh)
        for way, words in MODES.items():
            mine, other = (
                statistics.median(each[way] for each in rounds) for rounds in (ours, theirs)
            )
            print(
                f"| {kind} | {words} | {mine:,.0f} | {other:,.0f} | {mine / other:.1f}× |",
                flush=True,
            )


def closer_look(place: Path) -> None:
    from flow_bench import trials  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        "\n| store | `set` to first line, p50 ms | idle worker, % of a core | commits an "
        "execution |\n|---|---:|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"closer-{kind}") as store:
            found = trials.longwatch(store.fresh(), 1, "closer")
            commits = trials.commits(store.fresh(), place) if kind == "sqlite" else None
        shown = "–" if commits is None else f"{commits:.2f}"
        print(f"| {kind} | {found['latency']:.1f} | {found['idle']:.2f} | {shown} |", flush=True)


def rows(place: Path) -> None:
    from flow_bench import rows as many  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        "\n| store | renewing 10,000 attempts, ms | a sweep beside 1,000 ended, ms | beside "
        "1,000,000, ms |\n|---|---:|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"rows-{kind}") as store:
            renewed = many.renewal(store.fresh())
            few, lots = many.sweeps(store.fresh())
        print(f"| {kind} | {renewed:.0f} | {few:.1f} | {lots:.1f} |", flush=True)


def explain(place: Path) -> None:
    from flow_bench import explaining  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        "\n| store | `explain` of 100 nodes one after the other, ms | each after all before it "
        "(4,950 conditions), ms |\n|---|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"explain-{kind}") as store:
            chain, dense = explaining.chain_and_dense(store.fresh())
        print(f"| {kind} | {chain:.1f} | {dense:.1f} |", flush=True)


def ticks(place: Path) -> None:
    from flow_bench import ticks as due  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        "\n| store | firing 10,000 due ticks, s | and computing the node after each, s |\n"
        "|---|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"ticks-{kind}") as store:
            found = due.firing(store.fresh())
        print(f"| {kind} | {found.fired:.1f} | {found.computed:.1f} |", flush=True)


def maps(place: Path) -> None:
    from flow_bench import maps as wide  # noqa: PLC0415
    from queue_bench import stores  # noqa: PLC0415

    print(
        f"\n| store | {wide.ELEMENTS:,} messages through a loop, s | a map of {wide.ELEMENTS:,} "
        "elements, s | ratio |\n|---|---:|---:|---:|"
    )
    for kind in env_list("BENCH_STORES", ",".join(STORES)):
        with stores.opened_store(kind, place / f"maps-{kind}") as store:
            rounds = int(os.environ.get("BENCH_ROUNDS") or 3)
            messages, elements = wide.compare(store.fresh(), rounds)
        print(
            f"| {kind} | {messages:.2f} | {elements:.2f} | {elements / messages:.1f}× |", flush=True
        )


PARTS = {
    "race": race,
    "closer": closer_look,
    "rows": rows,
    "explain": explain,
    "ticks": ticks,
    "maps": maps,
}


def main() -> None:
    run_parts(__file__, PARTS, with_peers="race")
    print(f"\ndbos 3.3.0; medians of {os.environ.get('BENCH_ROUNDS') or 3} interleaved rounds.")


if __name__ == "__main__":
    main()
