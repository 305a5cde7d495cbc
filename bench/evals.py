"""Evals: what a sample costs in an EvalLoop, or in `longwatch eval run`, beyond what calling the
function in a plain loop costs.

From submitting the dataset to the report, on SQLite with its usual durability. `quick` returns its
input; `waits` waits 5 ms first, as code does that asks somebody else, and with 8 at a time a plain
loop could at best be done in an eighth of its time.

In the environment: BENCH_SAMPLES=2000 how many, BENCH_ROUNDS=3.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from longwatch.evals import (
    Dataset,
    EvalLoop,
    EvalReport,
    Sample,
    collect_results,
    exact_match,
    submit_dataset,
)
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop, MainLoopContext

WAIT = 0.005
TIMEOUT = 300.0
Handler = Callable[[Any], Any]
APP = """
from longwatch.mailbox import open_mailbox
from longwatch.runtime import MainLoop

class Echo(MainLoop):
    def handle(self, request, context):
        return request

echo = Echo(requests=open_mailbox("memory://", "unused"))
"""


def quick(request: Any) -> Any:
    return request


def waits(request: Any) -> Any:
    time.sleep(WAIT)
    return request


class Subject(MainLoop[Any, Any]):
    """The function as the loop under test."""

    def __init__(self, function: Handler) -> None:
        super().__init__(requests=open_mailbox("memory://", "unused"))
        self._function = function

    def handle(self, request: Any, context: MainLoopContext) -> Any:  # noqa: ARG002 - the contract
        return self._function(request)


def dataset(count: int) -> Dataset:
    return Dataset(
        Sample(f"sample-{number}", {"question": number}, {"question": number})
        for number in range(count)
    )


def plain(function: Handler, samples: Dataset) -> float:
    """Seconds of the loop that anybody would write."""
    began = time.perf_counter()
    passed = sum(exact_match(function(sample.input), sample.expected).passed for sample in samples)
    took = time.perf_counter() - began
    assert passed == len(samples)
    return took


def through_a_loop(function: Handler, samples: Dataset, slots: int, folder: Path) -> float:
    """Seconds from submitting to the report, with the loop running already."""
    store = f"sqlite:///{folder}/evals.db"
    requests, results = open_mailbox(store, "samples"), open_mailbox(store, "results")
    loop = EvalLoop(
        loop=Subject(function), evaluator=exact_match, requests=requests, concurrency=slots
    )
    running = threading.Thread(target=loop.run)
    running.start()
    try:
        began = time.perf_counter()
        submit_dataset(samples, requests, reply_to=results)
        report = EvalReport.of(samples, collect_results(results, expected=samples, timeout=TIMEOUT))
        took = time.perf_counter() - began
    finally:
        loop.shutdown()
        running.join()
    assert report.passed == len(samples)
    return took


def through_the_command(samples: Dataset, slots: int, folder: Path) -> float:
    """Seconds of `longwatch eval run`, start and end included."""
    (folder / "app.py").write_text(APP)
    samples.save(folder / "samples.jsonl")
    command: list[str | Path] = [
        Path(sys.executable).with_name("longwatch"),
        "eval",
        "run",
        "samples.jsonl",
        "app:echo",
        "--json",
    ]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--concurrency", str(slots)],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    took = time.perf_counter() - began
    assert json.loads(done.stdout)["passed"] == len(samples)
    return took


def in_a_folder(measure: Callable[..., float], *arguments: Any) -> tuple[float, float]:
    """Seconds it took, and seconds of CPU."""
    with tempfile.TemporaryDirectory(prefix="longwatch-bench-") as folder:
        before = cpu()
        took = measure(*arguments, Path(folder))
        return took, cpu() - before


def cpu() -> float:
    """Of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def loop_rows(count: int, rounds: int) -> Iterator[str]:
    samples = dataset(count)
    for function in (quick, waits):
        for slots in (1, 8):
            found = [
                (plain(function, samples), *in_a_folder(through_a_loop, function, samples, slots))
                for _ in range(rounds)
            ]
            alone, whole, busy = (statistics.median(times) for times in zip(*found, strict=True))
            best = alone if function is quick else alone / slots
            yield row(
                f"EvalLoop, {slots} at a time",
                function.__name__,
                alone,
                whole,
                (whole - best) / count,
                busy / count,
            )


def command_row(count: int, rounds: int) -> str:
    """The start is what one sample takes; the rest is the samples'."""
    one, many = dataset(1), dataset(count)
    alone = plain(quick, many)
    found = [
        (*in_a_folder(through_the_command, one, 8), *in_a_folder(through_the_command, many, 8))
        for _ in range(rounds)
    ]
    start, idle, whole, busy = (statistics.median(times) for times in zip(*found, strict=True))
    named = f"`longwatch eval run`, 8 at a time, beyond {start:.1f} s for one sample"
    return row(
        named,
        "quick",
        alone,
        whole,
        (whole - start - alone) / (count - 1),
        (busy - idle) / (count - 1),
    )


def row(what: str, function: str, alone: float, whole: float, overhead: float, busy: float) -> str:  # noqa: PLR0913, PLR0917 - cells
    times = (
        f"{alone * 1000:.0f} ms | {whole * 1000:.0f} ms | {overhead * 1000:.2f} ms | "
        f"{busy * 1000:.2f} ms"
    )
    return f"| {what} | {function} | {times} |"


def main() -> None:
    count, rounds = (
        int(os.environ.get("BENCH_SAMPLES") or 2000),
        int(os.environ.get("BENCH_ROUNDS") or 3),
    )
    print(
        "| how | function | plain loop | this | overhead a sample | CPU a sample "
        "|\n|---|---|---:|---:|---:|---:|"
    )
    for line in loop_rows(count, rounds):
        print(line, flush=True)
    print(command_row(count, rounds))
    print(f"\nMedians of {rounds} rounds of {count:,} samples.")


if __name__ == "__main__":
    main()
