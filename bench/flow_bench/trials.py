"""One contender in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from queue_bench import fsyncs
from queue_bench.environments import BUILD, PEERS

TIMEOUT = 600.0
COUNTED_EXECUTIONS = 100


def longwatch(url: str, count: int, *parts: str, **environ: str) -> dict[str, float]:
    return _run(
        [sys.executable, str(PEERS / "flow_longwatch.py"), str(count), *parts], url, environ
    )


def dbos(url: str, count: int) -> dict[str, float]:
    return _run(
        [str(BUILD / "bench-peers" / "bin" / "python"), str(PEERS / "flow_dbos.py"), str(count)],
        url,
        {},
    )


def commits(url: str, folder: Path) -> float | None:
    """How often an execution asks the disk to have its data, one execution after the other; None
    if nothing here can count that.
    """
    counter = fsyncs.find_counter(folder)
    if counter is None or counter.command_prefix:  # under strace it would be another race
        return None
    counts = []
    for count in (COUNTED_EXECUTIONS, 2 * COUNTED_EXECUTIONS):
        counter.reset()
        longwatch(url, count, "sequential", BENCH_WARMTH="0", **counter.environ)
        counts.append(counter.total())
    return (counts[1] - counts[0]) / COUNTED_EXECUTIONS


def _run(command: list[str], url: str, environ: dict[str, str]) -> dict[str, float]:
    env = {**os.environ, "BENCH_URL": url, "PYTHONPATH": str(PEERS), **environ}
    done = subprocess.run(
        command, env=env, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT, text=True
    )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer
