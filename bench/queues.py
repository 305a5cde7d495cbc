"""Queues: no-op jobs through one worker process, Longwatch's four backends and their peers in one
run, on the same servers.

Every job appends its times to one file. The rate counts from a tenth of the jobs to the
acknowledgement of the last; Longwatch's jobs are fenced. Latency is from send to run across two
processes at 50 messages a second. SQLite is at synchronous=FULL for us, Redis at appendfsync
everysec, PostgreSQL as it comes.

In the environment: BENCH_STORES=sqlite,redis,postgresql,memory which stores, BENCH_ROUNDS=3,
BENCH_ONLY=huey,longwatch which contenders (the beginnings of their names), BENCH_PARTS=race,closer
which tables.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))  # for the marks, which stand beside the apps

from queue_bench import environments  # noqa: E402 - after the path


@dataclass(frozen=True)
class BenchPlan:
    """What of the benchmark to run."""

    stores: tuple[str, ...]
    parts: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int

    @classmethod
    def from_environment(cls) -> BenchPlan:
        def several(name: str, default: str) -> tuple[str, ...]:
            return tuple(
                word.strip()
                for word in (os.environ.get(name) or default).split(",")
                if word.strip()
            )

        stores = several("BENCH_STORES", "sqlite,redis,postgresql,memory")
        rounds = int(os.environ.get("BENCH_ROUNDS") or 3)
        return cls(stores, several("BENCH_PARTS", "race,closer"), several("BENCH_ONLY", ""), rounds)


def run(plan: BenchPlan) -> None:
    from queue_bench import tables  # noqa: PLC0415 - its packages are there only now

    looks: dict[str, dict[str, str]] = {}
    with _folder() as place:
        for kind in plan.stores:
            print(f"\n### {kind}\n", flush=True)
            try:
                looks[kind] = _one_store(kind, plan, place)
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                print(f"Not measured: {error}", flush=True)
    if "closer" in plan.parts:
        print("\n### A closer look\n")
        print(tables.closer_table("longwatch", looks))
    print(
        f"\nMedians of {plan.rounds} interleaved rounds on {os.cpu_count()} cores, shared by "
        f"servers, senders and workers. {environments.versions()}."
    )


def _one_store(kind: str, plan: BenchPlan, place: Path) -> dict[str, str]:
    from queue_bench import closer, race, stores, tables  # noqa: PLC0415

    with stores.opened_store(kind, place / kind) as store:
        if "race" in plan.parts:
            print(
                tables.race_table(
                    race.run_race(store, plan.rounds, plan.only), race.baseline(kind)
                ),
                flush=True,
            )
        return closer.measure_all(store, plan.rounds) if "closer" in plan.parts else {}


@contextmanager
def _folder() -> Iterator[Path]:
    """On the disk of the checkout, not in a temporary file system, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="longwatch-bench-", dir=environments.BUILD) as place:
        Path(place).chmod(0o755)
        yield Path(place)


def main() -> None:
    environments.BUILD.mkdir(exist_ok=True)
    if not environments.is_complete():
        sys.exit(subprocess.run([environments.make_own(), __file__], check=False).returncode)
    environments.make_peers()
    run(BenchPlan.from_environment())


if __name__ == "__main__":
    main()
