"""Faults: PostgreSQL and Redis fail in every known way under working actors that nobody restarts;
what it costs.

The actors of tests/fault_actors.py: two that send and two that work, some with a clock that is an
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

from queueing import environments  # noqa: E402 - after the path

if TYPE_CHECKING:
    from fault_postgres import PostgresTarget
    from fault_stage import Stage

PATIENCE = 60.0
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
class Contender:
    """A queue under a restart of its server: what runs its actors, and the SQL that counts what
    is not done.
    """

    name: str
    command: tuple[str, ...]
    left: str


def contenders() -> list[Contender]:
    import fault_actors  # noqa: PLC0415

    python = str(environments.BUILD / "bench-peers" / "bin" / "python")
    peers = {
        "procrastinate": (
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        ),
        "pgqueuer": "SELECT count(*) FROM pgqueuer",
    }
    ours = Contender(
        "longwatch",
        (sys.executable, fault_actors.__file__),
        "SELECT count(*) FROM longwatch_messages",
    )
    return [
        ours,
        *(
            Contender(name, (python, str(HERE / "peers" / f"fault_{name}.py")), left)
            for name, left in peers.items()
        ),
    ]


def ours(stores: list[str], seconds: float) -> None:
    from chaos_plan import ChaosPlan  # noqa: PLC0415 - its packages are there only now
    from fault_reckoning import table  # noqa: PLC0415
    from fault_run import GROUPS, played  # noqa: PLC0415

    for kind in stores:
        lines = []
        for group in GROUPS:
            with (
                _folder() as folder,
                played(kind, group, folder, ChaosPlan(1, seconds)) as (stage, _),
            ):
                lines += stage.reckoned()
        print(f"\n### {kind}\n\n{table(lines)}", flush=True)


def peers() -> None:
    print(f"\n### Beside others, under a restart of PostgreSQL\n\n{_HEAD}", flush=True)
    for contender in contenders():
        print("\n".join(_restarted(contender)), flush=True)
    print(
        f"\nRecovered after: until every actor that was left got through again; – if not "
        f"within {PATIENCE:.0f} s. Never run: sent,"
        f" but not run when {PATIENCE:.0f} s had passed after the last; stuck: what is still "
        f"in the queue then, of both faults."
        " Ran twice: run to the end twice, which at-least-once allows. Actors ended: of two "
        "that send and two that work, by both"
        " faults; they were started again in the end."
    )


def _restarted(contender: Contender) -> list[str]:
    from fault_postgres import postgres_target  # noqa: PLC0415
    from fault_stage import staged  # noqa: PLC0415

    cast: list[tuple[str, dict[str, str]]] = [
        (role, {}) for role in ("produce", "produce", "work", "work")
    ]
    with postgres_target() as target, _folder() as folder:
        if contender.name != "longwatch":
            subprocess.run(
                [*contender.command, "install", target.url, folder / "install", "0"],
                check=True,
                stdout=sys.stderr,
            )
        with staged(folder, target.url, cast, contender.command) as stage:
            ended = _suffer(stage, target)
            with suppress(AssertionError):
                stage.drain(lambda: _left(target, contender) == 0)
            stuck = _left(target, contender)
            return [
                f"| {contender.name} | {line.fault} | {_seconds(line.recovered_after)} | "
                f"{line.sent} | {line.failed} |"
                f" {line.lost} | {line.doubled} | {stuck} | {ended} |"
                for line in stage.reckoned(settled="ran")
            ]


def _suffer(stage: Stage, target: PostgresTarget) -> int:
    """A stop and a kill; how many actors ended by them. Those are started again in the end."""
    stage.patience, stage.is_lenient = PATIENCE, True
    for fault in target.groups()["server"][:2]:
        with suppress(AssertionError):
            stage.suffer(fault)
    gone = [player for player in stage.players if player.has_ended]
    for player in gone:
        player.revive()
    return len(gone)


def _left(target: PostgresTarget, contender: Contender) -> int:
    from fault_postgres import DATABASE  # noqa: PLC0415

    [(left,)] = target.server.sql(contender.left, DATABASE)
    return int(left)


def _seconds(value: float) -> str:
    return "–" if value == inf else f"{value:.1f}"


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="longwatch-faults-") as folder:
        yield Path(folder)


def several(name: str, default: str) -> list[str]:
    return [word.strip() for word in (os.environ.get(name) or default).split(",") if word.strip()]


def main() -> None:
    environments.BUILD.mkdir(exist_ok=True)
    if not (environments.complete() and importlib.util.find_spec("pytest")):
        python = environments.ours()
        environments.install(environments.OURS, "pytest")  # which the servers of the tests skip by
        sys.exit(subprocess.run([python, __file__], check=False).returncode)
    parts: dict[str, Callable[[], None]] = {
        "ours": lambda: ours(
            several("BENCH_STORES", "postgresql,redis"),
            float(os.environ.get("BENCH_SECONDS") or 10),
        ),
        "peers": peers,
    }
    environments.peers()
    for part in several("BENCH_PARTS", "ours,peers"):
        parts[part]()


if __name__ == "__main__":
    main()
