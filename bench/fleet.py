"""Fleet: what hundreds of idle processes ask of one server, beside an earlier version.

Each part runs in two source trees, one after the other: that of a commit, and this one. The figures
of latency, senders, drain and redis_drain are medians of rounds in which the trees take turns.
Workers are processes of their own, eight of them with the runtime directory of one host; on Redis
eight share a process. Messages come from another process, one by one. Figures for 400 workers are
extrapolated.

In the environment: BENCH_BEFORE=f9a94fa the commit (`-`: none), BENCH_SECONDS=5 the length of a
window, BENCH_SIZES=40,100 and BENCH_REDIS_SIZES=100,400 how many workers,
BENCH_PARTS=workers,latency,flow,programs,mailboxes,sweeps,redis,snapshot,commits,slow_commits,
threads,senders,queued,redis_queued,drain,redis_drain,pooled,capacity,redis_capacity.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from queue_bench.parts import run_parts

if TYPE_CHECKING:
    from fleet_bench.figure import Figure
    from fleet_bench.trees import Tree

BEFORE = "f9a94fa"
TITLES = {
    "workers": "Idle workers on PostgreSQL, and 20 messages a second for one of them",
    "latency": "20 messages a second for a few workers on PostgreSQL",
    "flow": "Idle flow workers on PostgreSQL",
    "programs": "The commands, idle, with 2 worker processes",
    "mailboxes": "Idle workers over several mailboxes",
    "sweeps": "Idle workers beside 100,000 leased messages",
    "redis": "Idle workers on Redis",
    "snapshot": "Claims behind an old snapshot",
    "commits": "An application that sends inside its transactions, 12 connections",
    "slow_commits": "The same on a disk whose `fdatasync` takes 5 ms more",
    "threads": "Async handlers",
    "senders": "Single `send`s from several threads",
    "queued": "Claims from a mailbox of a million messages",
    "redis_queued": "Claims from a mailbox of a million messages, on Redis",
    "drain": "A drain by one worker with 8 slots",
    "redis_drain": "A drain by one worker with 8 slots, on Redis",
    "pooled": "A drain through PgBouncer, pool_mode = transaction",
    "capacity": "Where one PostgreSQL ends",
    "redis_capacity": "Where one Redis ends",
}
_ON_REDIS = {"redis", "redis_queued", "redis_drain", "redis_capacity"}
_ROUNDS = {"latency": 3, "senders": 3, "drain": 5, "redis_drain": 5}
"""Parts whose figures are medians of several rounds, in which the trees take turns."""
_NUMBERS = count(1)


@dataclass(frozen=True)
class Server:
    """A running server, and how to get an empty database of it."""

    url: str
    pid: int
    is_redis: bool

    def fresh(self) -> str:
        """The URL of an empty database. That of the previous part is dropped."""
        if self.is_redis:
            import redis  # noqa: PLC0415 - its package is there only now

            with redis.Redis.from_url(self.url) as client:
                client.flushall()
            return self.url
        import psycopg  # noqa: PLC0415

        number = next(_NUMBERS)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS fleet{number - 1} WITH (FORCE)".encode())
            connection.execute(f"CREATE DATABASE fleet{number}".encode())
            connection.execute("CHECKPOINT")
        return f"{self.url.rpartition('/')[0]}/fleet{number}"


@contextmanager
def started_server(part: str, folder: Path) -> Iterator[Server | None]:
    """A server for one part; None if it cannot be had on this machine."""
    from fleet_bench.slow_disk import slow_disk  # noqa: PLC0415 - its packages are there only now
    from queue_bench import servers  # noqa: PLC0415

    if part in _ON_REDIS:
        with servers.redis_server(folder) as url:
            yield Server(url, servers.pid_of_redis(url), is_redis=True)
        return
    environ = slow_disk(folder) if part == "slow_commits" else {}
    if environ is None:
        yield None
        return
    settings = {"max_connections": "400"}
    with servers.postgresql_server(folder, settings=settings, environ=environ) as url:
        yield Server(url, servers.pid_of_postgresql(folder), is_redis=False)


def measure(part: str, trees: list[Tree], folder: Path) -> dict[str, list[Figure]]:
    """What each tree measured, in medians. One server for all, and an empty database for each."""
    from fleet_bench.figure import medians  # noqa: PLC0415 - its packages are there only now
    from fleet_bench.site import Site  # noqa: PLC0415

    rounds: dict[str, list[list[Figure]]] = {}
    folder.mkdir(mode=0o755)
    (folder / "server").mkdir()
    with started_server(part, folder / "server") as server:
        for number in range(_ROUNDS.get(part, 1)) if server else []:
            for tree in trees:
                print(f"{part}, {tree.name}, round {number + 1}", file=sys.stderr, flush=True)
                place = folder / f"{tree.name}{number}"
                place.mkdir()
                assert server is not None
                seconds = float(os.environ.get("BENCH_SECONDS") or 5)
                site = Site(server.fresh(), server.url, server.pid, str(place), seconds)
                try:
                    rounds.setdefault(tree.name, []).append(tree.measure(part, site))
                except RuntimeError as error:
                    if tree is trees[-1]:
                        raise
                    reason = str(error).splitlines()[-1]
                    print(f"The earlier version does not run here: `{reason}`.\n", flush=True)
    return {name: medians(measured) for name, measured in rounds.items() if measured}


def table(found: dict[str, list[Figure]]) -> str:
    """Rows by label, in the order of the last tree. A figure that one tree lacks is a dash."""
    names = list(found)
    by_label = {
        name: {figure.label: figure for figure in figures} for name, figures in found.items()
    }
    labels = dict.fromkeys(figure.label for name in reversed(names) for figure in found[name])
    has_targets = any(figure.target for figures in found.values() for figure in figures)
    heads = ["", *names, *(["target"] if has_targets else [])]
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for label in labels:
        figures = [by_label[name].get(label) for name in names]
        cells = [label, *("–" if each is None else each.shown() for each in figures)]
        if has_targets:
            cells.append(next((each.target for each in figures if each), ""))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def run_part(part: str, place: Path) -> None:
    from fleet_bench.trees import compared_trees  # noqa: PLC0415 - its packages are there only now

    commit = os.environ.get("BENCH_BEFORE") or BEFORE
    trees = compared_trees("" if commit == "-" else commit)
    print(f"\n### {TITLES[part]}\n", flush=True)
    try:
        found = measure(part, trees, place / part)
    except (RuntimeError, OSError) as error:
        print(f"Not measured: {error}", flush=True)
        return
    print(table(found) if found else "Not measured: a part of it is not installed.", flush=True)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # servers and workers end with it
    run_parts(__file__, {part: partial(run_part, part) for part in TITLES}, with_peers="")
    wanted = os.environ.get("BENCH_BEFORE") or BEFORE
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"\nBefore: commit {wanted}. {os.cpu_count()} cores, shared by servers, senders and "
        f"workers. Load averages at the end: {load}. "
        f"Transactions, claims, NOTIFYs, connections and threads are counts; milliseconds, cores "
        f"and rates also depend on what else the machine did."
    )


if __name__ == "__main__":
    main()
