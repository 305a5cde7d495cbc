"""Who runs on which store. Every peer has one worker process, and there 8 threads or coroutines
where its design has them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from queueing.environments import BUILD, PEERS


@dataclass(frozen=True)
class Contender:
    """One queue under measurement: how its worker starts and how many jobs it gets.

    `settles`: its app can tell when every job is acknowledged (the verb `settled`); the others
    acknowledge job by job.
    """

    name: str
    app: str
    jobs: int
    worker: tuple[str, ...] = ("APP", "work")
    settings: dict[str, str] = field(default_factory=dict)
    environment: str = "bench-peers"
    settles: bool = False

    @property
    def ours(self) -> bool:
        return self.app == "longwatch_app"

    def command(self, *words: str) -> list[str]:
        python = sys.executable if self.ours else str(BUILD / self.environment / "bin" / "python")
        return [
            python,
            *(str(PEERS / f"{self.app}.py") if word == "APP" else word for word in words),
        ]


def _longwatch(jobs: int = 50_000) -> tuple[Contender, Contender]:
    return (
        Contender("longwatch, engine with 8 slots", "longwatch_app", jobs, settles=True),
        Contender(
            "longwatch, receive + acknowledge_many(100)",
            "longwatch_app",
            jobs,
            ("APP", "receive"),
            settles=True,
        ),
    )


def _huey(threads: int, jobs: int) -> Contender:
    words = ("-m", "huey.bin.huey_consumer", "huey_app.huey", "-q", "-w", str(threads))
    return Contender(f"huey, {threads} thread{'s' if threads > 1 else ''}", "huey_app", jobs, words)


def _taskiq(kind: str, jobs: int) -> Contender:
    words = (
        "-m",
        "taskiq",
        "worker",
        "--log-level",
        "ERROR",
        "--workers",
        "1",
        "taskiq_app:broker",
    )
    return Contender(f"taskiq, {kind}", "taskiq_app", jobs, words, {"BENCH_BROKER": kind})


def _pgqueuer(batch: int, jobs: int) -> Contender:
    return Contender(
        f"PgQueuer, batch {batch}",
        "pgqueuer_app",
        jobs,
        settings={"BENCH_BATCH": str(batch)},
        settles=True,
    )


CONTENDERS: dict[str, tuple[Contender, ...]] = {
    "memory": _longwatch(),
    "sqlite": (
        *_longwatch(),
        _huey(1, 5_000),
        Contender("persist-queue", "persistqueue_app", 3_000),
        Contender("litequeue", "litequeue_app", 5_000),
        Contender("dbos", "dbos_app", 500, settles=True),
    ),
    "redis": (
        *_longwatch(),
        _taskiq("stream", 6_000),
        _taskiq("list", 6_000),
        _huey(1, 6_000),
        _huey(8, 6_000),
        Contender(
            "dramatiq, 8 threads",
            "dramatiq_app",
            5_000,
            ("-m", "dramatiq", "-p", "1", "-t", "8", "dramatiq_app"),
        ),
        Contender(
            "saq, 8 at once",
            "saq_app",
            5_000,
            ("-m", "saq", "--quiet", "saq_app.settings"),
            environment="bench-peers-saq",
        ),
        Contender(
            "celery, 8 threads",
            "celery_app",
            3_000,
            (
                "-m",
                "celery",
                "-A",
                "celery_app",
                "worker",
                "-P",
                "threads",
                "-c",
                "8",
                "-l",
                "ERROR",
            ),
        ),
    ),
    "postgresql": (
        *_longwatch(),
        _pgqueuer(100, 30_000),
        _pgqueuer(10, 5_000),
        Contender("procrastinate, 8 at once", "procrastinate_app", 1_500, settles=True),
        Contender("dbos", "dbos_app", 1_000, settles=True),
    ),
}
YARDSTICKS = {
    "sqlite": "huey, 1 thread",
    "redis": "taskiq, stream",
    "postgresql": "PgQueuer, batch 100",
}
"""The peer that the ratios of each table are to."""
