"""Who runs on which store. Every peer has one worker process, and there 8 threads or coroutines
where its design has them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from queue_bench.environments import BUILD, PEERS


@dataclass(frozen=True)
class QueueContender:
    """One queue under measurement: how its worker starts and how many jobs it gets.

    `reports_settled`: its app reports when every job is acknowledged (the verb `settled`); the
    others acknowledge job by job.
    """

    name: str
    app: str
    jobs: int
    worker: tuple[str, ...] = ("APP", "work")
    settings: dict[str, str] = field(default_factory=dict)
    environment: str = "bench-peers"
    reports_settled: bool = False

    @property
    def is_longwatch(self) -> bool:
        return self.app == "longwatch_app"

    def command(self, *words: str) -> list[str]:
        python = (
            sys.executable
            if self.is_longwatch
            else str(BUILD / self.environment / "bin" / "python")
        )
        return [
            python,
            *(str(PEERS / f"{self.app}.py") if word == "APP" else word for word in words),
        ]


def _longwatch(jobs: int = 50_000) -> tuple[QueueContender, QueueContender]:
    return (
        QueueContender(
            "longwatch, engine with 8 slots", "longwatch_app", jobs, reports_settled=True
        ),
        QueueContender(
            "longwatch, receive + acknowledge_many(100)",
            "longwatch_app",
            jobs,
            ("APP", "receive"),
            reports_settled=True,
        ),
    )


def _huey(threads: int, jobs: int) -> QueueContender:
    words = ("-m", "huey.bin.huey_consumer", "huey_app.huey", "-q", "-w", str(threads))
    return QueueContender(
        f"huey, {threads} thread{'s' if threads > 1 else ''}", "huey_app", jobs, words
    )


def _taskiq(kind: str, jobs: int) -> QueueContender:
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
    return QueueContender(f"taskiq, {kind}", "taskiq_app", jobs, words, {"BENCH_BROKER": kind})


def _pgqueuer(batch: int, jobs: int) -> QueueContender:
    return QueueContender(
        f"PgQueuer, batch {batch}",
        "pgqueuer_app",
        jobs,
        settings={"BENCH_BATCH": str(batch)},
        reports_settled=True,
    )


CONTENDERS: dict[str, tuple[QueueContender, ...]] = {
    "memory": _longwatch(),
    "sqlite": (
        *_longwatch(),
        _huey(1, 5_000),
        QueueContender("persist-queue", "persistqueue_app", 3_000),
        QueueContender("litequeue", "litequeue_app", 5_000),
        QueueContender("dbos", "dbos_app", 500, reports_settled=True),
    ),
    "redis": (
        *_longwatch(),
        _taskiq("stream", 6_000),
        _taskiq("list", 6_000),
        _huey(1, 6_000),
        _huey(8, 6_000),
        QueueContender(
            "dramatiq, 8 threads",
            "dramatiq_app",
            5_000,
            ("-m", "dramatiq", "-p", "1", "-t", "8", "dramatiq_app"),
        ),
        QueueContender(
            "saq, 8 at once",
            "saq_app",
            5_000,
            ("-m", "saq", "--quiet", "saq_app.settings"),
            environment="bench-peers-saq",
        ),
        QueueContender(
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
        QueueContender(
            "procrastinate, 8 at once", "procrastinate_app", 1_500, reports_settled=True
        ),
        QueueContender("dbos", "dbos_app", 1_000, reports_settled=True),
    ),
}
BASELINES = {
    "sqlite": "huey, 1 thread",
    "redis": "taskiq, stream",
    "postgresql": "PgQueuer, batch 100",
}
"""The peer that the ratios of each table are to."""
