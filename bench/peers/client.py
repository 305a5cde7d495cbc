"""The sending side of every peer: `batch N` as fast as it can, `light RATE SECONDS` evenly;
`settled N` waits for the last one.

Seconds in which a contender gets to its usual pace: its connections are made, its plans are
laid, its neighbours are known.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import marks

SendOne = Callable[[float], object]
SendMany = Callable[[Sequence[float]], object]


def send(
    one: SendOne,
    many: SendMany | None = None,
    *,
    chunk: int = 100,
    left: Callable[[], int] | None = None,
) -> None:
    """Do what the command line says. `left` tells how many jobs are not acknowledged yet."""
    kind, *numbers = sys.argv[1:]
    if kind == "batch":
        print(batch(int(numbers[0]), one, many, chunk))
    elif kind == "settled" and left is not None:
        print("ready", flush=True)
        print(settled(int(numbers[0]), left))
    elif kind == "light":
        light(float(numbers[0]), float(numbers[1]), one)
    else:
        sys.exit(f"no such verb: {kind}")


def batch(total: int, one: SendOne, many: SendMany | None, chunk: int) -> float:
    """Send so many, in chunks where there is a way to; how many a second."""
    began = time.perf_counter()
    if many is None:
        for _ in range(total):
            one(time.time())
    else:
        for start in range(0, total, chunk):
            many([time.time()] * min(chunk, total - start))
    return total / (time.perf_counter() - began)


def light(rate: float, seconds: float, one: SendOne) -> None:
    began = time.perf_counter()
    for number in range(int(rate * seconds)):
        time.sleep(max(began + number / rate - time.perf_counter(), 0))
        one(time.time())


def settled(total: int, left: Callable[[], int]) -> float:
    """When all of them were acknowledged. The store is asked only after the last one ran, so as
    not to slow that down.
    """
    left()  # the connection is there when it counts
    marked = Path(os.environ["BENCH_MARKS"])
    while marks.count(marked) < total:
        time.sleep(0.01)
    while left():
        time.sleep(0.005)
    return time.time()


def warm_up(work: Callable[[], object]) -> None:
    """Do it once, then again for a while."""
    until = time.monotonic() + float(os.environ.get("BENCH_WARMTH", "2"))
    work()
    while time.monotonic() < until:
        work()
