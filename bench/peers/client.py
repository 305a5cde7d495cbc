"""The sending side of every peer: `batch N` as fast as it can, `light RATE SECONDS` evenly; prints the rate."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence


def send(one: Callable[[float], object], many: Callable[[Sequence[float]], object] | None = None) -> None:
    kind, *numbers = sys.argv[1:]
    began = time.perf_counter()
    if kind == "batch":
        total = int(numbers[0])
        if many is not None:
            many([time.time()] * total)
        else:
            for _ in range(total):
                one(time.time())
        print(total / (time.perf_counter() - began))
    else:
        rate, seconds = float(numbers[0]), float(numbers[1])
        for number in range(int(rate * seconds)):
            time.sleep(max(began + number / rate - time.perf_counter(), 0))
            one(time.time())
