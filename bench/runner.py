"""Runner: from the wire to a durable queue, the start of an agent, and what quiet sources cost.

Events of about 355 bytes come over loopback from a server in a process of its own; they are parsed,
filtered and queued in SQLite with FULL durability, the last event id in the same transaction. The
CPU time is that of all threads of the runner. A start is measured from the commit of an event to
the process of its agent. All in one process, and the guardian beside it.

In the environment: BENCH_EVENTS=64000 for each number of sources, BENCH_ROUNDS=3, BENCH_STARTS=100,
BENCH_IDLE_SECONDS=20, BENCH_PARTS=receive,start,idle.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from queue_bench import environments

SOURCES = (1, 4, 16, 64)


def setting(name: str, default: int) -> int:
    return int(os.environ.get(name) or default)


def receive(place: Path) -> None:
    from runner_bench import trials  # noqa: PLC0415 - its packages are there only now

    events, rounds = setting("BENCH_EVENTS", 64_000), setting("BENCH_ROUNDS", 3)
    print("| sources | received, filtered, queued: events/s | CPU an event, µs |\n|---:|---:|---:|")
    costs: dict[int, list[trials.Cost]] = {sources: [] for sources in SOURCES}
    for number in range(rounds):
        for sources in SOURCES:
            folder = place / f"round-{number}"
            folder.mkdir(exist_ok=True)
            costs[sources].append(trials.receive(folder, sources=sources, events=events))
    for sources, found in costs.items():
        rate = statistics.median(each.events / each.seconds for each in found)
        cpu = statistics.median(each.cpu_seconds / each.events for each in found)
        print(f"| {sources} | {rate:,.0f} | {cpu * 1e6:.1f} |", flush=True)


def start(place: Path) -> None:
    from runner_bench import trials  # noqa: PLC0415

    middle, high = trials.start_latency(place, setting("BENCH_STARTS", 100))
    print("\n| queued → agent process started | ms |\n|---|---:|")
    print(f"| p50 | {middle:.1f} |\n| p95 | {high:.1f} |", flush=True)


def idle(place: Path) -> None:
    from runner_bench import trials  # noqa: PLC0415

    seconds = setting("BENCH_IDLE_SECONDS", 20)
    print("\n| quiet sources | % of a core |\n|---:|---:|")
    for sources in (1, 64):
        share = trials.idle_share(place, sources=sources, seconds=seconds)
        print(f"| {sources} | {share:.2f} |", flush=True)


PARTS = {"receive": receive, "start": start, "idle": idle}


def main() -> None:
    if not all(importlib.util.find_spec(name) for name in ("longwatch", "aiohttp")):
        python = environments.make_with("bench-runner", "runner")
        sys.exit(subprocess.run([python, __file__], check=False).returncode)
    environments.BUILD.mkdir(exist_ok=True)
    wanted = (os.environ.get("BENCH_PARTS") or ",".join(PARTS)).split(",")
    with tempfile.TemporaryDirectory(prefix="longwatch-bench-", dir=environments.BUILD) as place:
        for part in wanted:
            PARTS[part](Path(place))
    load = os.getloadavg()[1]
    print(
        f"\nMedians of {setting('BENCH_ROUNDS', 3)} interleaved rounds. Events a second are by "
        f"wall-clock time; the load average of the machine at the end was {load:.1f}."
    )


if __name__ == "__main__":
    main()
