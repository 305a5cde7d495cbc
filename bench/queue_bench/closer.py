"""The closer look at each of our backends: the lines of the last table. What cannot be measured
says why.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from queue_bench import fsyncs, wal
from queue_bench.contenders import CONTENDERS, QueueContender
from queue_bench.stores import KINDS, BenchStore
from queue_bench.trial import Trial, TrialError

FIGURES = Path(__file__).with_name("figures.py")
TIMEOUT = 300.0
SERVERS = ("redis", "postgresql")


class Measurement(NamedTuple):
    """A line: what it is about, which stores have it, and how it is found out, in so many
    rounds.
    """

    title: str
    kinds: tuple[str, ...]
    find: Callable[[BenchStore, int], str]


def sends(store: BenchStore, _rounds: int) -> str:
    one, eight = _figure("single_sends", store.fresh())
    return f"{one:,.0f} → {eight:,.0f} ({eight / one:.1f}×)"


def claims(store: BenchStore, _rounds: int) -> str:
    small, large = _figure("claims_by_size", store.fresh())
    return f"{large / small:.2f}×"


def renewals(store: BenchStore, _rounds: int) -> str:
    return f"{_figure('renewals', store.fresh()) * 1e3:.0f} ms"


def imports(store: BenchStore, rounds: int) -> str:
    """Interleaved starts of an interpreter that does nothing, imports the package, opens a
    mailbox of this store.
    """
    package = "import longwatch.mailbox"
    codes = (
        "pass",
        package,
        f"{package}; longwatch.mailbox.open_mailbox({store.fresh()!r}, 'bench')",
    )
    times = [[_startup_time(code) for code in codes] for _ in range(5 * rounds + 1)][1:]
    bare, imported, opened = (
        statistics.median(column) * 1e3 for column in zip(*times, strict=True)
    )
    return f"{imported - bare:+.0f} ms, {opened - imported:+.0f} ms"


def syncs(store: BenchStore, _rounds: int) -> str:
    counter = fsyncs.find_counter(store.folder)
    if counter is None:
        raise TrialError("neither strace nor a C compiler works here")
    engine = _engine(store)
    draining = _syncs(store, counter, engine, fill=engine.jobs)
    single = _syncs(
        store, counter, replace(engine, worker=("APP", "singles", "1000"), jobs=1000), fill=0
    )
    note = " (under strace, which has it commit more often)" if counter.command_prefix else ""
    return f"{draining:.4f} / {single:.2f}{note}"


def two_workers(store: BenchStore, rounds: int) -> str:
    pairs = [(_drain_rate(store, 1), _drain_rate(store, 2)) for _ in range(rounds)]
    one, two = (statistics.median(column) for column in zip(*pairs, strict=True))
    return f"{one:,.0f} → {two:,.0f} jobs/s ({two / one:.2f}×)"


def traffic(store: BenchStore, _rounds: int) -> str:
    """Sending first, then draining; the sending process has ended before its counters are read,
    and so has the worker.
    """
    engine, url = _engine(store), store.fresh()
    seen = [wal.traffic(store.admin, url)]
    with Trial(engine, url, store.folder) as trial:
        trial.ask("batch", str(engine.jobs))
        seen.append(wal.traffic(store.admin, url))
        trial.drain()
    seen.append(wal.traffic(store.admin, url))
    sent, drained = (after.since(before, engine.jobs) for before, after in pairwise(seen))
    return f"{sent} / {drained}"


def hot(store: BenchStore, _rounds: int) -> str:
    url = store.fresh()
    owner = _figure("claimed", url)
    updated, hot_before = wal.updates(url)
    _figure("renewed", url, str(owner))
    total, hot_after = wal.updates(url)
    return f"{(hot_after - hot_before) / max(total - updated, 1):.0%} of {total - updated:,}"


MEASUREMENTS = (
    Measurement("single `send`s a second, from 1 thread → 8 threads", KINDS, sends),
    Measurement("claiming with 1,000,000 queued, against 3,000", KINDS, claims),
    Measurement("renewing 10,000 leases", KINDS, renewals),
    Measurement(
        "`import longwatch.mailbox` over a bare interpreter, and what opening this backend adds",
        KINDS,
        imports,
    ),
    Measurement("fsyncs per message: engine / single `send`s", ("sqlite",), syncs),
    Measurement("worker processes 1 → 2", SERVERS, two_workers),
    Measurement("per message, `send_many(1000)` / engine", ("postgresql",), traffic),
    Measurement("renewed rows that were HOT updates", ("postgresql",), hot),
)


def measure_all(store: BenchStore, rounds: int) -> dict[str, str]:
    """What each line says about this store."""
    return {
        each.title: _measured(each, store, rounds)
        for each in MEASUREMENTS
        if store.kind in each.kinds
    }


def _measured(look: Measurement, store: BenchStore, rounds: int) -> str:
    print(f"{store.kind}: {look.title}", file=sys.stderr, flush=True)
    try:
        return look.find(store, rounds)
    except Exception as error:  # noqa: BLE001 - whatever one line meets, the others are measured
        return f"not measured: {error}"


def _figure(name: str, *words: str) -> Any:
    command = [sys.executable, str(FIGURES), name, *words]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        raise TrialError(f"not finished within {TIMEOUT:.0f} s") from None
    if done.returncode:
        raise TrialError(done.stderr.strip().rpartition("\n")[2][:160])
    return json.loads(done.stdout)


def _startup_time(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdin=subprocess.DEVNULL)
    return time.perf_counter() - began


def _engine(store: BenchStore) -> QueueContender:
    return CONTENDERS[store.kind][0]


def _syncs(
    store: BenchStore, counter: fsyncs.FsyncCounter, contender: QueueContender, *, fill: int
) -> float:
    """Syncs per job of a worker that drains what was filled in, or that ends by itself."""
    counter.reset()
    with Trial(
        contender, store.fresh(), store.folder, wrap=counter.command_prefix, environ=counter.environ
    ) as trial:
        if fill:
            trial.ask("batch", str(fill))
            trial.drain()
            counter.end(trial.workers[0])
        else:
            trial.start()
            trial.workers[0].wait()
        return counter.total() / contender.jobs


def _drain_rate(store: BenchStore, workers: int) -> float:
    """Jobs a second from the moment the mailbox hands out again, with all workers ready."""
    engine = replace(_engine(store), jobs=100_000)
    with Trial(engine, store.fresh(), store.folder) as trial:
        trial.ask("batch", str(engine.jobs))
        trial.ask("pause")
        for _ in range(workers):
            trial.start()
        settled = trial.start_settled_watch()
        time.sleep(2)
        trial.ask("resume")
        return trial.rate(settled)
