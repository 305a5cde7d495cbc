"""Event streams: what reading them costs, from memory and over loopback, beside other clients.

Events a second of CPU time of the client, its share of the kernel's included. It is one process;
the server is another one that writes ready blocks. The contenders take turns.
A large event comes in chunks of 16 KiB; memory is what Python allocates at the most beyond the
stream itself.

In the environment: BENCH_EVENTS=30000 of about 355 bytes, BENCH_ROUNDS=5.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping
from typing import TypeVar

from queue_bench import environments

NEEDED = ("longwatch", "aiohttp", "httpx", "httpx_sse", "sseclient", "aiohttp_sse_client")
PACKAGES = (
    "httpx==0.28.1",
    "httpx-sse==0.4.3",
    "sseclient-py==1.9.0",
    "aiohttp-sse-client==0.2.1",
)
MEGABYTE = 1_000_000
Subject = TypeVar("Subject", bytes, str)


def compare(
    contenders: Mapping[str, Callable[[Subject, int], int]],
    subject: Subject,
    count: int,
    rounds: int,
) -> None:
    """A table of events a second: medians, after one round that does not count."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, read in contenders.items():
            began = time.process_time()
            found = read(subject, count)
            seconds = time.process_time() - began
            if found != count:
                sys.exit(f"{name} found {found} events of {count}")
            if number:
                rates[name].append(count / seconds)
    own = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        middle = statistics.median(values)
        print(f"| {name} | {middle:,.0f} | {own / middle:.2f}× |", flush=True)


def large_event(megabytes: float, parse: Callable[[bytes, int], int]) -> tuple[float, float]:
    """Seconds and megabytes of memory for one event."""
    data = b"data: " + b"x" * int(megabytes * MEGABYTE) + b"\n\n"
    began = time.process_time()
    parse(data, 1)
    seconds = time.process_time() - began
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    parse(data, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, (peak - before) / MEGABYTE - megabytes  # less the chunks


def large_events() -> None:
    from sse_bench.contenders import parse_httpx_sse, parse_longwatch  # noqa: PLC0415

    print("\n| one event | Longwatch, ms | memory, MB | httpx-sse, ms | memory, MB |")
    print("|---|---:|---:|---:|---:|")
    for megabytes in (1.25, 2.5, 5, 10):
        own, own_memory = large_event(megabytes, parse_longwatch)
        other, other_memory = large_event(megabytes, parse_httpx_sse)
        print(
            f"| {megabytes} MB | {own * 1000:.0f} | {own_memory:.0f} | {other * 1000:,.0f} | "
            f"{other_memory:.0f} |",
            flush=True,
        )


def measure() -> None:
    from sse_bench import contenders, workload  # noqa: PLC0415 - its packages are there only now

    count = int(os.environ.get("BENCH_EVENTS") or 30_000)
    rounds = int(os.environ.get("BENCH_ROUNDS") or 5)
    print("Events a second of CPU time of the client.\n")
    print("| from memory | events/s | Longwatch is |\n|---|---:|---:|")
    compare(contenders.FROM_MEMORY, workload.stream(count), count=count, rounds=rounds)
    print("\n| over loopback | events/s | Longwatch is |\n|---|---:|---:|")
    with workload.serving(count) as url:
        compare(contenders.OVER_LOOPBACK, url, count=count, rounds=rounds)
    large_events()
    print(f"\n{', '.join(PACKAGES)}; medians of {rounds} interleaved rounds.")


def main() -> None:
    if all(importlib.util.find_spec(name) for name in NEEDED):
        measure()
    else:
        python = environments.make_with("bench-sse", "runner", *PACKAGES)
        sys.exit(subprocess.run([python, __file__], check=False).returncode)


if __name__ == "__main__":
    main()
