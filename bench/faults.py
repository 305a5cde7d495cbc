"""Faults: PostgreSQL and Redis fail in every known way while actors work that are never
restarted.

The actors of tests/fault_client.py: two that send and two that work, some with a clock that is an
hour off. Lost: sent and never run or settled. Doubled: settled twice. Recovered after: from the end
of the fault until everybody got through again. Failed calls: what was told to those who send, and
the failures that the engines reported. Under 30 seconds a group calls are given up after 3 s where
the network is at fault, instead of 30 s, or 10 s for an answer of Redis.

In the environment: BENCH_STORES=postgresql,redis which servers, BENCH_SECONDS=10 how long a group
of faults lasts about, BENCH_PARTS=ours,peers which tables.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))  # where the actors, the servers and the faults are

from queue_bench import environments  # noqa: E402 - after the path

if TYPE_CHECKING:
    from fault_harness import FaultHarness
    from fault_postgres import PostgresFaults

TIMEOUT = 60.0
"""Seconds that a peer is given to come back, and to finish what it was sent."""
_COLUMNS = (
    "recovered after (s)",
    "sent",
    "failed",
    "never run",
    "ran twice",
    "stuck",
    "actors ended",
)
_HEAD = f"| queue | fault | {' | '.join(_COLUMNS)} |\n|---|---|{'---:|' * len(_COLUMNS)}"


@dataclass(frozen=True)
class FaultContender:
    """A queue under a restart of its server: what runs its actors, and the SQL that counts what
    is not done.
    """

    name: str
    command: tuple[str, ...]
    left_sql: str


def contenders() -> list[FaultContender]:
    import fault_client  # noqa: PLC0415

    python = str(environments.BUILD / "bench-peers" / "bin" / "python")
    peers = {
        "procrastinate": (
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        ),
        "pgqueuer": "SELECT count(*) FROM pgqueuer",
    }
    ours = FaultContender(
        "longwatch",
        (sys.executable, fault_client.__file__),
        "SELECT count(*) FROM longwatch_messages",
    )
    return [
        ours,
        *(
            FaultContender(name, (python, str(HERE / "peers" / f"fault_{name}.py")), left)
            for name, left in peers.items()
        ),
    ]


def ours(stores: list[str], seconds: float) -> None:
    from chaos_plan import ChaosPlan  # noqa: PLC0415 - its packages are there only now
    from fault_harness import report_table  # noqa: PLC0415
    from fault_run import GROUPS, run_faults  # noqa: PLC0415

    for kind in stores:
        lines = []
        for group in GROUPS:
            with (
                _folder() as folder,
                run_faults(kind, group, folder, ChaosPlan(1, seconds)) as (harness, _),
            ):
                lines += harness.reports()
        print(f"\n### {kind}\n\n{report_table(lines)}", flush=True)


def peers() -> None:
    print(f"\n### Beside others, under a restart of PostgreSQL\n\n{_HEAD}", flush=True)
    for contender in contenders():
        print("\n".join(_run_restarts(contender)), flush=True)
    print(
        f"\nRecovered after: the time until a call of every remaining actor succeeded again; – if "
        f"not within {TIMEOUT:.0f} s. Never run: jobs that were sent and not run "
        f"{TIMEOUT:.0f} s after the last. Stuck: jobs that were still in the queue then, of both "
        "faults. Ran twice: jobs that ran to the end twice, which at-least-once allows. Actors "
        "ended: of two that send and two that work, by both faults; they were restarted in the "
        "end."
    )


def _run_restarts(contender: FaultContender) -> list[str]:
    from fault_harness import running_clients  # noqa: PLC0415
    from fault_postgres import postgres_faults  # noqa: PLC0415

    clients: list[tuple[str, dict[str, str]]] = [
        (role, {}) for role in ("produce", "produce", "work", "work")
    ]
    with postgres_faults() as server, _folder() as folder:
        if contender.name != "longwatch":
            subprocess.run(
                [*contender.command, "install", server.url, folder / "install", "0"],
                check=True,
                stdout=sys.stderr,
            )
        with running_clients(folder, server.url, clients, contender.command) as harness:
            ended = _apply_faults(harness, server)
            with suppress(AssertionError):
                harness.drain(lambda: _count_left(server, contender) == 0)
            stuck = _count_left(server, contender)
            return [
                f"| {contender.name} | {line.fault} | {_seconds(line.recovered_after)} | "
                f"{line.sent} | {line.failed_calls} |"
                f" {line.lost} | {line.duplicated} | {stuck} | {ended} |"
                for line in harness.reports(settled="ran")
            ]


def _apply_faults(harness: FaultHarness, server: PostgresFaults) -> int:
    """A stop and a kill; how many actors ended by them. Those are started again in the end."""
    harness.timeout, harness.allows_exits = TIMEOUT, True
    for fault in server.groups()["server"][:2]:
        with suppress(AssertionError):
            harness.apply(fault)
    gone = [client for client in harness.clients if client.has_ended]
    for client in gone:
        client.restart()
    return len(gone)


def _count_left(server: PostgresFaults, contender: FaultContender) -> int:
    from fault_postgres import DATABASE  # noqa: PLC0415

    [(left,)] = server.server.sql(contender.left_sql, DATABASE)
    return int(left)


def _seconds(value: float) -> str:
    return "–" if value == inf else f"{value:.1f}"


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="longwatch-faults-") as folder:
        yield Path(folder)


def env_list(name: str, default: str) -> list[str]:
    return [word.strip() for word in (os.environ.get(name) or default).split(",") if word.strip()]


def main() -> None:
    environments.BUILD.mkdir(exist_ok=True)
    if not (environments.is_complete() and importlib.util.find_spec("pytest")):
        python = environments.make_own()
        environments.install(environments.OURS, "pytest")  # which the servers of the tests skip by
        sys.exit(subprocess.run([python, __file__], check=False).returncode)
    parts: dict[str, Callable[[], None]] = {
        "ours": lambda: ours(
            env_list("BENCH_STORES", "postgresql,redis"),
            float(os.environ.get("BENCH_SECONDS") or 10),
        ),
        "peers": peers,
    }
    environments.make_peers()
    for part in env_list("BENCH_PARTS", "ours,peers"):
        parts[part]()


if __name__ == "__main__":
    main()
